"""Cache-aware shuffle: spread the samples that an epoch must make or fetch anew evenly over its batches (Revamper, section 5.3).

Two kinds of *misses* are spread so: partly prepared samples that are renewed (`Renewal`), and samples that no node keeps (`KeptSet`).

Rule 1: every sample stands in the order once. The misses are in random order among themselves; so are the hits.
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
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.plan.deal import SampleOwners
from penstock.plan.permutation import Permutation, permutation
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


class EpochMisses(Protocol):
    """Which samples an epoch misses. Misses are numbered from 0, and so are hits."""

    @property
    def length(self) -> int: ...
    @property
    def seed(self) -> int: ...
    def misses(self, epoch: int) -> int: ...
    def missed_samples(self, epoch: int, numbers: Ints) -> Ints: ...
    def hit_samples(self, epoch: int, numbers: Ints) -> Ints: ...
    def numbered(self, epoch: int, samples: Ints) -> tuple[NDArray[np.bool_], Ints]: ...


class KeptSet:
    """Samples that some node of a group keeps, in every epoch; all others are misses."""

    def __init__(self, kept: NDArray[np.bool_], seed: int) -> None:
        self.seed = seed
        self._kept = kept
        self._hits, self._missed = np.flatnonzero(kept), np.flatnonzero(~kept)
        self._hits_before: Ints = np.cumsum(kept, dtype=np.int64) - kept

    @property
    def length(self) -> int:
        return len(self._kept)

    def misses(self, epoch: int) -> int:  # noqa: ARG002 - the same in every epoch
        return len(self._missed)

    def missed_samples(self, epoch: int, numbers: Ints) -> Ints:  # noqa: ARG002
        return self._missed[numbers]

    def hit_samples(self, epoch: int, numbers: Ints) -> Ints:  # noqa: ARG002
        return self._hits[numbers]

    def numbered(self, epoch: int, samples: Ints) -> tuple[NDArray[np.bool_], Ints]:  # noqa: ARG002
        missed = ~self._kept[samples]
        before: Ints = self._hits_before[samples]
        return missed, np.where(missed, samples - before, before)


@dataclass(frozen=True)
class EvenOrder:
    """The order of one epoch, for a world of `world` ranks."""

    of: EpochMisses
    epoch: int
    world: int

    @cached_property
    def _key(self) -> int:
        return order_key(self.of.seed, self.epoch)

    @cached_property
    def _spread(self) -> Spread:
        length = self.of.length
        return Spread(length, self.of.misses(self.epoch), op_seed(self._key, "phase", 0) % length)

    @cached_property
    def _misses(self) -> Permutation:
        return permutation(op_seed(self._key, "misses", 0), self._spread.count)

    @cached_property
    def _hits(self) -> Permutation:
        return permutation(op_seed(self._key, "hits", 0), self._spread.rest.count)

    def is_miss(self, positions: Ints) -> NDArray[np.bool_]:
        """Whether the samples at these positions are misses."""
        line = self._line(positions)
        return self._spread.before(line + 1) > self._spread.before(line)

    def __call__(self, positions: Ints) -> Ints:
        """Return the samples at these positions."""
        line = self._line(positions)
        before = self._spread.before(line)
        missed = self._spread.before(line + 1) > before
        samples = np.empty_like(line)
        samples[missed] = self.of.missed_samples(self.epoch, self._misses(before[missed]))
        samples[~missed] = self.of.hit_samples(self.epoch, self._hits((line - before)[~missed]))
        return samples

    def inverse(self, samples: Ints) -> Ints:
        """Return the positions of these samples."""
        missed, numbers = self.of.numbered(self.epoch, samples)
        line = np.empty_like(numbers)
        line[missed] = self._spread.at(self._misses.inverse(numbers[missed]))
        line[~missed] = self._spread.rest.at(self._hits.inverse(numbers[~missed]))
        return self._position(line)

    # ---- ranks' shares, end to end: rank r has the positions r, r + world, ...

    def _line(self, positions: Ints) -> Ints:
        share, longer = divmod(self.of.length, self.world)
        rank = positions % self.world
        return rank * share + np.minimum(rank, longer) + positions // self.world

    def _position(self, line: Ints) -> Ints:
        share, longer = divmod(self.of.length, self.world)
        end = longer * (share + 1)
        early = line < end
        rank = np.where(early, line // (share + 1), longer + (line - end) // max(1, share))
        at = np.where(early, line % (share + 1), (line - end) % max(1, share))
        return at * self.world + rank


@lru_cache(maxsize=16)
def even_order(misses: EpochMisses, epoch: int, world: int) -> EvenOrder:
    """Return a cached `EvenOrder`; few orders are in use at a time."""
    return EvenOrder(misses, epoch, world)


@lru_cache(maxsize=2)
def kept_by(owners: SampleOwners, samples: int, seed: int) -> KeptSet:
    """Return a cached `KeptSet`: the samples that have a home."""
    return KeptSet(owners.homes(samples) >= 0, seed)
