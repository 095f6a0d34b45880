"""What `scripts/bench gpu` found, as SVG pictures: bars with their spread, and images/s over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from _gpu_plan import SUBJECTS
from _gpu_report import Cell, Line, cell_of, limits, runs_of, summarised, title_of
from _gpu_rows import Row

from penstock.report import svg

WIDTH, LEFT, RIGHT = 860.0, 280.0, 770.0
BAR, GAP, HEAD = 18.0, 6.0, 30.0
STYLE = """<style>
svg { background: #fff; } text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1d1f22; }
text.small { font-size: 11px; fill: #62676f; } text.title { font-weight: 600; }
.ours { fill: #2a78d6; } .peer { fill: #a3a9b1; } .grid { stroke: #e2e3e5; } .limit, .change { stroke: #c3362b; stroke-dasharray: 4 3; }
.spread { stroke: #1d1f22; } .series-0, .series-1 { fill: none; stroke-width: 1.8; } .series-0 { stroke: #2a78d6; } .series-1 { stroke: #df7224; }
</style>"""


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """One picture for each model of a part, and for each training with changing workers."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, str] = {}
    for name, cells in bar_pictures(rows).items():
        drawn[name] = bars(cells, limits(rows), says=name)
    for cell in summarised(rows):
        if cell[0] == "workers" and (picture := over_time(cell, rows)):
            drawn[f"workers-{cell[2]}"] = picture
    paths = []
    for name, picture in drawn.items():
        paths.append(folder / f"gpu-{name}.svg")
        paths[-1].write_text(picture, encoding="utf-8")
    return paths


def bar_pictures(rows: Sequence[Row]) -> dict[str, list[tuple[Cell, list[Line]]]]:
    found: dict[str, list[tuple[Cell, list[Line]]]] = {}
    for cell, lines in summarised(rows).items():
        shown = [line for line in lines if line.spread("images_per_s") and line.subject != "limit"]
        if cell[0] in ("main", "ablation", "reuse") and shown:
            name = "-".join(word for word in (cell[0], cell[1], cell[2]) if word)
            found.setdefault(name, []).append((cell, shown))
    return found


def bars(
    cells: Sequence[tuple[Cell, Sequence[Line]]], ceiling: dict[tuple[str, int], float], *, says: str
) -> str:
    """Panels under each other with one scale; a bar is the median, its line the spread, the dashed line the limit."""
    tops = [found[2] for _, lines in cells for line in lines if (found := line.spread("images_per_s"))]
    top = max([*tops, *(ceiling.get(cell[2:4], 0.0) for cell, _ in cells)]) * 1.02

    def x(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * value / top

    parts, y = [STYLE], 8.0
    for cell, lines in cells:
        limit = ceiling.get(cell[2:4])
        said = f"{title_of(cell)}{f': limit {limit:,.0f} images/s' if limit else ''}"
        parts.append(svg.text(12, y + 16, said, "title"))
        y += HEAD
        bottom = y + len(lines) * (BAR + GAP)
        for tick in svg.ticks(0, top, 6):
            parts.append(svg.line(x(tick), y - 2, x(tick), bottom, "grid"))
            parts.append(svg.text(x(tick), bottom + 11, f"{tick:,.0f}", "small", anchor="middle"))
        for line in lines:
            parts += bar(line, y, x)
            y += BAR + GAP
        if limit:
            parts.append(svg.line(x(limit), bottom - len(lines) * (BAR + GAP) - 2, x(limit), bottom, "limit"))
        y = bottom + 22
    return svg.picture(WIDTH, y, parts, says=f"Images per second, {says}")


def bar(line: Line, y: float, x: Callable[[float], float]) -> list[str]:
    found = line.spread("images_per_s")
    assert found is not None
    median, low, high = found
    subject, middle = SUBJECTS[line.subject], y + BAR / 2
    share = "" if line.of_limit is None else f" ({line.of_limit:.2f})"
    return [
        svg.text(LEFT - 8, middle + 4, subject.title, anchor="end"),
        svg.rect(LEFT, y, x(median) - LEFT, BAR, "ours" if subject.kind == "ours" else "peer"),
        svg.line(x(low), middle, x(high), middle, "spread"),
        svg.text(x(high) + 5, middle + 4, f"{median:,.0f}{share}", "small"),
    ]


def over_time(cell: Cell, rows: Sequence[Row]) -> str:
    """Images/s of each subject's first run; changes of the number of workers as dashed lines."""
    here = [row for row in rows if cell_of(row) == cell and "rates" in row]
    names = [name for name in SUBJECTS if any(row["subject"] == name for row in here)][:2]
    runs = [runs_of(cell, name, here)[0] for name in names]
    if not runs:
        return ""
    left, right, ceiling, floor, height = 70.0, 840.0, 60.0, 300.0, 340.0
    top = max(max(run["rates"]) for run in runs) * 1.05 or 1.0
    end = max(len(run["rates"]) * run["bin_s"] for run in runs)

    def place(at_s: float, rate: float) -> tuple[float, float]:
        return left + (right - left) * at_s / end, floor - (floor - ceiling) * rate / top

    parts = [STYLE, svg.text(12, 20, title_of(cell).rpartition(",")[0] + ": images/s", "title")]
    for tick in svg.ticks(0, top, 6):
        y = place(0, tick)[1]
        parts.append(svg.line(left, y, right, y, "grid"))
        parts.append(svg.text(left - 6, y + 4, f"{tick:,.0f}", "small", anchor="end"))
    parts += [
        svg.text(place(tick, 0)[0], floor + 16, f"{tick:g} s", "small", anchor="middle")
        for tick in svg.ticks(0, end, 10)
    ]
    for change in runs[0]["changes"]:
        x = place(change["at_s"], 0)[0]
        parts.append(svg.line(x, ceiling - 8, x, floor, "change"))
        parts.append(svg.text(x + 4, ceiling - 10, f"{change['workers']} workers", "small"))
    for at, (name, run) in enumerate(zip(names, runs, strict=True)):
        points = [place((bin_ + 0.5) * run["bin_s"], rate) for bin_, rate in enumerate(run["rates"])]
        parts.append(svg.path(points, f"series-{at}"))
        parts.append(svg.line(left + 300 * at, height - 8, left + 300 * at + 24, height - 8, f"series-{at}"))
        parts.append(svg.text(left + 300 * at + 30, height - 4, SUBJECTS[name].title))
    return svg.picture(WIDTH, height + 4, parts, says="Images per second while the number of workers changes")
