"""How much work one task holds, and how many tasks wait at a worker."""

from __future__ import annotations

TASK_S = 0.004
"""Work per task that makes the agent's share of the CPU negligible and still divides a batch finely."""
QUEUE_S = 0.020
"""Work that waits at a worker: on a busy machine the agent may get a core only after this long."""
DEEPEST = 8
FIRST_TASK = 4
"""FusionFlow's tiny-batch, until a sample's cost is known."""


def task_size(*, sample_s: float | None, batch: int, workers: int) -> int:
    """Samples in the next task of a batch of `batch` samples; never more than a worker's even share."""
    share = -(-batch // max(1, workers))
    if sample_s is None:
        return max(1, min(FIRST_TASK, share))
    return max(1, min(share, round(TASK_S / max(sample_s, 1e-9))))


def queue_depth(*, task_s: float | None) -> int:
    """Tasks a worker may hold: one running and `QUEUE_S` of work behind it; long tasks are not queued ahead at all."""
    if task_s is None or task_s >= QUEUE_S:
        return 1
    return min(DEEPEST, 1 + max(1, round(QUEUE_S / max(task_s, 1e-6))))
