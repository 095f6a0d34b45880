"""The file of `scripts/bench gpu`: a line for each measurement, and what is still to be made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _gpu_plan import Job

Row = dict[str, Any]


def read_rows(path: Path, since: int = 0) -> list[Row]:
    """The measurements behind a byte of the file; a line that was cut off by a sudden end is no measurement."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes()[since:].splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "subject" in row:
            rows.append(row)
    return rows


def append_row(path: Path, job: Job, found: Mapping[str, Any]) -> Row:
    row = {**asdict(job), **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + json.dumps(row) + "\n")
    return row


def pending(jobs: Sequence[Job], rows: Iterable[Row]) -> list[Job]:
    """Those that are not in the file yet; failures are, so that what crashes is not begun without end."""
    made = {Job.of(row).key for row in rows}
    return [job for job in jobs if job.key not in made]


def forget_failures(path: Path) -> None:
    """Rewrite the file without its failed measurements, so that they are made again."""
    rows = [row for row in read_rows(path) if "error" not in row]
    if path.exists():
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
