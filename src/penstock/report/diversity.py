"""Draw how diverse samples stay when used several times: Figure 4 of Revamper, for one chain."""

from __future__ import annotations

import math
from collections.abc import Sequence

from penstock.policy.diversity import LARGE, diversity
from penstock.policy.split import Split, Terms
from penstock.report import svg

MOST_TIMES = 10
ROWS = 10
"""Steps of log|A_F| / log|A| from 0 to 1."""
LEFT, TOP, CELL_W, CELL_H, NAMES_W = 52.0, 54.0, 46.0, 26.0, 240.0
STYLE = (
    "text{font:12px sans-serif;fill:#1d1f22}text.small{font-size:11px;fill:#62676f}text.light{font-size:11px;fill:#fff}"
    "text.dark{font-size:11px;fill:#12365f}.ground{fill:#fff}.cell{fill:#2a78d6}"
    ".split{stroke:#df7224;stroke-width:2}.limit{stroke:#1d1f22;stroke-width:2;stroke-dasharray:3 2}"
    ".times{fill:none;stroke:#1d1f22;stroke-width:1.5}"
)


def figure(splits: Sequence[Split], outcomes: int, terms: Terms, taken: int | None) -> str:
    """Draw normalised diversity over `times` (across) and log|A_F| / log|A| (upwards), with the chain's splits at the right."""
    width = LEFT + MOST_TIMES * CELL_W + NAMES_W
    floor = TOP + (ROWS + 1) * CELL_H
    parts = [f"<style>{STYLE}</style>", svg.rect(0, 0, width, floor + 44, "ground")]
    of = f"{terms.epochs} epochs, {said(outcomes)}"
    parts.append(svg.text(LEFT, 20, f"Different samples, as a share of standard augmentation's: {of}"))
    parts.append(svg.text(LEFT, 40, "log|A_F| / log|A| (upwards) over the uses of each kept sample", "small"))
    for row in range(ROWS + 1):
        parts += cells(row, outcomes, terms)
    for times in range(1, MOST_TIMES + 1):
        middle = LEFT + (times - 0.5) * CELL_W
        parts.append(svg.text(middle, floor + 16, str(times), "small", anchor="middle"))
    parts.append(svg.text(LEFT, floor + 34, "uses of each kept sample (r)", "small"))
    if terms.times <= MOST_TIMES:
        box = (LEFT + (terms.times - 1) * CELL_W, TOP, CELL_W, floor - TOP)
        parts.append(svg.rect(*box, "times", tip=f"times = {terms.times}"))
    parts += marks(splits, terms, taken)
    return svg.picture(
        width, floor + 44, parts, says="Diversity over the number of uses and the share of the final part"
    )


def cells(row: int, outcomes: int, terms: Terms) -> list[str]:
    """Draw one row: one share of log|A|, for every number of uses."""
    ratio = row / ROWS
    y = height_of(ratio)
    parts = [svg.text(LEFT - 8, y + 4, f"{ratio:.1f}", "small", anchor="end")]
    for times in range(1, MOST_TIMES + 1):
        x, left = LEFT + (times - 1) * CELL_W, diversity_at(outcomes, ratio, times, terms.epochs)
        tip = f"r = {times}, log|A_F| / log|A| = {ratio:.1f}: {left:.3f}"
        box = (x + 0.5, y - CELL_H / 2 + 0.5, CELL_W - 1, CELL_H - 1)
        look = "light" if left > 0.6 else "dark"
        parts += [
            svg.rect(*box, "cell", tip=tip, fill_opacity=left),
            svg.text(x + CELL_W / 2, y + 4, f"{left:.2f}", look, anchor="middle"),
        ]
    return parts


def marks(splits: Sequence[Split], terms: Terms, taken: int | None) -> list[str]:
    """Mark the chain's splits and the least admissible share beside the map."""
    found = [(terms.min_log_ratio, f"least log ratio, {terms.min_log_ratio:g}", "limit")]
    for split in splits:
        what = f"behind {split.behind}" if split.at else "decoded"
        found.append(
            (split.log_ratio, f"{split.at}: {what}{' (taken)' if split.at == taken else ''}", "split")
        )
    right = LEFT + MOST_TIMES * CELL_W
    parts = []
    labels = placed([height_of(ratio) for ratio, _, _ in found])
    for (ratio, words, look), label in zip(found, labels, strict=True):
        y = height_of(ratio)
        parts.append(svg.line(right + 2, y, right + 14, y, look))
        parts.append(svg.text(right + 20, label + 4, words, "small"))
    return parts


def diversity_at(outcomes: int, ratio: float, times: int, epochs: int) -> float:
    """Return the diversity for a final part with this share of log|A|."""
    size = float(min(outcomes, LARGE))
    final = min(size, max(1.0, math.exp(ratio * math.log(size)))) if ratio < 1 else size
    return diversity(size, final, times, epochs)


def height_of(ratio: float) -> float:
    return TOP + CELL_H / 2 + (1 - ratio) * ROWS * CELL_H


def placed(heights: Sequence[float], least: float = 14.0) -> list[float]:
    """Place labels near their lines without overlap."""
    found = list(heights)
    below = -math.inf
    for at in sorted(range(len(found)), key=lambda at: (found[at], at)):
        found[at] = below = max(found[at], below + least)
    return found


def said(outcomes: int) -> str:
    return f"|A| = {outcomes:,}" if outcomes < 10**9 else f"|A| = 10^{math.log10(outcomes):.1f}"
