"""What ranks are compared with: one pool of workers for the whole machine, and no time lost."""

from __future__ import annotations

import heapq

import numpy as np

from penstock.sim.rank_load import RankLoad


def shared_pool(load: RankLoad) -> list[float]:
    """Return when each step ends if every core takes the next sample of the most urgent step, whosever it is. One job only."""
    costs = load.samples_s()
    free = [0.0] * load.cores
    taken = np.zeros((load.steps, load.ranks))
    ends: list[float] = []
    for step in range(load.steps):
        opened = taken[step - load.window] if step >= load.window else np.zeros(load.ranks)
        ready = np.zeros(load.ranks)
        from_s = np.maximum(opened, free[0])  # nobody waits for a rank that has not asked yet
        for _, ordinal, rank in sorted(
            (from_s[rank], ordinal, rank) for rank in range(load.ranks) for ordinal in range(load.batch_size)
        ):
            end_s = max(free[0], opened[rank]) + costs[rank, step, ordinal]
            heapq.heapreplace(free, end_s)
            ready[rank] = max(ready[rank], end_s)
        taken[step] = np.maximum(ready, ends[-1] if ends else 0.0)
        ends.append(float(taken[step].max()) + load.train_s)
    return ends


def least_step_s(load: RankLoad) -> float:
    """Return the mean time of a step below which nothing can go: all work on all cores, or the training."""
    return max(load.train_s, float(load.samples_s().sum()) / load.cores / load.steps)
