"""Trainings that are compared in pairs: their learning rates, and what their accuracies say with 95 % confidence."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

QUANTILES = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
    1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725,
)  # fmt: skip
"""Student's t that 95 % stay below, for 1, 2, ... degrees of freedom; for more the last one, which errs on the safe side."""


def rates_of(steps: int, peak: float, warmup: float = 0.2) -> Iterator[float]:
    """Learning rates: up in a straight line, then down to nothing along a cosine."""
    first = max(1, round(warmup * steps))
    yield from (peak * (step + 1) / first for step in range(first))
    for step in range(steps - first):
        yield peak * 0.5 * (1 + math.cos(math.pi * (step + 1) / (steps - first)))


def upper_bound(losses: Sequence[float]) -> float | None:
    """What the mean of paired losses stays below with 95 % confidence; of one pair nothing can be said."""
    if len(losses) < 2:
        return None
    quantile = QUANTILES[min(len(losses) - 1, len(QUANTILES)) - 1]
    return statistics.fmean(losses) + quantile * statistics.stdev(losses) / math.sqrt(len(losses))


def lower_bound(losses: Sequence[float]) -> float | None:
    """What it stays above."""
    found = upper_bound([-loss for loss in losses])
    return None if found is None else -found
