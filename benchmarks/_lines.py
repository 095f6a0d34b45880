"""Files of results: a line of JSON for each measurement, appended as it is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_lines(path: Path, since: int = 0) -> list[Row]:
    """The rows from byte `since` on. A line that a sudden end cut off is skipped."""
    rows = []
    for line in path.read_bytes()[since:].splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row, on a line of its own even behind a torn one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + json.dumps(row) + "\n")
