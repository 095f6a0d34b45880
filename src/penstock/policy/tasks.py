"""How much work one task holds, and how many tasks wait at a worker."""

from __future__ import annotations

TASK_S = 0.004
"""Work per task that makes the agent's share of the CPU negligible and still divides a batch finely."""
QUEUE_S = 0.020
"""Tasks longer than this are not queued ahead: the round trip to the agent no longer shows."""
FIRST_TASK = 4
"""FusionFlow's tiny-batch, until a sample's cost is known."""


def task_size(*, sample_s: float | None, batch: int, workers: int) -> int:
    """Samples in the next task of a batch of `batch` samples; never more than a worker's even share."""
    share = -(-batch // max(1, workers))
    if sample_s is None:
        return max(1, min(FIRST_TASK, share))
    wanted = share if sample_s <= 0 else min(share, round(TASK_S / sample_s))
    return max(1, wanted)


def queue_depth(*, task_s: float | None) -> int:
    """Tasks a worker may hold: one running, and one queued where the gap between two would show."""
    return 2 if task_s is not None and task_s < QUEUE_S else 1
