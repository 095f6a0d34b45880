"""Charts of waiting times and of throughput over time."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median

from penstock.report import svg
from penstock.report.reading import RunRecord
from penstock.report.svg import WIDTH, plot, word, x_axis

HEIGHT = 150.0
TOP = 8.0
"""Space above the largest value."""
SHORTEST_S = 1e-5
"""Shorter waits are drawn as this: the batch was ready."""
PER_DECADE = 6
BINS = 60
"""Intervals of the throughput chart."""


def scale(top: float) -> Callable[[float], float]:
    """Map a value to its height on the page."""
    return lambda value: HEIGHT - (HEIGHT - TOP) * min(1.0, value / top)


def grid(
    values: list[float], y: Callable[[float], float], write: Callable[[float], str]
) -> tuple[list[str], list[str]]:
    """Return horizontal grid lines and their labels."""
    lines = [svg.line(0, y(value), WIDTH, y(value), "grid") for value in values]
    return lines, [word(write(value), "y", y=y(value)) for value in values]


def wait_histogram(run: RunRecord) -> str:
    """Draw a histogram of waiting times; the time axis is logarithmic."""
    took = [max(SHORTEST_S, wait.took_s) for wait in run.waits]
    low = math.floor(math.log10(min(took)) + 1e-9)
    high = max(low + 1, math.ceil(math.log10(max(took)) + 1e-9))
    counts = [0] * ((high - low) * PER_DECADE)
    for value in took:
        counts[min(len(counts) - 1, int((math.log10(value) - low) * PER_DECADE))] += 1
    most = max(counts)
    y = scale(most)
    whole = [count for count in svg.ticks(0, most, 4) if count == int(count)]
    shapes, words = grid(whole, y, lambda count: f"{count:.0f}")
    bar = WIDTH / len(counts)
    for at, count in enumerate(counts):
        if count:
            begin, end = (10 ** (low + (at + step) / PER_DECADE) for step in (0, 1))
            tip = f"{count} of {len(took)} batches: {svg.in_time(begin)} to {svg.in_time(end)}"
            shapes.append(svg.rect(at * bar + 2, y(count), bar - 4, HEIGHT - y(count), "wait", tip=tip))
    decades = [
        (WIDTH * (power - low) / (high - low), svg.in_time(10.0**power)) for power in range(low, high + 1)
    ]
    says = f"Histogram of {len(took)} waits, median {svg.in_time(median(took))}"
    return plot(HEIGHT, shapes, words + x_axis(decades), says=says)


def wait_sequence(run: RunRecord) -> str:
    """Draw the waits in batch order; in a long run each bar is the longest of several."""
    took = [wait.took_s for wait in run.waits]
    stretch = sequence_stretch(run)
    bars = [max(took[at : at + stretch]) for at in range(0, len(took), stretch)]
    top_s = max(bars) or 1e-6
    y = scale(top_s)
    shapes, words = grid(svg.ticks(0, top_s, 4), y, lambda value: svg.in_time(value) if value else "0")
    width = WIDTH / len(bars)
    for at, value in enumerate(bars):
        first, last = at * stretch, min(len(took), (at + 1) * stretch) - 1
        which = f"batch {first}" if stretch == 1 else f"longest of batches {first} to {last}"
        x, wide, tip = at * width, max(1.0, width * 0.8), f"{which}: {svg.in_time(value)}"
        shapes.append(svg.rect(x, y(value), wide, HEIGHT - y(value), "wait", tip=tip))
    ends = [(0.0, "batch 0"), *([(WIDTH, str(len(took) - 1))] if len(took) > 1 else [])]
    words += [word(text, f"x {'first' if x == 0 else 'last'}", x=x) for x, text in ends]
    return plot(HEIGHT, shapes, words, says=f"Waits of {len(took)} batches in order")


def sequence_stretch(run: RunRecord) -> int:
    """Return the number of batches per bar of `wait_sequence`."""
    return max(1, math.ceil(len(run.waits) / 120))


def mean_rate(run: RunRecord) -> float:
    return sum(wait.samples for wait in run.waits) / (run.waits[-1].end_s or 1.0)


def throughput(run: RunRecord) -> str:
    """Draw samples per second over the run, in intervals of equally many batches."""
    end_s = run.waits[-1].end_s or 1.0
    stretch = max(1, math.ceil(len(run.waits) / BINS))
    steps: list[tuple[float, float, float]] = []
    begin_s = 0.0
    for at in range(0, len(run.waits), stretch):
        waits = run.waits[at : at + stretch]
        took_s = max(1e-6, waits[-1].end_s - begin_s)
        steps.append((begin_s, waits[-1].end_s, sum(wait.samples for wait in waits) / took_s))
        begin_s = waits[-1].end_s
    mean = mean_rate(run)
    # Ready batches are taken at once: such a peak says nothing and would flatten the rest.
    top = min(max(rate for _, _, rate in steps), 3 * mean) or 1.0
    y = scale(top)

    def x(at_s: float) -> float:
        return WIDTH * at_s / end_s

    shapes, words = grid(svg.ticks(0, top, 4), y, svg.thousands)
    line = [point for begin, end, rate in steps for point in ((x(begin), y(rate)), (x(end), y(rate)))]
    shapes += [
        svg.path([(0, HEIGHT), *line, (WIDTH, HEIGHT)], "flow", closed=True),
        svg.path(line, "flow-line"),
        svg.line(0, y(mean), WIDTH, y(mean), "mark"),
    ]
    words += x_axis((x(at_s), f"{svg.number(at_s)} s") for at_s in svg.ticks(0, end_s, 8))
    says = f"Throughput over time, mean {svg.thousands(mean)} samples per second"
    return plot(HEIGHT, shapes, words, says=says)
