"""The reference's tables of keywords are what the code says."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from penstock.config import GpuPrep, LoaderConfig, Reuse

ROOT = Path(__file__).parents[2]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = script()


def test_the_reference_is_up_to_date() -> None:
    page = ROOT / "docs" / "api.md"
    assert reference.renewed(page.read_text("utf-8")) == page.read_text("utf-8"), (
        "a keyword has changed: run scripts/check --fix"
    )


@pytest.mark.parametrize("config", [LoaderConfig, Reuse, GpuPrep])
def test_it_has_every_keyword_with_its_default_and_its_meaning(config: type) -> None:
    rows = (ROOT / "docs" / "api.md").read_text("utf-8").splitlines()
    for field in fields(config):
        row = next(row for row in rows if row.startswith(f"| `{field.name}` |"))
        assert len(row.split(" | ")) == 3
        assert row.split(" | ")[2].strip(" |")


@dataclass
class Pump:
    """Of water."""

    speed: float = 2.5
    """turns a second,
    at most (docs/gpu.md#speed); 1 | 2"""
    kind: str = "slow"
    """`"slow"` or fast"""


def test_a_field_becomes_a_row() -> None:
    assert reference.table(Pump) == [
        "| keyword | default | meaning |",
        "|---|---|---|",
        "| `speed` | `2.5` | turns a second, at most ([gpu](gpu.md#speed)); 1 \\| 2 |",
        '| `kind` | `"slow"` | `"slow"` or fast |',
    ]


@dataclass
class Silent:
    speed: float = 2.5


def test_a_field_that_says_nothing_is_an_error() -> None:
    with pytest.raises(KeyError, match="speed"):
        reference.table(Silent)


def test_a_page_without_the_place_for_a_table_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no place for LoaderConfig"):
        reference.renewed("# API")
