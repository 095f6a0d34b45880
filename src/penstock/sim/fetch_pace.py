"""How fast a group trains when batches must be fetched: steps in lockstep, pools that fetch ahead.

Step i begins when step i - 1 has ended on all ranks and the batches of step i have arrived everywhere. A pool fetches in the order of deadlines, which
are steps: all batches of step i before any of step i + 1. It may fetch step i once step i - `ahead` begins. A pool serves one rank, or all ranks of a
node with the sum of their rates. Links (to peers, to the source) work beside each other, each with pools of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
UNEVEN = 1.05
"""A step is uneven if its slowest rank takes longer than the mean by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the steps took."""

    step_s: float
    """Mean time of a step."""
    ideal_s: float
    """Mean time of a step if fetching were spread evenly over ranks and steps."""
    uneven: float
    """Share of steps that are uneven."""

    @property
    def over_ideal(self) -> float:
        return self.step_s / self.ideal_s


def pace(links: Sequence[Floats], *, train_s: float, ahead: int, pool_ranks: int) -> Pace:
    """Play steps.

    `links[link][step, rank]`: seconds that one rank's share of its node's rate on that link needs for the batch.
    """
    fetch_s = np.stack(links)
    _, steps, ranks = fetch_s.shape
    pools = fetch_s.reshape(len(links), steps, ranks // pool_ranks, pool_ranks).mean(axis=3)
    arrived = np.zeros((len(links), ranks // pool_ranks))
    begun = np.zeros(steps)
    ended, uneven = 0.0, 0
    start = min(ahead, steps - 1)  # until then, batches are waited for that a training waits for once
    for step in range(steps):
        opened = begun[step - ahead] if step >= ahead else 0.0
        arrived = np.maximum(arrived, opened) + pools[:, step]
        took = np.maximum(arrived.max(axis=0), ended) + train_s - ended
        uneven += step >= start and bool(took.max() > UNEVEN * took.mean())
        begun[step] = max(ended, arrived.max())
        ended = begun[step] + train_s
    return Pace(
        step_s=float(ended - begun[start]) / (steps - start),
        ideal_s=max(train_s, float(fetch_s.mean(axis=(1, 2)).max())),
        uneven=uneven / (steps - start),
    )
