"""What ranks of one machine have to prepare: how many, how much, at what cost per sample. A function of the seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.policy.deciding import PAUSE_S

Costs = Literal["equal", "photos", "augmented", "chains", "tail"]
PHOTOS_SPREAD = 0.42
"""Of the logarithm of a sample's time: 1,000 photos of ImageNet, decoded and cropped, had 0.38 to 0.44."""
AUGMENTED_SPREAD = 0.47
"""The same after RandAugment on the whole photo."""
OPS, CHEAPEST_TO_DEAREST, DECODE = 14, 52.0, 10.0
"""FusionFlow's ops: the dearest takes 52 times as long as the cheapest. Two of them follow a decode that takes as long as 10 of the cheapest."""
TAIL_SHARE, TAIL_FACTOR = 0.01, 50.0


class RankFault(NamedTuple):
    at_s: float
    what: Literal["manager", "agent"]
    """What ends."""
    for_s: float
    """When it is back."""
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """Ranks of one machine, and their work."""

    seed: int = 0
    ranks: int = 8
    workers: int = 8
    """Of each rank; as many cores in all, if nothing else is said."""
    followed: int = 0
    """Cores whose number the ranks' workers follow, as with num_workers="auto": fewer cores than workers. 0: the user gives the workers."""
    batch_size: int = 64
    steps: int = 60
    window: int = 4
    """Batches asked for ahead."""
    train_s: float = 0.0
    costs: Costs = "photos"
    sample_s: float = 0.0015
    """Mean time of a sample."""
    measured_s: tuple[float, ...] = ()
    """Times of real samples: costs are drawn from these instead."""
    dear: tuple[float, ...] = ()
    """Factor on the samples' time, for the first ranks."""
    crews: int = 1
    """Jobs, each with a barrier of its own; ranks take turns."""
    rule: str = "evened"
    decide_s: float = PAUSE_S
    """Least time between two decisions of the manager."""
    delay_s: float = 0.0002
    """Travel time of a message."""
    start_s: float = 0.05
    """From the decision to start a worker until it is up."""
    lost: float = 0.0
    """Share of the messages between agents and manager that get lost."""
    faults: tuple[RankFault, ...] = ()

    @property
    def cores(self) -> int:
        return self.followed or self.ranks * self.workers

    def samples_s(self) -> NDArray[np.float64]:
        """Return the cost of every sample: [rank, step, ordinal]."""
        rng = np.random.default_rng(self.seed)
        shape = (self.ranks, self.steps, self.batch_size)
        if self.measured_s:
            costs = rng.choice(self.measured_s, shape)
        else:
            costs = relative_costs(self.costs, rng, shape) * self.sample_s
        for rank, factor in enumerate(self.dear):
            costs[rank] *= factor
        return costs


def relative_costs(name: Costs, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw costs whose mean is 1."""
    match name:
        case "equal":
            return np.ones(shape)
        case "photos":
            return log_normal(rng, shape, PHOTOS_SPREAD)
        case "augmented":
            return log_normal(rng, shape, AUGMENTED_SPREAD)
        case "chains":
            ops = np.geomspace(1.0, CHEAPEST_TO_DEAREST, OPS)
            chain = DECODE + ops[rng.integers(OPS, size=shape)] + ops[rng.integers(OPS, size=shape)]
            mean = DECODE + 2.0 * float(ops.mean())
            return log_normal(rng, shape, PHOTOS_SPREAD) * chain / mean
        case "tail":
            dear = np.where(rng.random(shape) < TAIL_SHARE, TAIL_FACTOR, 1.0)
            return log_normal(rng, shape, PHOTOS_SPREAD) * dear / (1.0 + TAIL_SHARE * (TAIL_FACTOR - 1.0))


def log_normal(rng: np.random.Generator, shape: tuple[int, ...], spread: float) -> NDArray[np.float64]:
    return np.exp(spread * rng.standard_normal(shape) - spread * spread / 2)
