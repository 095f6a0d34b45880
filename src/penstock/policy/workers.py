"""How many workers `num_workers="auto"` means."""

from __future__ import annotations

KEPT_BACK = 3
"""Cores left to a training process with a GPU lane, for the training loop and two stations: the GPU waits when they do. Measured
with 16 cores; on few cores it is at most a quarter."""


def auto_workers(*, affinity: int, quota: float | None, ranks: int, lane: bool = False) -> int:
    """Return a rank's share of the cores that so many ranks may use, at least one.

    A training process without a GPU lane needs little CPU, so no core is kept back for it.
    """
    cores = affinity if quota is None else min(affinity, max(1, int(quota)))
    share = cores // max(1, ranks)
    return max(1, share - min(KEPT_BACK, share // 4) if lane else share)


def arena_limit(*, memory_bytes: int, local_world: int) -> int:
    """Return the shared memory one rank's batches may occupy: a quarter of what the node's ranks share."""
    return memory_bytes // 4 // max(1, local_world)
