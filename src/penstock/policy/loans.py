"""The books of lent cores: who has lent how many to whom, and for how long. Pure.

Rule 1: a loan stays as it is while both sides still want it; only what changed is paired anew.
Rule 2: who is gone lends and borrows nothing. Its sums leave with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Standing(NamedTuple):
    """One side's numbers now."""

    home: int
    allowed: int


@dataclass(slots=True)
class Sums:
    """Of one loader, in core-seconds."""

    lent_s: float = 0.0
    borrowed_s: float = 0.0
    moves: int = 0
    """Cores that came or went."""


@dataclass(slots=True)
class Loans:
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    """Cores by (lender, borrower)."""
    sums: dict[int, Sums] = field(default_factory=dict)
    moves: int = 0
    """Cores that have changed hands so far."""
    _at_s: float = 0.0

    def settle(self, now_s: float, sides: Mapping[int, Standing]) -> None:
        """Account for the time since the last call, then note how things stand now."""
        passed_s, self._at_s = max(0.0, now_s - self._at_s), now_s
        for (lender, borrower), count in self.open.items():
            if lender in self.sums:
                self.sums[lender].lent_s += count * passed_s
            if borrower in self.sums:
                self.sums[borrower].borrowed_s += count * passed_s
        self.sums = {one: self.sums.get(one, Sums()) for one in sides}
        before, self.open = self.open, paired(self.open, sides)
        for pair in before.keys() | self.open.keys():
            moved = abs(self.open.get(pair, 0) - before.get(pair, 0))
            self.moves += moved
            for one in pair:
                if one in self.sums:
                    self.sums[one].moves += moved


def paired(
    before: Mapping[tuple[int, int], int], sides: Mapping[int, Standing]
) -> dict[tuple[int, int], int]:
    """Return who lends to whom. Cores lent that nobody uses, or used that nobody lends, are in no pair."""
    lent = {one: max(0, side.home - side.allowed) for one, side in sides.items()}
    used = {one: max(0, side.allowed - side.home) for one, side in sides.items()}
    pairs: dict[tuple[int, int], int] = {}

    def pair(lender: int, borrower: int, most: int) -> None:
        count = min(lent.get(lender, 0), used.get(borrower, 0), most)
        if count:
            pairs[lender, borrower] = pairs.get((lender, borrower), 0) + count
            lent[lender] -= count
            used[borrower] -= count

    for (lender, borrower), count in before.items():
        pair(lender, borrower, count)
    for borrower, side in sides.items():
        for lender in sides:
            pair(lender, borrower, side.allowed)
    return pairs
