"""How many workers `num_workers="auto"` means."""

from __future__ import annotations


def auto_workers(*, affinity: int, quota: float | None, local_world: int) -> int:
    """This rank's share of the cores that the process may use, at least one.

    The training process itself needs little CPU, so no core is kept back for it.
    """
    cores = affinity if quota is None else min(affinity, max(1, int(quota)))
    return max(1, cores // max(1, local_world))


def arena_limit(*, memory_bytes: int, local_world: int) -> int:
    """Bytes of shared memory that one rank's batches may occupy: a quarter of what the ranks of a node share."""
    return memory_bytes // 4 // max(1, local_world)
