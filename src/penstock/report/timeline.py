"""Who did what, when: a row for the training loop, one per worker, and how many batches lay ready.

The overview shows the whole run in columns of a few pixels, shaded by the share of time that was busy (or waited); the close-up
shows every task of a few batches. Both stay small however long the run was.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from penstock.report import svg
from penstock.report.reading import Moment, Run, Task, coverage

WIDTH = 1000.0
LEFT = 84.0
"""Where the time axis begins: beside the rows' names."""
RIGHT = 990.0
ROW = 22.0
GAP = 6.0
TOP = 26.0
COLUMNS = 300
ROWS = 16
"""Workers drawn; the others are like them."""
CLOSE_TASKS = 320
CLOSE_BATCHES = 10
SHADES = 8


class Axis(NamedTuple):
    """From seconds to the page."""

    low_s: float
    high_s: float

    def x(self, at_s: float) -> float:
        share = (at_s - self.low_s) / max(1e-9, self.high_s - self.low_s)
        return LEFT + (RIGHT - LEFT) * min(1.0, max(0.0, share))

    def shows(self, start_s: float, end_s: float) -> bool:
        return end_s > self.low_s and start_s < self.high_s


def row_y(row: int) -> float:
    """Top of a row; 0 is the training loop, n is worker n - 1."""
    return TOP + row * (ROW + GAP) + (GAP if row else 0.0)


def overview(run: Run) -> str:
    """The whole run."""
    axis = Axis(0.0, run.end_s or 1.0)
    edges = [axis.high_s * i / COLUMNS for i in range(COLUMNS + 1)]
    workers = run.workers[:ROWS]
    bottom = row_y(len(workers)) + ROW
    parts = [row_name(0, "training"), base(0)]
    waited = coverage(((w.start_s, w.end_s) for w in run.waits), edges)
    parts += shaded(0, waited, edges, axis, "wait", "waits")
    for row, name in enumerate(workers):
        busy = coverage(((t.start_s, t.end_s) for t in run.tasks if t.row == row), edges)
        parts += [
            row_name(row + 1, name),
            base(row + 1),
            *shaded(row + 1, busy, edges, axis, "task", "works"),
        ]
    parts += marks(run.moments, axis, bottom)
    if has_ready(run):
        parts.append(ready_row(run, axis, bottom + GAP))
        bottom += GAP + 2 * ROW
    parts.append(time_axis(axis, bottom + 4))
    says = (
        f"Timeline of {svg.in_time(run.end_s)}: when the training loop waited and when each worker was busy"
    )
    return svg.picture(WIDTH, bottom + 26, parts, says=says)


def has_ready(run: Run) -> bool:
    """Whether any batch ever lay ready; a row of zeros is not drawn."""
    return any(ready.batches for ready in run.ready)


def close_up(run: Run) -> str:
    """Every task of a few batches: around the first lost worker, else in the middle of the run."""
    axis = close_window(run)
    if axis is None:
        return ""
    workers = run.workers[:ROWS]
    bottom = row_y(len(workers)) + ROW
    parts = [row_name(0, "training"), base(0)]
    for wait in run.waits:
        if axis.shows(wait.start_s, wait.end_s):
            tip = f"waits {svg.in_time(wait.took_s)} for a batch of {wait.samples}"
            parts.append(block(0, wait.start_s, wait.end_s, axis, "wait", tip))
    for row, name in enumerate(workers):
        seen = [t for t in run.tasks if t.row == row and axis.shows(t.start_s, t.end_s)]
        parts += [row_name(row + 1, name), base(row + 1)]
        parts += [block(row + 1, t.start_s, t.end_s, axis, look_of(t), tip_of(t)) for t in seen]
        parts += batch_numbers(row + 1, seen, axis)
    parts += marks(run.moments, axis, bottom)
    parts.append(time_axis(axis, bottom + 4))
    says = "Close-up: every task of a few batches"
    return svg.picture(WIDTH, bottom + 26, parts, says=says)


def close_window(run: Run) -> Axis | None:
    """A stretch of time with about `CLOSE_BATCHES` batches and at most `CLOSE_TASKS` tasks."""
    if not run.tasks:
        return None
    centre_s = run.moments[0].at_s if run.moments else run.end_s / 2
    per_batch_s = run.end_s / max(1, len(run.waits))
    per_task_s = run.end_s / len(run.tasks)
    span_s = min(run.end_s, CLOSE_BATCHES * per_batch_s, CLOSE_TASKS * per_task_s)
    low_s = min(max(0.0, centre_s - span_s / 2), run.end_s - span_s)
    return Axis(low_s, low_s + span_s)


