"""Which work a worker of a slow or distant pool takes, beside faster ones.

Rule 1: due work goes to the worker that will finish it first.
Rule 2: other workers take work of the first batch they do not delay: faster pools alone would not complete it sooner.
If there is none they wait, because a batch delayed by a slow task costs more than the task gains.
Rule 3: measurements go stale. Try an unknown or long unused pool with one task of the last batch.
"""

from __future__ import annotations

from collections.abc import Iterable

TRY_AGAIN_S, TRY_AGAIN_TASKS = 5.0, 50.0
"""Try a pool again after this long without work, and this many times its task's duration."""
CALL_BACK = 2.0
"""Reassign queued tasks of the due batch if another worker finishes them this many times sooner."""


def rate(pools: Iterable[tuple[int, float | None]]) -> float:
    """Return the samples per second of pools given as (workers, pace)."""
    return sum(workers / max(pace_s, 1e-9) for workers, pace_s in pools if pace_s is not None)


def equal_workers(pace_s: float | None, pools: Iterable[tuple[int, float | None]]) -> float:
    """Return all workers, counted in workers of pace `pace_s`; an unknown pace counts as equal."""
    return sum(
        workers
        if pace_s is None or other_s is None or pace_s == other_s
        else workers * pace_s / max(other_s, 1e-9)
        for workers, other_s in pools
    )


def first_in_time(offers: Iterable[tuple[int, float]], samples_per_s: float) -> int | None:
    """Return the first batch that a worker does not delay. Each offer is the samples left of a batch and the seconds until the
    worker would finish its task of it; `samples_per_s` is the rate of faster pools."""
    ahead = 0
    for at, (left, finish_s) in enumerate(offers):
        ahead += left
        if left and finish_s * samples_per_s <= ahead:
            return at
    return None


def is_stale(silent_s: float, finish_s: float) -> bool:
    """Whether to try a pool again that has been silent for `silent_s` and would take `finish_s` for a task."""
    return silent_s > max(TRY_AGAIN_S, TRY_AGAIN_TASKS * finish_s)


def is_better_elsewhere(here_s: float, elsewhere_s: float) -> bool:
    """Whether to reassign queued due work to a worker that would finish it in `elsewhere_s`."""
    return here_s > CALL_BACK * elsewhere_s
