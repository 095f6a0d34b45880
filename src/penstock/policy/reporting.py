"""When a rank looks how it stands, and what of it the manager of cores must hear. Pure.

Rule 1: two looks are `PAUSE_S` apart at least: they take time.
Rule 2: a rank that uses its own cores and is well ahead looks again when training asks for a batch or takes one, when one more is prepared, and
        when the first of its own cores comes to idle or the last of them to work: others may need it.
Rule 3: what says nothing new is not reported, but now and then to show that we are there.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock.policy.lending import RankView

PAUSE_S = 0.010
"""Between two looks. By the simulator of ranks, steps are not shorter with more of them."""
BEAT_S = 0.3
"""A report without news says that we are there."""
FINE = 16
"""Parts of a batch that make a report new."""


class Glance(NamedTuple):
    """What is cheap to see of a rank. While it does not change, a rank that is well ahead stays so, and its cores are no news to others."""

    asked: int
    """Batches that training has asked for since the start."""
    taken: int
    """Those of them that it has taken: at the end of an epoch it asks for no more."""
    prepared: int
    """Those of them that are prepared."""
    idles: bool
    """Whether a core of its own has nothing to do."""
    own: int
    """Cores that are its own."""


class Reporting:
    def __init__(self) -> None:
        self._told: tuple[float, ...] = ()
        """What was reported, as far as a change of it counts."""
        self._looked_s = self._told_s = -math.inf
        self._rests_at: Glance | None = None
        """We need not look until this changes."""

    def begin(self) -> None:
        """Tell a manager that has heard nothing yet."""
        self._told, self._looked_s, self._rests_at = (), -math.inf, None

    def wake(self) -> None:
        """The manager has changed something: how we stand matters now."""
        self._rests_at = None

    def wait_s(self, now_s: float, glance: Glance) -> float:
        """Return for how long not to look, if nothing happens meanwhile."""
        soonest_s = self._looked_s + PAUSE_S
        due_s = max(soonest_s, self._told_s + BEAT_S) if glance == self._rests_at else soonest_s
        return max(0.0, due_s - now_s)

    def is_news(self, view: RankView, glance: Glance, now_s: float, *, own: int) -> bool:
        """Say whether to report what a look has shown. `own`: cores that are the rank's own."""
        calm = not view.is_short and view.allowed == own
        self._looked_s = now_s
        self._rests_at = glance if calm else None
        told = told_by(view, calm=calm)
        if told == self._told and now_s < self._told_s + BEAT_S:
            return False
        self._told, self._told_s = told, now_s
        return True


def told_by(view: RankView, *, calm: bool) -> tuple[float, ...]:
    """Return what of a report counts as news: little while training need not wait and nothing is lent."""
    if calm:
        return view.home, view.epoch, view.taken, int(view.ahead), view.wants
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
