"""Where a cached dataset's next uses come from: the plan, if the order is ours; else the batches that were asked for."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock.cache.join_facts import GroupPlan
from penstock.plan.next_use import SampleOrder, UsePlan, UseWindow

Ints = NDArray[np.int64]
GOES_ON = 1 << 30
"""Epochs of a training: nobody knows when it ends."""
LOOK_AHEAD = 8
PAPERS_LOOK_AHEAD = 2


class PlannedUses:
    """Of an order of ours: known for all epochs."""

    def __init__(self, plan: GroupPlan, samples: int, look_ahead: int) -> None:
        self._node = plan.node
        gpus = plan.owners.gpus

        @lru_cache(maxsize=LOOK_AHEAD + 1)
        def order(epoch: int) -> SampleOrder:
            return EpochOrder(plan, samples, epoch)

        self._plan = UsePlan(
            length=samples,
            batch_size=plan.batch_size,
            nodes=max(1, plan.world // gpus),
            gpus=gpus,
            order=order,
            epochs=GOES_ON,
            look_ahead=look_ahead,
        )

    def add(self, step: int, samples: Ints) -> None:
        """Nothing new: the plan knows."""

    def next_use(self, samples: Ints, after: int) -> Ints:
        return self._plan.next_use(samples, self._node, after)


class EpochOrder:
    """An epoch's order, to be looked up and inverted."""

    def __init__(self, plan: GroupPlan, samples: int, epoch: int) -> None:
        self._epoch = plan.epoch(epoch, samples)

    def __call__(self, positions: Ints, /) -> Ints:
        return self._epoch.keys(positions)

    def inverse(self, samples: Ints, /) -> Ints:
        return self._epoch.find(samples)


def uses_of(plan: GroupPlan, samples: int, policy: str) -> PlannedUses | UseWindow:
    if plan.order == "unknown":
        return UseWindow()
    return PlannedUses(plan, samples, PAPERS_LOOK_AHEAD if policy.startswith("lobster") else LOOK_AHEAD)
