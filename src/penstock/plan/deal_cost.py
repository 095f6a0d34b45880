"""Who gets which sample of a global batch, so that its ranks have equally much to do.

Rule 1: the samples of a global batch stay the same, and every rank gets equally many. What all samples cost alike evens out by itself, so costs
        need no unit and no constant part.
Rule 2: a batch of a rank is a *hand* until it has a rank. A sample dearer than a rank's even share gets the cheapest others: no deal has a
        lower maximum. All other samples are dealt to and fro, dearest first. Then the dearest hand swaps samples with the cheapest one, the
        second dearest with the second cheapest, and so on, until the dearest is near the mean.
Rule 3: a key permutes the ranks, so each sample is equally likely on each, however much it costs.
Rule 4: costs are integers here. Sums of floats may differ between processors in their last bit, and then two ranks would deal differently.

Every rank deals every global batch, so this must be fast: all pairs of hands swap at once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.plan.permutation import hashes

Ints = NDArray[np.int64]
DEAREST: Final = 1 << 40
"""The dearest sample's cost as an integer: fine steps for the others, and room for the sum of 2**22 samples."""
NEAR: Final = 10
"""A hand is near the mean if it exceeds it by at most 2**-10 of it."""
MOST_SWAPS: Final = 64
"""Rounds of swaps; 1 to 10 are usual."""
OUT_OF_REACH: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class SampleCosts:
    """What each sample of a dataset costs. Equal digests stand for equal costs."""

    values: Ints = field(compare=False, repr=False)
    """By sample, from 0 to DEAREST."""
    digest: str

    @classmethod
    def of(cls, costs: NDArray[np.float64], says: str = "as given") -> SampleCosts:
        """Take costs in any unit, which `says` names. ConfigError if one of them is no cost."""
        wrong = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
        if wrong.size:
            raise ConfigError(
                f"deal='cost': the cost of sample {wrong[0]} is {costs[wrong[0]]} ({says}); it must be a finite number of at least 0"
            )
        values = np.rint(costs / (costs.max(initial=0.0) or 1.0) * DEAREST).astype(np.int64)
        return cls(values, hashlib.sha256(costs.astype("<f8").tobytes()).hexdigest()[:16])

    def facts(self) -> dict[str, Any]:
        """Return what decides the deal, as plain values for a checkpoint."""
        return {"costs": self.digest}


def deal_by_cost(costs: Ints, world: int, *, key: int) -> Ints:
    """Return the rank of each sample of a global batch of `world` batches of one size."""
    size = len(costs) // world
    order = np.argsort(-costs, kind="stable")
    dealt = even_hands(costs[order], world)
    names = np.argsort(hashes(np.arange(world), key), kind="stable")
    ranks = np.empty(len(costs), np.int64)
    ranks[order[dealt.ravel()]] = np.repeat(names, size)
    return ranks


def even_hands(costs: Ints, world: int) -> Ints:
    """Return the hands, one per row, as indices into `costs`, which fall."""
    size = len(costs) // world
    forced, rest, most = _forced(costs, world, size)
    to_and_fro = rest.reshape(size, -1)
    to_and_fro[1::2] = to_and_fro[1::2, ::-1]
    hands = np.ascontiguousarray(to_and_fro.T)
    for _ in range(MOST_SWAPS):
        sums = costs[hands].sum(axis=1)
        mean = int(sums.sum()) // len(sums)
        if not _swap(costs, hands, sums, beyond=max(most, mean + (mean >> NEAR))):
            break
    return np.concatenate([forced, hands])


def _forced(costs: Ints, world: int, size: int) -> tuple[Ints, Ints, int]:
    """Return the hands of samples dearer than an even share with the cheapest others, all other samples, and the dearest such hand's cost."""
    before = np.concatenate([[0], np.cumsum(costs)]).tolist()
    hands, most, first, end = [], 0, 0, len(costs)
    while world - first > 1:
        cheapest = end - (size - 1)
        cost = before[first + 1] - before[first] + before[end] - before[cheapest]
        if cost * (world - first) <= before[end] - before[first]:
            break
        hands.append([first, *range(cheapest, end)])
        first, end, most = first + 1, cheapest, max(most, cost)
    return np.array(hands, np.int64).reshape(-1, size), np.arange(first, end), most


def _swap(costs: Ints, hands: Ints, sums: Ints, *, beyond: int) -> bool:
    """Let the hands that cost more than `beyond` swap samples with the cheapest ones, pair by pair. Return whether any did."""
    pairs = min(len(hands) // 2, int(np.count_nonzero(sums > beyond)))
    if not pairs:
        return False
    by_sum = np.argsort(sums, kind="stable")
    poor, rich = by_sum[:pairs], by_sum[::-1][:pairs]
    wanted = ((sums[rich] - sums[poor]) // 2)[:, None]
    gives, takes = np.sort(hands[rich], axis=1), np.sort(hands[poor], axis=1)[:, ::-1]
    several, moved = _several(costs[gives] - costs[takes], wanted)
    one, given, taken = _best_one(costs[gives], costs[takes], wanted, better_than=wanted[:, 0] - moved)
    several[one] = False
    hands[rich], hands[poor] = np.where(several, takes, gives), np.where(several, gives, takes)
    hands[rich[one], given], hands[poor[one], taken] = takes[one, taken], gives[one, given]
    return bool(several.any() or one.size)


def _several(differences: Ints, wanted: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Choose swaps of a hand's dearest with the other's cheapest, second dearest with second cheapest, ...: the first that do not move more
    than is wanted. Return them, and what they move."""
    fits = (differences > 0) & (differences <= wanted)
    fits &= np.cumsum(np.where(fits, differences, 0), axis=1) <= wanted
    return fits, np.where(fits, differences, 0).sum(axis=1)


def _best_one(gives: Ints, takes: Ints, wanted: Ints, *, better_than: Ints) -> tuple[Ints, Ints, Ints]:
    """Find the one swap of any two samples that comes nearest to what is wanted: (pairs of hands where that is better, given, taken)."""
    pairs, size = gives.shape
    rows, step = np.arange(pairs)[:, None], int(max(gives.max(), takes.max())) + 1
    # One search for all pairs: each has a range of numbers of its own.
    found = np.searchsorted((takes + rows * step).ravel(), np.maximum(gives - wanted, 0) + rows * step)
    near = np.clip(np.stack([found - 1, found]) - rows * size, 0, size - 1)
    moved = gives - takes[rows, near]
    miss = np.where((moved > 0) & (moved < 2 * wanted), np.abs(moved - wanted), OUT_OF_REACH)
    side = miss.argmin(axis=0)[None]
    miss, near = np.take_along_axis(miss, side, 0)[0], np.take_along_axis(near, side, 0)[0]
    given = miss.argmin(axis=1)
    better = np.flatnonzero(miss[rows[:, 0], given] < better_than)
    return better, given[better], near[better, given[better]]
