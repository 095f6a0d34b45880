"""What `scripts/bench gpu` found, as tables: medians with [least-greatest], and shares of the limit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from _gpu_plan import SUBJECTS
from _gpu_rows import Row
from _prepare_report import columns

PAPERS_SPEED_UP, PAPERS_WORKERS, NEAR_LIMIT = 2.04, 4, 0.95
"""Of Revamper's ResNet-50 with 3 uses; and what of a model's own speed is as good as all of it."""
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
        tables = {"memory": memory_table, "workers": workers_table, "reuse": reuse_table}
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


def speed_table(_: Cell, lines: Sequence[Line], rows: Sequence[Row]) -> str:
    del rows
    header = [
        "",
        "images/s",
        "of the limit",
        "files",
        "finished",
        "2nd half",
        "wait p50 ms",
        "p99 ms",
        "CPU s/1000",
        "runs",
    ]
    body = [
        [
            SUBJECTS[line.subject].title,
            spread(line, "images_per_s") or "failed",
            "" if line.of_limit is None else f"{line.of_limit:.3f}",
            spread(line, "lane_share", ".2f"),
            spread(line, "finished_share", ".2f"),
            spread(line, "second_half", ".2f"),
            spread(line, "wait_p50_ms", ".1f"),
            spread(line, "wait_p99_ms", ".1f"),
            spread(line, "cpu_s_per_1000", ".2f"),
            str(len(line.figures.get("images_per_s", ()))),
        ]
        for line in lines
    ]
    return columns([header, *body])


def reuse_table(cell: Cell, lines: Sequence[Line], rows: Sequence[Row]) -> str:
    """Ratios are of medians, to what has no reuse, or has the small cache without a lane; *even*: deviation over mean of the times between batches, and their 99th percentile over the median."""
    standard = next(
        (line.spread("images_per_s") for line in lines if line.subject in ("off", "small_off")), None
    )
    header = [
        "",
        "images/s",
        "of the limit",
        "of standard",
        "found",
        "kept",
        "refused",
        "files",
        "finished",
        "resident",
    ]
    header += ["wait p50 ms", "p99 ms", "even: std/mean", "p99/p50", "CPU s/1000", "runs"]
    body = []
    for line in lines:
        speed = line.spread("images_per_s")
        body.append(
            [
                SUBJECTS[line.subject].title,
                spread(line, "images_per_s") or "failed",
                "" if line.of_limit is None else f"{line.of_limit:.3f}",
                f"{speed[0] / standard[0]:.2f}" if speed and standard else "",
                spread(line, "found_share", ".2f"),
                spread(line, "kept_share", ".2f"),
                spread(line, "refused"),
                spread(line, "lane_share", ".2f"),
                spread(line, "finished_share", ".2f"),
                spread(line, "resident_share", ".2f"),
                spread(line, "wait_p50_ms", ".1f"),
                spread(line, "wait_p99_ms", ".1f"),
                spread(line, "interval_cv", ".3f"),
                spread(line, "interval_p99_to_p50", ".2f"),
                spread(line, "cpu_s_per_1000", ".2f"),
                str(len(line.figures.get("images_per_s", ()))),
            ]
        )
    return columns([header, *body]) + mark(cell, standard, limits(rows))


def mark(
    cell: Cell, standard: tuple[float, float, float] | None, ceiling: Mapping[tuple[str, int], float]
) -> str:
    """What the paper's speed-up comes to here, unless the model cannot train as fast."""
    limit = ceiling.get(cell[2:4])
    if cell[1] not in ("paper", "workers") or cell[4] != PAPERS_WORKERS or standard is None or limit is None:
        return ""
    least = min(PAPERS_SPEED_UP * standard[0], NEAR_LIMIT * limit)
    return f"\nmark for 3 uses: the less of {PAPERS_SPEED_UP} x standard and {NEAR_LIMIT} of the limit, {least:,.0f} images/s"


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
