"""Which work a worker of a slow or distant pool takes, beside others that are faster.

Rule 1: work that is due goes to the worker that will have done it first.
Rule 2: any other worker takes work of the first batch that it does not hold up: one that faster pools alone would not have
complete before it. Where there is none it waits, for a batch that waits for a slow task costs more than the task is worth.
Rule 3: what is known of a pool goes stale. A pool that is not known yet, or was left out for long, is tried with one task of the
last batch.
"""

from __future__ import annotations

from collections.abc import Iterable

TRY_AGAIN_S, TRY_AGAIN_TASKS = 5.0, 50.0
"""A pool that has been left out for so long, and for so many times what its task takes, is tried again."""
CALL_BACK = 2.0
"""Queued work of the due batch is taken back where another will have done it in this part of the time."""


def rate(pools: Iterable[tuple[int, float | None]]) -> float:
    """Samples a second of pools with so many workers, each of which takes so long for a sample."""
    return sum(workers / max(pace_s, 1e-9) for workers, pace_s in pools if pace_s is not None)


def equal_workers(pace_s: float | None, pools: Iterable[tuple[int, float | None]]) -> float:
    """All workers, counted as so many of those that take `pace_s` for a sample; as they are where a pace is not known."""
    return sum(
        workers
        if pace_s is None or other_s is None or pace_s == other_s
        else workers * pace_s / max(other_s, 1e-9)
        for workers, other_s in pools
    )


def first_in_time(offers: Iterable[tuple[int, float]], samples_per_s: float) -> int | None:
    """The first batch that a worker does not hold up. Each is told as the samples that are left of it, and the seconds after which the worker
    would have done its task of it; `samples_per_s` is what faster pools do."""
    ahead = 0
    for at, (left, finish_s) in enumerate(offers):
        ahead += left
        if left and finish_s * samples_per_s <= ahead:
            return at
    return None


def is_stale(silent_s: float, finish_s: float) -> bool:
    """Whether a pool that has done nothing for so long is tried again, by a worker whose task takes so long."""
    return silent_s > max(TRY_AGAIN_S, TRY_AGAIN_TASKS * finish_s)


def is_better_elsewhere(here_s: float, elsewhere_s: float) -> bool:
    """Whether queued work that is due is taken back, where another worker would have done it after so long."""
    return here_s > CALL_BACK * elsewhere_s
