"""When a rank looks how it stands, and what of it the manager of cores must hear. Pure.

Rule 1: two looks are `PAUSE_S` apart at least: they take time.
Rule 2: a rank that uses its own cores and is well ahead looks again when training has taken a batch or two of those, not before; if it is less than
        a batch from being short, also when it has prepared a batch.
Rule 3: what says nothing new is not reported, but now and then to show that we are there.
"""

from __future__ import annotations

import math

from penstock.policy.lending import RankView

PAUSE_S = 0.010
"""Between two looks. By the simulator of ranks, steps are not shorter with more of them."""
BEAT_S = 0.3
"""A report without news says that we are there."""
FINE = 16
"""Parts of a batch that make a report new."""
REST = 2
"""Batches that training takes at most between two looks: the manager compares ranks by them."""


class Reporting:
    def __init__(self) -> None:
        self._told: tuple[float, ...] = ()
        """What was reported, as far as a change of it counts."""
        self._looked_s = self._told_s = -math.inf
        self._home = self._rests_to = 0
        """Which batch training may take next until we look again, by its number in the core."""
        self._ready: int | None = None
        """Batches that were prepared, if we look again when one more is."""

    def begin(self) -> None:
        """Tell a manager that has heard nothing yet."""
        self._told, self._looked_s = (), -math.inf

    def wake(self) -> None:
        """The manager has changed something: how we stand matters now."""
        self._rests_to = 0

    def wait_s(self, now_s: float, seq: int, ready: int, home: int) -> float:
        """Return for how long not to look. `seq`: the batch that training takes next. `ready`: batches prepared since the start. Infinite: until the
        next event."""
        rests = self._told and seq < self._rests_to and self._ready in (None, ready) and home == self._home
        if rests and now_s < self._told_s + BEAT_S:
            return math.inf
        return max(0.0, self._looked_s + PAUSE_S - now_s)

    def is_news(self, view: RankView, seq: int, ready: int, now_s: float) -> bool:
        """Say whether to report what a look has shown."""
        self._looked_s, self._home = now_s, view.home
        spare = int(view.ahead - view.enough)
        self._rests_to = seq + min(REST, max(1, spare)) if is_calm(view) else 0
        self._ready = None if spare else ready
        told = told_by(view)
        if told == self._told and now_s < self._told_s + BEAT_S:
            return False
        self._told, self._told_s = told, now_s
        return True


def is_calm(view: RankView) -> bool:
    """Whether training need not wait and nothing is lent."""
    return not view.is_short and view.allowed == view.home


def told_by(view: RankView) -> tuple[float, ...]:
    """Return what of a report counts as news: little while all is calm."""
    if is_calm(view):
        return view.home, view.epoch, view.taken, int(view.ahead), view.waiting > 0
    return (
        view.home,
        view.epoch,
        view.taken,
        int(view.ahead * FINE),
        view.is_short,
        view.waiting.bit_length(),
        view.waiting_due.bit_length(),
        view.busy,
    )
