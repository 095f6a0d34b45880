"""The file of `scripts/bench gpu`: a line for each measurement, and what is still to be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _gpu_plan import Job
from _lines import Row, append_line, read_lines


def read_rows(path: Path, since: int = 0) -> list[Row]:
    return [row for row in read_lines(path, since) if "subject" in row]


def append_row(path: Path, job: Job, found: Mapping[str, Any]) -> None:
    append_line(path, {**asdict(job), **found})


def pending(jobs: Sequence[Job], rows: Iterable[Row]) -> list[Job]:
    """Those that are not in the file yet; failures are, so that what crashes is not begun without end."""
    made = {Job.of(row).key for row in rows}
    return [job for job in jobs if job.key not in made]
