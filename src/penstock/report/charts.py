"""Pictures of numbers: how long the waits were, throughput over time, and loaders side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from penstock.report import svg
from penstock.report.reading import Run, percentile

WIDTH, HEIGHT = 490.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 482.0, 40.0, 206.0
SHORTEST_S = 1e-5
"""Waits below this are drawn as this: the batch was there."""
PER_DECADE = 6
BINS = 60
"""Stretches that throughput over time is drawn in."""
PERCENTILES = ((0.5, "median"), (0.9, "p90"), (0.99, "p99"))


def wait_histogram(run: Run) -> str:
    """How many batches were waited for how long; the time axis is logarithmic."""
    took = [max(SHORTEST_S, wait.took_s) for wait in run.waits]
    low = math.floor(math.log10(min(took)) + 1e-9)
    high = max(low + 1, math.ceil(math.log10(max(took)) + 1e-9))
    counts = [0] * ((high - low) * PER_DECADE)
    for value in took:
        counts[min(len(counts) - 1, int((math.log10(value) - low) * PER_DECADE))] += 1
    most = max(counts)

    def x(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * (math.log10(value) - low) / (high - low)

    parts = count_grid(most)
    bar = (RIGHT - LEFT) / len(counts)
    for at, count in enumerate(counts):
        if count:
            begin, end = (10 ** (low + (at + step) / PER_DECADE) for step in (0, 1))
            tip = f"{count} of {len(took)} batches: {svg.in_time(begin)} to {svg.in_time(end)}"
            height = (BOTTOM - TOP) * count / most
            parts.append(svg.rect(LEFT + at * bar + 1, BOTTOM - height, bar - 2, height, "wait", tip=tip))
    for power in range(low, high + 1):
        place = x(10.0**power)
        anchor = "start" if power == low else "end" if power == high else "middle"
        parts += [
            svg.line(place, BOTTOM, place, BOTTOM + 4, "grid"),
            svg.text(place, BOTTOM + 17, svg.in_time(10.0**power), "small", anchor=anchor),
        ]
    parts += percentile_marks([(label, percentile(took, share)) for share, label in PERCENTILES], x)
    parts.append(svg.text(LEFT, HEIGHT - 2, "wait for one batch", "small"))
    return svg.picture(
        WIDTH, HEIGHT, parts, says=f"Histogram of {len(took)} waits, median {svg.in_time(median(took))}"
    )


def percentile_marks(found: Sequence[tuple[str, float]], x: Callable[[float], float]) -> list[str]:
    """Dashed lines; each label on a height of its own, so that neighbours do not meet."""
    parts = []
    for at, (label, value) in enumerate(found):
        place = x(value)
        y = TOP - 34 + 12 * at
        anchor = "end" if place > RIGHT - 60 else "start"
        shift = -4 if anchor == "end" else 4
        parts += [
            svg.line(place, y, place, BOTTOM, "mark"),
            svg.text(place + shift, y + 4, f"{label} {svg.in_time(value)}", "small", anchor=anchor),
        ]
    return parts


def count_grid(most: int) -> list[str]:
    parts = []
    for count in svg.ticks(0, most, 4):
        if count == int(count):
            y = BOTTOM - (BOTTOM - TOP) * count / most
            parts += [
                svg.line(LEFT, y, RIGHT, y, "grid"),
                svg.text(LEFT - 6, y + 4, f"{count:.0f}", "small", anchor="end"),
            ]
    return parts


def wait_sequence(run: Run) -> str:
    """The waits in the order of the batches; of a long run, the longest of each stretch."""
    took = [wait.took_s for wait in run.waits]
    stretch = max(1, math.ceil(len(took) / 120))
    bars = [max(took[at : at + stretch]) for at in range(0, len(took), stretch)]
    top_s = max(bars) or 1e-6
    parts = []
    for value in svg.ticks(0, top_s, 6):
        y = BOTTOM - (BOTTOM - TOP) * value / top_s
        parts += [
            svg.line(LEFT, y, RIGHT, y, "grid"),
            svg.text(LEFT - 6, y + 4, svg.in_time(value) if value else "0", "small", anchor="end"),
        ]
    width = (RIGHT - LEFT) / len(bars)
    for at, value in enumerate(bars):
        first = at * stretch
        which = (
            f"batch {first}"
            if stretch == 1
            else f"longest of batches {first} to {min(len(took), first + stretch) - 1}"
        )
        height = (BOTTOM - TOP) * value / top_s
        parts.append(
            svg.rect(
                LEFT + at * width,
                BOTTOM - height,
                max(0.6, width - min(1.5, width * 0.25)),
                height,
                "wait",
                tip=f"{which}: {svg.in_time(value)}",
            )
        )
    last = len(took) - 1
    parts += [
        svg.text(LEFT, BOTTOM + 17, "batch 0", "small"),
        svg.text(RIGHT, BOTTOM + 17, str(last), "small", anchor="end"),
        svg.text(
            LEFT, HEIGHT - 2, "each batch" if stretch == 1 else f"longest of every {stretch} batches", "small"
        ),
    ]
    return svg.picture(WIDTH, HEIGHT, parts, says=f"Waits of {len(took)} batches in order")


def throughput(run: Run) -> str:
    """Samples per second over the run: stretches of equally many batches, each over the time it took."""
    end_s = run.waits[-1].end_s or 1.0
    width, height, left, right, ceiling, floor = 1000.0, 150.0, 84.0, 990.0, 16.0, 122.0
    stretch = max(1, math.ceil(len(run.waits) / BINS))
    steps: list[tuple[float, float, float]] = []
    begin_s = 0.0
    for at in range(0, len(run.waits), stretch):
        waits = run.waits[at : at + stretch]
        took_s = max(1e-6, waits[-1].end_s - begin_s)
        steps.append((begin_s, waits[-1].end_s, sum(wait.samples for wait in waits) / took_s))
        begin_s = waits[-1].end_s
    mean = sum(wait.samples for wait in run.waits) / end_s
    # Batches that lay ready are taken at once: such a peak says nothing and would flatten the rest.
    top = min(max(rate for _, _, rate in steps), 3 * mean) or 1.0

    def x(at_s: float) -> float:
        return left + (right - left) * at_s / end_s

    def y(rate: float) -> float:
        return floor - (floor - ceiling) * min(1.0, rate / top)

    parts = []
    for rate in svg.ticks(0, top, 4):
        parts += [
            svg.line(left, y(rate), right, y(rate), "grid"),
            svg.text(left - 10, y(rate) + 4, svg.thousands(rate), "small", anchor="end"),
        ]
    line = [point for begin, end, rate in steps for point in ((x(begin), y(rate)), (x(end), y(rate)))]
    parts += [
        svg.path([(left, floor), *line, (right, floor)], "flow", closed=True),
        svg.path(line, "flow-line"),
        svg.line(left, y(mean), right, y(mean), "mark"),
        svg.text(right, y(mean) - 5, f"mean {svg.thousands(mean)} samples/s", "halo", anchor="end"),
    ]
    for at_s in svg.ticks(0, end_s, 8):
        anchor = "end" if x(at_s) > right - 20 else "middle"
        parts.append(svg.text(x(at_s), floor + 17, f"{svg.number(at_s)} s", "small", anchor=anchor))
    says = f"Throughput over time, mean {svg.thousands(mean)} samples per second"
    return svg.picture(width, height, parts, says=says)


def side_by_side(rates: Mapping[str, Sequence[float]]) -> str:
    """Every round of every loader as a dot, its median as a bar; the axis starts at 0."""
    top = (
        max((max(rounds) for rounds in rates.values() if rounds), default=1.0) * 1.3
    )  # room for words behind the dots
    row, left, right = 46.0, 120.0, 990.0
    floor = 8.0 + row * len(rates)
    parts = []

    def x(rate: float) -> float:
        return left + (right - left) * rate / top

    for rate in svg.ticks(0, top, 8):
        parts += [
            svg.line(x(rate), 4, x(rate), floor, "grid"),
            svg.text(x(rate), floor + 17, svg.thousands(rate), "small", anchor="middle"),
        ]
    for at, (name, rounds) in enumerate(rates.items()):
        y = 8.0 + row * at + row / 2
        parts.append(svg.text(left - 10, y + 4, name, "label", anchor="end"))
        if not rounds:
            continue
        middle = median(rounds)
        look = "task" if at == len(rates) - 1 else "other"
        parts.append(svg.rect(left, y - 11, x(middle) - left, 22, look, rx=2))
        parts += [svg.circle(x(r), y, 3.6, "dot", tip=f"{svg.thousands(r)} samples/s") for r in rounds]
        parts.append(
            svg.text(
                x(max(rounds)) + 10,
                y + 4,
                f"{svg.thousands(middle)}  ({svg.thousands(min(rounds))} to {svg.thousands(max(rounds))})",
                "label",
            )
        )
    parts.append(svg.text(right, floor + 34, "samples per second", "small", anchor="end"))
    return svg.picture(1000.0, floor + 40, parts, says="Throughput of the loaders side by side")
