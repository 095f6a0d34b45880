"""How much work one task holds, and how much of it waits at a worker.

A task costs the agent a tenth of a millisecond, most of it because its code is no longer in the caches of a core that was
preparing samples meanwhile. The end of the batch that is waited for is divided finely all the same, so that all workers finish it
together; its beginning and the batches behind it are not.

A worker that joins others takes two to four times as long for its first samples (it touches everything for the first time): it
begins with a few of the batch that comes next, so that nobody waits for them.
"""

from __future__ import annotations

from math import ceil

DUE_TASK_S = 0.004
"""Work per task at the end of the batch that is due."""
AHEAD_TASK_S = 0.016
"""Work per task of a batch behind it, and the most of any."""
ROUNDS = 3
"""What is left of the due batch is dealt out to all workers in so many rounds at least."""
QUEUE_S = 0.020
"""Work that a worker has before it: on a busy machine the agent may get a core only after this long."""
DEEPEST = 8
"""Tasks that a worker has at most, beyond those on their way."""
FIRST_TASK = 4
"""FusionFlow's tiny-batch, until a sample's cost is known."""
NEW_SAMPLES, OLD_SAMPLES = 16, 128
"""A worker that has prepared fewer than the first is new, where another has prepared as many as the second."""
NEW_TASK = 2
"""Samples that a new worker has before it."""


def task_size(*, sample_s: float | None, batch: int, left: int, workers: float, due: bool = True) -> int:
    """Samples in the next task of a batch of `batch` samples, of which `left` are to do; never more than a worker's even share. `workers` are
    counted in those that take `sample_s`."""
    share = int(-(-batch // max(1, workers)))
    if sample_s is None:
        return max(1, min(FIRST_TASK, share))
    work_s = max(DUE_TASK_S, left * sample_s / (ROUNDS * max(1, workers))) if due else AHEAD_TASK_S
    return max(1, min(share, round(min(work_s, AHEAD_TASK_S) / max(sample_s, 1e-9))))


def queue_samples(*, sample_s: float | None, queue_s: float = QUEUE_S) -> float:
    """A worker that has fewer samples than this before it is given one more task; none behind one of unknown cost."""
    return 0.0 if sample_s is None else queue_s / max(sample_s, 1e-9)


def deepest(latency_s: float) -> int:
    """Tasks that a worker has at most, where one takes so long beyond its work."""
    return DEEPEST + ceil(latency_s / DUE_TASK_S) if latency_s else DEEPEST


def is_new(prepared: int, most: int) -> bool:
    """Whether a worker that has prepared so many samples is slow as yet, beside one that has prepared the most."""
    return prepared < NEW_SAMPLES and most >= OLD_SAMPLES
