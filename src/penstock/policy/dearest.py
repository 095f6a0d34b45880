"""Which samples are the dearest: those above a quantile of what has been seen lately. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

SLACK = 8.0
"""Samples that the share may be ahead or behind by, so that a row of cheap or dear ones can be told apart."""
WINDOW = 128
"""Costs that are remembered: enough for a quantile to within a few hundredths, few enough to follow a change of the data."""
FIRST, LEAST = 0.25, 0.01
"""The share of samples that counts as dear, at first and at least."""
MORE, LESS = 0.25, 2.5
"""How it changes within a batch that there was room for, or was none for: it settles where there is room for ten samples of eleven."""


@dataclass(slots=True)
class Ranks:
    """Where a cost stands among those seen lately."""

    _lately: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def rank(self, cost: float) -> float:
        """The share of the others that are cheaper. The cost is remembered."""
        found = (bisect_left(self._sorted, cost) + 0.5) / (len(self._sorted) + 1)
        insort(self._sorted, cost)
        self._lately.append(cost)
        if len(self._lately) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._lately.popleft())]
        return found

    def is_dear(self, cost: float, share: float) -> bool:
        """Whether a cost is among the dearest of such a share."""
        return self.rank(cost) >= 1.0 - share


@dataclass(slots=True)
class Dearest:
    """Takes a share of what comes by: the dearest of it, and by turns where costs are equal. What was taken too often or too
    seldom is made up for, so that the share is kept exactly in the long run."""

    _ranks: Ranks = field(default_factory=Ranks)
    _owed: float = 0.0
    """What should have been taken so far, less what was."""

    def passes(self, share: float) -> None:
        """One that cannot be taken: others are, in its place."""
        self._owed = min(2 * SLACK, self._owed + share)

    def takes(self, cost: float, share: float) -> bool:
        rank = self._ranks.rank(cost)
        if not 0.0 < share < 1.0:
            self._owed = 0.0
            return share >= 1.0
        self._owed += share
        taken = self._owed >= SLACK or (rank >= 1.0 - share and self._owed > -SLACK)
        self._owed -= taken
        return taken


def share_after(share: float, *, room: bool, samples: float) -> float:
    """The share that counts as dear, after one more of so many samples in a batch, where as many are taken as there is room for: more of
    them while there is room, fewer while there is none, so that room is neither left over nor used up by cheap ones."""
    change = MORE / samples if room else -LESS / samples
    return min(1.0, max(LEAST, share * (1.0 + max(-0.5, change))))
