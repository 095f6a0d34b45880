"""Writes the tables of keywords in docs/api.md, from the fields of the classes that define them and their docstrings.

python scripts/reference.py     (also by scripts/check --fix; tests/unit/test_reference.py fails where it is due)
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from dataclasses import fields
from pathlib import Path

from penstock.config import Cache, GpuPrep, LoaderConfig, Remote, Reuse

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
CONFIGS = (LoaderConfig, Reuse, Remote, Cache, GpuPrep)


def renewed(page: str) -> str:
    """The page with its tables as they should be; each stands between two comments that name its class."""
    for config in CONFIGS:
        start, end = f"<!-- fields of {config.__name__}: scripts/check --fix writes them -->", "<!-- end -->"
        before, found, rest = page.partition(start)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"docs/api.md has no place for {config.__name__}: {start} … {end}")
        page = "\n".join([before + start, "", *table(config), "", end + after])
    return page


def table(config: type) -> list[str]:
    said = docstrings(config)
    rows = [f"| `{field.name}` | `{shown(field.default)}` | {said[field.name]} |" for field in fields(config)]
    return ["| keyword | default | meaning |", "|---|---|---|", *rows]


def docstrings(config: type) -> dict[str, str]:
    """What stands in the source behind each field, in one line, with links to other pages."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(said))):
                line = " ".join(said.split()).replace("|", "\\|")
                found[name] = re.sub(r"docs/([\w-]+)\.md(#[\w-]+)?", r"[\1](\1.md\2)", line)
    return found


def shown(default: object) -> str:
    return json.dumps(default) if isinstance(default, str) else repr(default)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
