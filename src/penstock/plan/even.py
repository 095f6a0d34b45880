"""Cache-aware shuffle: spread the samples that an epoch prepares anew evenly over its batches (Revamper, section 5.3).

Rule 1: every sample stands in the order once. The *misses* (prepared anew) are in random order among themselves; so are the hits.
Rule 2: each rank has its share of the misses, and so has any stretch of a rank's samples, to within one: every batch, and every
        task of a batch, costs the same.
Rule 3: the places of misses shift by a random amount each epoch: every sample is equally likely at every place.
Rule 4: as with a plain shuffle, any place can be read, and any sample found, directly.

How: lay the ranks' shares end to end, x = 0, 1, 2, ... With m misses among n samples, x is a miss if floor((x * m + phase) / n)
grows at x + 1; its value counts the misses before x. Hits are the rest and follow the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock.plan.permutation import Permutation, permutation
from penstock.plan.renewal import Renewal
from penstock.plan.seeds import op_seed, order_key

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Spread:
    """`count` of the numbers 0 ... `length` - 1, spread as evenly as possible."""

    length: int
    count: int
    phase: int
    """From 0 to `length` - 1."""

    def before(self, numbers: Ints) -> Ints:
        """Count those below each of these numbers."""
        return (numbers * self.count + self.phase) // self.length

    def at(self, ordinals: Ints) -> Ints:
        """Return the first, second, ... of them."""
        return -(-((ordinals + 1) * self.length - self.phase) // self.count) - 1

    @property
    def rest(self) -> Spread:
        """The numbers not taken."""
        return Spread(self.length, self.length - self.count, self.length - 1 - self.phase)


@dataclass(frozen=True)
class EvenOrder:
    """The order of one epoch, for a world of `world` ranks."""

    renewal: Renewal
    epoch: int
    world: int

    @cached_property
    def _key(self) -> int:
        return order_key(self.renewal.seed, self.epoch)

    @cached_property
    def _spread(self) -> Spread:
        length = self.renewal.length
        return Spread(length, self.renewal.misses(self.epoch), op_seed(self._key, "phase", 0) % length)

    @cached_property
    def _misses(self) -> Permutation:
        return permutation(op_seed(self._key, "misses", 0), self._spread.count)

    @cached_property
    def _hits(self) -> Permutation:
        return permutation(op_seed(self._key, "hits", 0), self._spread.rest.count)

    def is_miss(self, positions: Ints) -> NDArray[np.bool_]:
        """Whether the samples at these positions are prepared anew."""
        line = self._line(positions)
        return self._spread.before(line + 1) > self._spread.before(line)

    def __call__(self, positions: Ints) -> Ints:
        """Return the samples at these positions."""
        line, stretch = self._line(positions), self.renewal.stretch(self.epoch)
        before = self._spread.before(line)
        missed = self._spread.before(line + 1) > before
        places = np.empty_like(line)
        places[missed] = self._renewed_places(self._misses(before[missed]))
        kept = self._hits((line - before)[~missed])
        places[~missed] = (stretch.first + stretch.size + kept) % max(1, self.renewal.kept)
        return self.renewal.places(places)

    def inverse(self, samples: Ints) -> Ints:
        """Return the positions of these samples."""
        places, kept = self.renewal.places.inverse(samples), max(1, self.renewal.kept)
        first, size = self.renewal.stretch(self.epoch)
        around = (places - first) % kept
        fresh = places >= self.renewal.kept
        missed = fresh | (around < size)
        line = np.empty_like(places)
        numbers = np.where(fresh, places - self.renewal.kept + size, around)
        line[missed] = self._spread.at(self._misses.inverse(numbers[missed]))
        line[~missed] = self._spread.rest.at(self._hits.inverse(around[~missed] - size))
        return self._position(line)

    def _renewed_places(self, numbers: Ints) -> Ints:
        """Return the places of misses by number: renewed kept ones first, then those never kept."""
        first, size = self.renewal.stretch(self.epoch)
        within = (first + numbers) % max(1, self.renewal.kept)
        return np.where(numbers < size, within, self.renewal.kept + numbers - size)

    # ---- ranks' shares, end to end: rank r has the positions r, r + world, ...

    def _line(self, positions: Ints) -> Ints:
        share, longer = divmod(self.renewal.length, self.world)
        rank = positions % self.world
        return rank * share + np.minimum(rank, longer) + positions // self.world

    def _position(self, line: Ints) -> Ints:
        share, longer = divmod(self.renewal.length, self.world)
        end = longer * (share + 1)
        early = line < end
        rank = np.where(early, line // (share + 1), longer + (line - end) // max(1, share))
        at = np.where(early, line % (share + 1), (line - end) % max(1, share))
        return at * self.world + rank


@lru_cache(maxsize=8)
def even_order(renewal: Renewal, epoch: int, world: int) -> EvenOrder:
    """Return a cached `EvenOrder`; few orders are in use at a time."""
    return EvenOrder(renewal, epoch, world)
