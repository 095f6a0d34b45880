"""How many workers `num_workers="auto"` means."""

from __future__ import annotations

KEPT_BACK = 3
"""Cores that a training process with a GPU lane has use for: the loop that launches, and two stations, which must not wait for a core
while the GPU does. Measured with 16 cores; where there are few, a quarter of them."""


def auto_workers(*, affinity: int, quota: float | None, local_world: int, lane: bool = False) -> int:
    """This rank's share of the cores that the process may use, at least one.

    A training process without a GPU lane needs little CPU, so no core is kept back for it.
    """
    cores = affinity if quota is None else min(affinity, max(1, int(quota)))
    share = cores // max(1, local_world)
    return max(1, share - min(KEPT_BACK, share // 4) if lane else share)


def arena_limit(*, memory_bytes: int, local_world: int) -> int:
    """Bytes of shared memory that one rank's batches may occupy: a quarter of what the ranks of a node share."""
    return memory_bytes // 4 // max(1, local_world)
