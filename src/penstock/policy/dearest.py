"""Pick the dearest samples: those above a quantile of recent costs. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

SLACK = 8.0
"""Samples by which the share may run ahead or behind, so that runs of cheap or dear samples are told apart."""
WINDOW = 128
"""Costs remembered: enough for a quantile within a few hundredths, few enough to follow a change of the data."""
FIRST, LEAST = 0.25, 0.01
"""Share of samples that counts as dear, at first and at least."""
MORE, LESS = 0.25, 2.5
"""Change of the share over a batch with room, or without: it settles where 10 samples of 11 find room."""


@dataclass(slots=True)
class Ranks:
    """Ranks of a cost among recent ones."""

    _lately: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def rank(self, cost: float) -> float:
        """Return the share of recent costs that are cheaper, and remember this one."""
        found = (bisect_left(self._sorted, cost) + 0.5) / (len(self._sorted) + 1)
        insort(self._sorted, cost)
        self._lately.append(cost)
        if len(self._lately) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._lately.popleft())]
        return found

    def is_dear(self, cost: float, share: float) -> bool:
        """Whether a cost is in the dearest `share`."""
        return self.rank(cost) >= 1.0 - share


@dataclass(slots=True)
class Dearest:
    """Takes the dearest share of a stream of samples; among equal costs, by turns. It makes up for taking too many or too
    few, so that the share is exact in the long run."""

    _ranks: Ranks = field(default_factory=Ranks)
    _owed: float = 0.0
    """Samples due so far minus samples taken."""

    def passes(self, share: float) -> None:
        """Count a sample that cannot be taken: others are taken instead."""
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
    """Return the share that counts as dear, after one more sample of a batch of `samples`. Raise it while there is room, lower it
    while there is none, so that room is neither left over nor filled with cheap samples."""
    change = MORE / samples if room else -LESS / samples
    return min(1.0, max(LEAST, share * (1.0 + max(-0.5, change))))