def look_of(task: Task) -> str:
    if task.kind == "collate":
        return "collate"
    return "task even" if task.batch % 2 == 0 else "task odd"


def tip_of(task: Task) -> str:
    took = svg.in_time(task.end_s - task.start_s)
    samples = "1 sample" if task.samples == 1 else f"{task.samples} samples"
    return f"{task.kind}: {samples} of batch {task.batch}, epoch {task.epoch}, {took}"


def batch_numbers(row: int, tasks: Sequence[Task], axis: Axis) -> list[str]:
    """A batch's number, once for each stretch of a row that works on it, where there is room."""
    parts = []
    for (batch, _), group in groupby(tasks, key=lambda task: (task.batch, task.epoch)):
        stretch = list(group)
        left, right = axis.x(stretch[0].start_s), axis.x(stretch[-1].end_s)
        filled = sum(axis.x(task.end_s) - axis.x(task.start_s) for task in stretch)
        if batch >= 0 and filled > max(8.0 * len(str(batch)) + 4, 0.8 * (right - left)):
            look = f"inside {look_of(stretch[0]).rpartition(' ')[2]}"
            parts.append(
                svg.text((left + right) / 2, row_y(row) + ROW / 2 + 4, str(batch), look, anchor="middle")
            )
    return parts


# ---- parts


def row_name(row: int, name: str) -> str:
    return svg.text(LEFT - 10, row_y(row) + ROW / 2 + 4, name, "label", anchor="end")


def base(row: int) -> str:
    return svg.rect(LEFT, row_y(row), RIGHT - LEFT, ROW, "base")


def block(row: int, start_s: float, end_s: float, axis: Axis, look: str, tip: str) -> str:
    x = axis.x(start_s)
    width = axis.x(end_s) - x
    # A hair of ground between neighbours, as far as they are wide enough to afford it.
    return svg.rect(x, row_y(row), width - 0.8 if width > 2.5 else max(width, 0.3), ROW, look, tip=tip)


def shaded(
    row: int, shares: Sequence[float], edges: Sequence[float], axis: Axis, look: str, verb: str
) -> list[str]:
    """One rectangle for each stretch of columns of equal shade."""
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


def marks(moments: Sequence[Moment], axis: Axis, bottom: float) -> list[str]:
    """A line for each lost worker, numbered as in the list below the picture."""
    parts = []
    for at, moment in enumerate(moments[:20], 1):
        if axis.low_s <= moment.at_s <= axis.high_s:
            x = axis.x(moment.at_s)
            parts += [
                svg.line(x, TOP - 6, x, bottom, "fault"),
                svg.circle(x, TOP - 14, 8, "fault", tip=moment.what),
                svg.text(x, TOP - 10.5, str(at), "inside fault", anchor="middle"),
            ]
    return parts


def ready_row(run: Run, axis: Axis, y: float) -> str:
    """Batches that lay ready, as steps."""
    most = max(r.batches for r in run.ready)
    floor, height = y + 2 * ROW - 4, 2 * ROW - 10
    points = [(axis.x(run.ready[0].at_s), floor)]
    level = floor
    shown = run.ready[:: max(1, len(run.ready) // (2 * COLUMNS))]
    for at_s, count in shown:
        x = axis.x(at_s)
        points.append((x, level))
        level = floor - height * count / most
        points.append((x, level))
    points += [(RIGHT, level), (RIGHT, floor)]
    return "".join(
        [
            svg.text(LEFT - 10, floor - height / 2 + 4, "ready", "label", anchor="end"),
            svg.path(points, "ready", closed=True),
            svg.line(LEFT, floor, RIGHT, floor, "grid"),
            svg.text(RIGHT, floor - height - 2, f"at most {most} batches", "small", anchor="end"),
        ]
    )


def time_axis(axis: Axis, y: float) -> str:
    parts = [svg.line(LEFT, y, RIGHT, y, "grid")]
    for at_s in svg.ticks(axis.low_s, axis.high_s, 8):
        x = axis.x(at_s)
        anchor = "end" if x > RIGHT - 20 else "middle"
        parts += [
            svg.line(x, y, x, y + 4, "grid"),
            svg.text(x, y + 17, seconds(at_s), "small", anchor=anchor),
        ]
    return "".join(parts)


def seconds(at_s: float) -> str:
    return f"{svg.number(at_s)} s"
