"""What `scripts/bench gpu` found, as tables: medians with [least-greatest], and shares of the limit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from _gpu_plan import SUBJECTS
from _gpu_rows import Row
from _harness import columns

Cell = tuple[str, str, str, int, int, str]
"""Part, group, model, batch, workers, workload: what subjects are compared within."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """All measurements of one subject in one cell."""

    subject: str
    figures: Mapping[str, Sequence[float]]
    of_limit: float | None
    errors: Sequence[str]

    def spread(self, name: str) -> tuple[float, float, float] | None:
        """Median, least, greatest."""
        values = self.figures.get(name, ())
        return (statistics.median(values), min(values), max(values)) if values else None


def cell_of(row: Row) -> Cell:
    return (row["part"], row["group"], row["model"], row["batch"], row["workers"], row["workload"])


def limits(rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """Images/s that a model trains at when it never waits, by model and batch size."""
    found: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        if row["subject"] == "limit" and "images_per_s" in row:
            found.setdefault((row["model"], row["batch"]), []).append(row["images_per_s"])
    return {key: statistics.median(values) for key, values in found.items()}


def summarised(rows: Sequence[Row]) -> dict[Cell, list[Line]]:
    """One line for each subject, in the order in which they were first measured; failures are counted, not averaged."""
    ceiling = limits(rows)
    grouped: dict[Cell, dict[str, list[Row]]] = {}
    for row in rows:
        grouped.setdefault(cell_of(row), {}).setdefault(row["subject"], []).append(row)
    return {
        cell: [line_of(subject, found, ceiling.get(cell[2:4])) for subject, found in in_order(subjects)]
        for cell, subjects in grouped.items()
    }


def in_order(subjects: Mapping[str, list[Row]]) -> list[tuple[str, list[Row]]]:
    """As they are listed, whoever was measured first."""
    return [(name, subjects[name]) for name in SUBJECTS if name in subjects]


def line_of(subject: str, rows: Sequence[Row], limit: float | None) -> Line:
    good = [row for row in rows if "error" not in row]
    numbers = {name for row in good for name, value in row.items() if isinstance(value, (int, float))}
    figures = {name: [float(row[name]) for row in good if name in row] for name in sorted(numbers)}
    speeds = figures.get("images_per_s")
    share = statistics.median(speeds) / limit if speeds and limit else None
    errors = [row["error"] for row in rows if "error" in row]
    return Line(subject=subject, figures=figures, of_limit=share, errors=errors)


# ---- words


def spread(line: Line, name: str, form: str = ",.0f") -> str:
    found = line.spread(name)
    if found is None:
        return ""
    median, low, high = (format(value, form) for value in found)
    return median if low == high else f"{median} [{low}-{high}]"


def text(rows: Sequence[Row]) -> str:
    parts = []
    for cell, lines in summarised(rows).items():
        tables = {"memory": memory_table, "workers": workers_table}
        table = tables.get(cell[0], speed_table)
        parts.append(f"{title_of(cell)}\n{table(cell, lines, rows)}")
    failed = [
        f"FAILED {row['subject']} ({title_of(cell_of(row))}): {row['error']}"
        for row in rows
        if "error" in row
    ]
    return "\n\n".join([*parts, *failed]) or "nothing was measured"


def title_of(cell: Cell) -> str:
    part, group, model, batch, workers, workload = cell
    said = [f"{part} {group}".strip(), f"{model}, batches of {batch}", workload]
    return ", ".join(word for word in [*said, f"{workers} workers" if workers else ""] if word)


SPEED = {
    "images/s": ("images_per_s", ",.0f"),
    "of the limit": None,
    "files": ("lane_share", ".2f"),
    "finished": ("finished_share", ".2f"),
    "wait p50 ms": ("wait_p50_ms", ".1f"),
    "p99 ms": ("wait_p99_ms", ".1f"),
    "CPU s/1000": ("cpu_s_per_1000", ".2f"),
}
"""Columns and the figures in them; None: computed by `speed_table`."""
REUSE = {
    "images/s": ("images_per_s", ",.0f"),
    "of the limit": None,
    "of standard": None,
    "found": ("found_share", ".2f"),
    "kept": ("kept_share", ".2f"),
    "refused": ("refused", ",.0f"),
    "files": ("lane_share", ".2f"),
    "finished": ("finished_share", ".2f"),
    "resident": ("resident_share", ".2f"),
    "wait p50 ms": ("wait_p50_ms", ".1f"),
    "p99 ms": ("wait_p99_ms", ".1f"),
    "CPU s/1000": ("cpu_s_per_1000", ".2f"),
}


def speed_table(cell: Cell, lines: Sequence[Line], _: Sequence[Row]) -> str:
    """Ratios are of medians; standard is the same loader without reuse."""
    shown = REUSE if cell[0] == "reuse" else SPEED
    standard = next((line.spread("images_per_s") for line in lines if line.subject == "off"), None)
    body = [["", *shown, "runs"]]
    for line in lines:
        speed = line.spread("images_per_s")
        computed = {
            "of the limit": "" if line.of_limit is None else f"{line.of_limit:.3f}",
            "of standard": f"{speed[0] / standard[0]:.2f}" if speed and standard else "",
        }
        cells = [computed[name] if how is None else spread(line, *how) for name, how in shown.items()]
        runs = len(line.figures.get("images_per_s", ()))
        body.append([SUBJECTS[line.subject].title, cells[0] or "failed", *cells[1:], str(runs)])
    return columns(body)


def memory_table(cell: Cell, lines: Sequence[Line], rows: Sequence[Row]) -> str:
    del rows
    if cell[1] == "tight":
        names = ["steps", "num_device_alloc", "num_alloc_retries", "num_ooms", "lane_share", "peak_gb"]
        names += ["room_gb", "free_gb", "least_free_gb"]
    else:
        names = ["largest_batch", "free_gb", "free_after_gb", "lane_share"]
    body = [
        [
            SUBJECTS[line.subject].title,
            *(spread(line, name, ".2f" if name.endswith(("_gb", "_share")) else ",.0f") for name in names),
        ]
        for line in lines
    ]
    return columns([["", *(name.replace("_", " ") for name in names)], *body])


def workers_table(cell: Cell, lines: Sequence[Line], rows: Sequence[Row]) -> str:
    body = [
        [
            "",
            "from s",
            "workers",
            "images/s, settled",
            "longest wait ms, first 3 s",
            "later",
            "device idle ms",
            "later",
        ]
    ]
    for line in lines:
        for run in runs_of(cell, line.subject, rows):
            body += [[SUBJECTS[line.subject].title, *stretch(change)] for change in run["changes"]]
    return columns(body)


def runs_of(cell: Cell, subject: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if cell_of(row) == cell and row["subject"] == subject and "changes" in row]


def stretch(change: Mapping[str, Any]) -> list[str]:
    return [
        f"{change['at_s']:.1f}",
        str(change["workers"]),
        f"{change['images_per_s']:,.0f}",
        f"{change['longest_wait_ms']:.0f}",
        f"{change['longest_wait_later_ms']:.0f}",
        *(
            f"{change[name]:.0f}" if name in change else ""
            for name in ("longest_idle_ms", "longest_idle_later_ms")
        ),
    ]
