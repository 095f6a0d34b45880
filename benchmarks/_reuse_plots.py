"""Pictures of the benchmarks of reuse, as SVG: lines over epochs and batches, and bars with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.report import svg

WIDTH, LEFT, RIGHT, HEIGHT, GAP = 860.0, 70.0, 830.0, 150.0, 62.0
STYLE = """<style>
svg { background: #fff; } text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1d1f22; }
text.small { font-size: 11px; fill: #62676f; } text.title { font-weight: 600; } .grid { stroke: #e2e3e5; } .ideal, .spread { stroke: #1d1f22; }
.series-0, .series-1, .series-2 { fill: none; stroke-width: 1.6; } .series-0 { stroke: #2a78d6; } .series-1 { stroke: #df7224; } .series-2 { stroke: #8a8f98; }
.bar { fill: #2a78d6; } .peer { fill: #a3a9b1; }
</style>"""


class Panel(NamedTuple):
    title: str
    lines: Mapping[str, Sequence[float]]
    """The values of each subject, one after the other."""


def policies_picture(
    rows: Mapping[str, Mapping[str, Any]], work_s: Mapping[str, Sequence[float]], times: int
) -> str:
    """Figures 7 and 8 of the paper, and the work that follows from them."""
    per_epoch = {name: row["misses_per_epoch"] for name, row in rows.items()}
    per_batch = {name: row["misses_in_the_last_epoch"] for name, row in rows.items() if name != "naive"}
    panels = [
        Panel(f"Samples made anew in each epoch (each kept one used {times} times)", per_epoch),
        Panel("Samples made anew in each batch of the last epoch", per_batch),
        Panel(f"Work of each batch, in seconds of one core, epochs 1 to {times + 1}", work_s),
    ]
    return stacked(panels, list(rows), says="Misses and work, by policy")


def stacked(panels: Sequence[Panel], names: Sequence[str], *, says: str) -> str:
    """Panels under each other, and what their lines are."""
    parts, y = [STYLE], 14.0
    for panel in panels:
        parts += drawn(panel, names, y)
        y += HEIGHT + GAP
    for at, name in enumerate(names):
        x = LEFT + 150 * at
        parts += [svg.line(x, y, x + 24, y, f"series-{at}"), svg.text(x + 30, y + 4, name)]
    return svg.picture(WIDTH, y + 16, parts, says=says)


def drawn(panel: Panel, names: Sequence[str], y: float) -> list[str]:
    top = max(max(values) for values in panel.lines.values()) * 1.05 or 1.0
    count = max(len(values) for values in panel.lines.values())
    ceiling, floor = y + 14, y + 14 + HEIGHT

    def place(number: float, value: float) -> tuple[float, float]:
        return LEFT + (RIGHT - LEFT) * number / max(1, count - 1), floor - (floor - ceiling) * value / top

    parts = [svg.text(12, y, panel.title, "title")]
    for tick in svg.ticks(0, top, 4):
        height = place(0, tick)[1]
        parts.append(svg.line(LEFT, height, RIGHT, height, "grid"))
        parts.append(svg.text(LEFT - 6, height + 4, f"{tick:,.10g}", "small", anchor="end"))
    parts += [
        svg.text(place(tick, 0)[0], floor + 14, f"{tick:,.0f}", "small", anchor="middle")
        for tick in svg.ticks(0, count - 1, 10)
        if tick == int(tick)
    ]

    def goes_first(name: str) -> tuple[float, int]:
        """What varies most, and of equals the last: so that they do not hide the others."""
        return min(panel.lines[name]) - max(panel.lines[name]), -names.index(name)

    for name in sorted(panel.lines, key=goes_first):
        points = [place(number, float(value)) for number, value in enumerate(panel.lines[name])]
        parts.append(svg.path(points, f"series-{names.index(name)}"))
    return parts


def sweep_picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """Figure 12 of the paper, without its accuracy: throughput by the number of layers that are drawn anew, and diversity in its place."""
    shown = {"none is kept": [row for row in rows if row["times"] == 1]}
    for split in sorted({row["split"] for row in rows if row["times"] > 1}, reverse=True):
        layers = 5 - int(split)
        name = f"{layers} layer{'s' if layers > 1 else ''} drawn anew"
        shown[name] = [row for row in rows if row["times"] > 1 and row["split"] == split]
    shown = {name: found for name, found in shown.items() if found}
    top = max(row["images_per_s"] for found in shown.values() for row in found) * 1.15
    left, right, bar, gap = 190.0, 700.0, 22.0, 14.0

    def across(rate: float) -> float:
        return left + (right - left) * rate / top

    floor = 34 + len(shown) * (bar + gap)
    parts = [
        STYLE,
        svg.text(12, 16, "Images per second (median, spread); three layers of RandAugment", "title"),
    ]
    for tick in svg.ticks(0, top, 6):
        parts.append(svg.line(across(tick), 30, across(tick), floor, "grid"))
        parts.append(svg.text(across(tick), floor + 14, f"{tick:,.0f}", "small", anchor="middle"))
    for at, (name, found) in enumerate(shown.items()):
        y = 34 + at * (bar + gap)
        rates = [row["images_per_s"] for row in found]
        said = [f"{statistics.median(rates):,.0f}"]
        if "ideal" in found[0]:
            said += [
                f"{statistics.median(row['ideal'] for row in found):.2f} times standard at best",
                f"diversity {found[0]['diversity']:.2f}",
            ]
        parts += [
            svg.text(left - 8, y + bar / 2 + 4, name, anchor="end"),
            svg.rect(left, y, across(statistics.median(rates)) - left, bar, "peer" if at == 0 else "bar"),
            svg.line(across(min(rates)), y + bar / 2, across(max(rates)), y + bar / 2, "spread"),
            svg.text(across(max(rates)) + 6, y + bar / 2 + 4, ", ".join(said), "small"),
        ]
    return svg.picture(WIDTH + 60, floor + 24, parts, says="Throughput by layers that are drawn anew")
