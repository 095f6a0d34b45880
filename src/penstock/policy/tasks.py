"""Task sizes, and how much work is queued at a worker.

A task costs the agent a tenth of a millisecond, mostly because preparing samples evicts the agent's code from the core's caches.
So tasks are large, except at the end of the due batch: small ones there let all workers finish it together.

A worker that joins others takes two to four times as long for its first samples (it touches everything for the first time). It
begins with a few samples of a later batch, so that nobody waits for them.
"""

from __future__ import annotations

from math import ceil, inf

DUE_TASK_S = 0.004
"""Work per task at the end of the due batch."""
AHEAD_TASK_S = 0.016
"""Work per task of later batches, and the maximum of any."""
ROUNDS = 3
"""The rest of the due batch is dealt to all workers in at least this many rounds."""
QUEUE_S = 0.020
"""Work queued at a worker: on a busy machine the agent may get a core only after this long."""
QUEUED = 0.35
"""Part of all work that was asked for that is queued at workers at most, beyond what they do: the rest goes to whoever is free first. With two batches
ahead steps of 6 ms take 9 % less than with 20 ms of work queued (eight workers, simulated)."""
DEEPEST = 8
"""Tasks queued at a worker at most, beyond those in transit."""
FIRST_TASK = 4
"""Task size until a sample's cost is known (FusionFlow's tiny-batch)."""
NEW_SAMPLES, OLD_SAMPLES = 16, 128
"""A worker with fewer prepared samples than the first is new, if another has prepared the second."""
NEW_TASK = 2
"""Samples queued at a new worker."""


def task_size(*, sample_s: float | None, batch: int, left: int, workers: float, due: bool = True) -> int:
    """Return the samples in the next task of a batch with `left` samples to do; at most a worker's even share. `workers` is
    counted in workers that take `sample_s`."""
    share = int(-(-batch // max(1, workers)))
    if sample_s is None:
        return max(1, min(FIRST_TASK, share))
    work_s = max(DUE_TASK_S, left * sample_s / (ROUNDS * max(1, workers))) if due else AHEAD_TASK_S
    return max(1, min(share, round(min(work_s, AHEAD_TASK_S) / max(sample_s, 1e-9))))


def queue_samples(*, sample_s: float | None, queue_s: float = QUEUE_S, asked: float = inf) -> float:
    """Return the queue length below which a worker gets another task; 0 (no queue) while the cost is unknown. `asked`: a worker's even share of
    all samples that were asked for and are not done."""
    if sample_s is None:
        return 0.0
    return min(queue_s / max(sample_s, 1e-9), max(DUE_TASK_S / max(sample_s, 1e-9), QUEUED * asked))


def deepest(latency_s: float) -> int:
    """Return the most tasks queued at a worker whose tasks take `latency_s` beyond their work."""
    return DEEPEST + ceil(latency_s / DUE_TASK_S) if latency_s else DEEPEST


def is_new(prepared: int, most: int) -> bool:
    """Whether a worker that has prepared so few samples is still slow, beside one that has prepared `most`."""
    return prepared < NEW_SAMPLES and most >= OLD_SAMPLES
