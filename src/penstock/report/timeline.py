"""Timeline of a run: a row for the training loop, one per worker, and one for ready batches.

The overview shows the whole run in narrow columns, shaded by the share of time busy (or waiting). The close-up shows every task of a few
batches. Both stay small however long the run was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.report import svg
from penstock.report.reading import Moment, RunRecord, WorkSpan, coverage
from penstock.report.svg import WIDTH, plot, word, x_axis

ROW = 22.0
GAP = 6.0
FLAGS = 24.0
"""Space above the rows for the numbers of lost workers."""
COLUMNS = 300
ROWS = 16
"""Workers drawn; the others are alike."""
CLOSE_TASKS = 320
CLOSE_BATCHES = 10
SHADES = 8


class Axis(NamedTuple):
    """Maps seconds to the page."""

    low_s: float
    high_s: float

    def x(self, at_s: float) -> float:
        share = (at_s - self.low_s) / max(1e-9, self.high_s - self.low_s)
        return WIDTH * min(1.0, max(0.0, share))

    def shows(self, start_s: float, end_s: float) -> bool:
        return end_s > self.low_s and start_s < self.high_s


def row_y(row: int) -> float:
    """Return the top of a row; 0 is the training loop, n is worker n - 1."""
    return FLAGS + row * (ROW + GAP) + (GAP if row else 0.0)


def overview(run: RunRecord) -> str:
    """Draw the whole run."""
    axis = Axis(0.0, run.end_s or 1.0)
    edges = [axis.high_s * i / COLUMNS for i in range(COLUMNS + 1)]
    workers = run.workers[:ROWS]
    bottom = row_y(len(workers)) + ROW
    waited = coverage(((w.start_s, w.end_s) for w in run.waits), edges)
    shapes = [base(0), *shaded(0, waited, edges, axis, "wait", "waits")]
    for row in range(len(workers)):
        busy = coverage(((t.start_s, t.end_s) for t in run.tasks if t.row == row), edges)
        shapes += [base(row + 1), *shaded(row + 1, busy, edges, axis, "task", "works")]
    words = names(workers)
    lines, flags = marks(run.moments, axis, bottom)
    if has_ready(run):
        shapes.append(ready_row(run, axis, bottom + GAP))
        words.append(word("ready", "row", y=bottom + GAP + ROW))
        bottom += GAP + 2 * ROW
    says = (
        f"Timeline of {svg.in_time(run.end_s)}: when the training loop waited and when each worker was busy"
    )
    return plot(bottom, shapes + lines, words + flags + times(axis), says=says, left="names")


def has_ready(run: RunRecord) -> bool:
    """Return whether any batch was ever ready; a row of zeros is not drawn."""
    return most_ready(run) > 0


def close_up(run: RunRecord) -> str:
    """Draw every task of a few batches: around the first lost worker, else in the middle of the run."""
    axis = close_window(run)
    if axis is None:
        return ""
    workers = run.workers[:ROWS]
    bottom = row_y(len(workers)) + ROW
    shapes, words = [base(0)], names(workers)
    for wait in run.waits:
        if axis.shows(wait.start_s, wait.end_s):
            tip = f"waits {svg.in_time(wait.took_s)} for a batch of {wait.samples}"
            shapes.append(block(0, wait.start_s, wait.end_s, axis, "wait", tip))
    for row in range(len(workers)):
        seen = [t for t in run.tasks if t.row == row and axis.shows(t.start_s, t.end_s)]
        shapes.append(base(row + 1))
        shapes += [block(row + 1, t.start_s, t.end_s, axis, look_of(t), tip_of(t)) for t in seen]
    lines, flags = marks(run.moments, axis, bottom)
    says = "Close-up: every task of a few batches"
    return plot(bottom, shapes + lines, words + flags + times(axis), says=says, left="names")


def close_window(run: RunRecord) -> Axis | None:
    """Choose a time span with about `CLOSE_BATCHES` batches and at most `CLOSE_TASKS` tasks."""
    if not run.tasks:
        return None
    centre_s = run.moments[0].at_s if run.moments else run.end_s / 2
    per_batch_s = run.end_s / max(1, len(run.waits))
    per_task_s = run.end_s / len(run.tasks)
    span_s = min(run.end_s, CLOSE_BATCHES * per_batch_s, CLOSE_TASKS * per_task_s)
    low_s = min(max(0.0, centre_s - span_s / 2), run.end_s - span_s)
    return Axis(low_s, low_s + span_s)


def look_of(task: WorkSpan) -> str:
    if task.kind == "collate":
        return "collate"
    return "task even" if task.batch % 2 == 0 else "task odd"


def tip_of(task: WorkSpan) -> str:
    took = svg.in_time(task.end_s - task.start_s)
    samples = "1 sample" if task.samples == 1 else f"{task.samples} samples"
    return f"{task.kind}: {samples} of batch {task.batch}, epoch {task.epoch}, {took}"


# ---- parts


def names(workers: Sequence[str]) -> list[str]:
    """Label each row on its left."""
    rows = ("training", *workers)
    return [word(name, "row", y=row_y(row) + ROW / 2) for row, name in enumerate(rows)]


def base(row: int) -> str:
    return svg.rect(0, row_y(row), WIDTH, ROW, "base")


def block(row: int, start_s: float, end_s: float, axis: Axis, look: str, tip: str) -> str:
    x = axis.x(start_s)
    width = axis.x(end_s) - x
    # Leave a thin gap between neighbours that are wide enough; keep short ones visible.
    return svg.rect(x, row_y(row), width - 0.8 if width > 2.5 else max(width, 1.0), ROW, look, tip=tip)


def shaded(
    row: int, shares: Sequence[float], edges: Sequence[float], axis: Axis, look: str, verb: str
) -> list[str]:
    """Draw one rectangle for each run of columns with equal shade."""
    parts = []
    start = 0
    levels = [round(share * SHADES) for share in shares]
    for at in range(1, len(levels) + 1):
        if at < len(levels) and levels[at] == levels[start]:
            continue
        if levels[start]:
            x, share = axis.x(edges[start]), sum(shares[start:at]) / (at - start)
            tip = f"{svg.in_time(edges[start])} to {svg.in_time(edges[at])}: {verb} {share:.0%} of the time"
            opacity = 0.12 + 0.88 * levels[start] / SHADES
            parts.append(
                svg.rect(x, row_y(row), axis.x(edges[at]) - x, ROW, look, tip=tip, fill_opacity=opacity)
            )
        start = at
    return parts


def marks(moments: Sequence[Moment], axis: Axis, bottom: float) -> tuple[list[str], list[str]]:
    """Draw a line for each lost worker, with its number in the list below."""
    lines, flags = [], []
    for at, moment in enumerate(moments[:20], 1):
        if axis.low_s <= moment.at_s <= axis.high_s:
            x = axis.x(moment.at_s)
            lines.append(svg.line(x, FLAGS - 6, x, bottom, "fault"))
            flags.append(word(str(at), "flag", x=x, y=8, tip=moment.what))
    return lines, flags


def most_ready(run: RunRecord) -> int:
    return max((ready.batches for ready in run.ready), default=0)


def ready_row(run: RunRecord, axis: Axis, y: float) -> str:
    """Draw the ready batches as steps."""
    most = most_ready(run)
    floor, height = y + 2 * ROW - 4, 2 * ROW - 10
    points = [(axis.x(run.ready[0].at_s), floor)]
    level = floor
    shown = run.ready[:: max(1, len(run.ready) // (2 * COLUMNS))]
    for at_s, count in shown:
        x = axis.x(at_s)
        points.append((x, level))
        level = floor - height * count / most
        points.append((x, level))
    points += [(WIDTH, level), (WIDTH, floor)]
    return svg.path(points, "ready", closed=True) + svg.line(0, floor, WIDTH, floor, "grid")


def times(axis: Axis) -> list[str]:
    return x_axis((axis.x(at_s), f"{svg.number(at_s)} s") for at_s in svg.ticks(axis.low_s, axis.high_s, 8))
