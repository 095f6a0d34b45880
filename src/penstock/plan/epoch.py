"""One rank's share of one epoch.

Rule 1: an epoch has one global order, a pure function of (seed, epoch, length). A *position* is an index into it.
Rule 2: in a world of w, rank r takes the positions origin + r, origin + r + w, origin + r + 2w, ... So the
        first k batches of all ranks together are one contiguous stretch of the order, whatever the world,
        and the rest can be dealt out again, from another origin, to another world.
Rule 3: all ranks deliver the same number of batches of the same sizes. If the rest does not divide evenly,
        `drop_last` drops its tail: first what does not fill every rank, then the incomplete batch. Otherwise
        ranks continue past the end of the order at its beginning, as with torch's DistributedSampler. Such a
        position stays past the end, so that a sample met twice is augmented in two ways.
Rule 4: if partly prepared samples are reused (`times`), a shuffled order spreads the misses (samples prepared
        anew) evenly over every rank's batches. The order is made for the world that began the epoch and stays
        when the rest is dealt to another world; the next epoch is even again. Likewise for samples that no node
        keeps (`even`).
Rule 5: with `deal`, a global batch (one batch of each rank) is dealt: to ranks whose node keeps its samples, or by cost. Global batches,
        positions and sizes stay; only who delivers a position changes. So rules 2 and 3 hold for global batches, whatever
        the world, and a rest can be dealt by other owners. In an even order, samples that no node keeps stay where they are:
        they are spread evenly already. With costs, ranks get even sums of them, and in a shuffled order each sample is equally
        likely on each rank.
"""

from dataclasses import dataclass, fields
from operator import index

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.plan.deal import SampleOwners, deal_to_owners
from penstock.plan.deal_cost import SampleCosts, deal_by_cost
from penstock.plan.even import EvenOrder, even_order, kept_by
from penstock.plan.permutation import MAX_N, Permutation, permutation
from penstock.plan.renewal import Renewal
from penstock.plan.seeds import deal_key, order_key


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """One rank's share of one epoch's global order."""

    length: int
    """Samples in the epoch's global order."""
    batch_size: int
    """Samples per batch of one rank."""
    drop_last: bool
    """Whether the tail that does not fill a batch on every rank is dropped."""
    shuffle: bool
    """Whether the order is the permutation named by (seed, epoch), or 0, 1, 2, ..."""
    seed: int
    """Any integer; it counts modulo 2**64."""
    epoch: int
    """Any integer; each has its own order."""
    rank: int = 0
    """Which share this is, of `world`."""
    world: int = 1
    """How many ranks share the order."""
    origin: int = 0
    """First global position of this stretch; `length` if the epoch is over."""
    times: int = 1
    """Uses of each partly prepared sample."""
    kept: int = 0
    """Samples whose partial result is kept."""
    order_world: int = 0
    """World the order was made for; 0: this one."""
    even: SampleOwners | None = None
    """Where samples were kept when the epoch began, to spread those that no node keeps; None: they are not spread."""
    deal: SampleOwners | SampleCosts | None = None
    """Where samples are kept, to deal global batches to owners; or what samples cost, to deal even sums; None: ranks take turns."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name not in ("even", "deal")):
            value = getattr(self, name)
            try:  # NumPy's integers would not survive JSON
                plain = bool(value) if name in ("drop_last", "shuffle") else index(value)
            except TypeError:
                raise ConfigError(f"{name} must be an integer, got {value!r}") from None
            object.__setattr__(self, name, plain)
        if not 0 <= self.length <= MAX_N:
            raise ConfigError(f"length must be between 0 and 2**62, got {self.length}")
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.world < 1:
            raise ConfigError(f"world must be at least 1, got {self.world}")
        if not 0 <= self.rank < self.world:
            raise ConfigError(
                f"rank must be between 0 and {self.world - 1} in a world of {self.world}, got {self.rank}"
            )
        if not 0 <= self.origin <= self.length:
            raise ConfigError(f"origin must be between 0 and the length {self.length}, got {self.origin}")
        if self.even is not None and self.times > 1:
            raise ConfigError("an order cannot spread both renewed samples and samples that no node keeps")

    @property
    def batches(self) -> int:
        """Batches that every rank delivers from `origin` on."""
        share = self._share()
        return share // self.batch_size if self.drop_last else -(-share // self.batch_size)

    @property
    def samples(self) -> int:
        """Samples that every rank delivers from `origin` on."""
        share = self._share()
        return share - share % self.batch_size if self.drop_last else share

    def size_of(self, batch: int) -> int:
        """Return the samples in a batch: `batch_size`, or less in the last."""
        if not 0 <= batch < self.batches:
            raise IndexError(f"batch {batch} of a plan of {self.batches} batches")
        return min(self.batch_size, self.samples - batch * self.batch_size)

    def positions(self, batch: int, start: int = 0, count: int | None = None) -> NDArray[np.int64]:
        """Return the global positions of `count` samples of a batch, from its `start`-th on (default: all)."""
        size = self.size_of(batch)
        stop = size if count is None else start + count
        if not 0 <= start <= stop <= size:
            raise IndexError(f"samples {start} to {stop} of batch {batch}, which has {size}")
        if self.deal is not None:
            positions, ranks = self.dealt(batch)
            own: NDArray[np.int64] = positions[ranks == self.rank]
            return own[start:stop]
        first = self.first_of(batch) + start * self.world
        return np.arange(first, first + (stop - start) * self.world, self.world, dtype=np.int64)

    def first_of(self, batch: int) -> int:
        """Return the first position that the batch has without dealing: it names the batch of this rank."""
        return self.origin + self.rank + batch * self.batch_size * self.world

    def dealt(self, batch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of a global batch, in order, and the rank that delivers each."""
        first = self.first_of(batch) - self.rank
        positions = np.arange(first, first + self.size_of(batch) * self.world, dtype=np.int64)
        if isinstance(self.deal, SampleCosts):
            # An order that is the same in all epochs is dealt alike in all.
            key = deal_key(self.seed, self.epoch if self.shuffle else 0, first)
            return positions, deal_by_cost(self.deal.values[self.keys(positions)], self.world, key=key)
        ranks = (positions - first) % self.world
        if self.deal is not None:
            homes = self.deal.homes(self.length)[self.keys(positions)]
            moves = homes >= 0 if self.even is not None else np.ones(len(homes), np.bool_)
            ranks[moves] = deal_to_owners(homes[moves], ranks[moves], gpus=self.deal.gpus)
        return positions, ranks

    def seat(self, position: int) -> tuple[int, int]:
        """Return `first_of` of the batch that delivers a position, whichever rank's, and the sample's index there."""
        batch, at = divmod(position - self.origin, self.batch_size * self.world)
        rank, ordinal = at % self.world, at // self.world
        if self.deal is not None and batch < self.batches:
            _, ranks = self.dealt(batch)
            rank = int(ranks[at])
            ordinal = int(np.count_nonzero(ranks[:at] == rank))
        return self.origin + rank + batch * self.batch_size * self.world, ordinal

    def keys(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the dataset indices at these global positions."""
        places = np.remainder(positions, self.length) if positions.size else positions
        return self._order()(places) if self.shuffle else places

    def find(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the global positions of these dataset indices, padding aside."""
        return self._order().inverse(keys) if self.shuffle else keys

    def after(self, batches: int) -> int:
        """Return where the rest of the epoch begins once every rank has delivered this many batches.

        `dataclasses.replace(plan, origin=plan.after(k), rank=r, world=w)` is rank r's plan of the rest.
        """
        if not 0 <= batches <= self.batches:
            raise IndexError(f"after {batches} batches of a plan of {self.batches}")
        if batches and batches == self.batches:
            return self.length  # the epoch is over: no other world delivers what this one dropped
        return self.origin + batches * self.batch_size * self.world

    def _share(self) -> int:
        """Return each rank's samples from `origin` on, before the incomplete batch is dropped."""
        rest = self.length - self.origin
        return rest // self.world if self.drop_last else -(-rest // self.world)

    @property
    def renewal(self) -> Renewal:
        """Which samples are prepared anew in which epoch."""
        return Renewal(self.length, self.kept, self.times, self.seed)

    def _order(self) -> Permutation | EvenOrder:
        if self.times > 1 and self.length:
            return even_order(self.renewal, self.epoch, self.order_world or self.world)
        if self.even is not None and self.length:
            kept = kept_by(self.even, self.length, self.seed)
            return even_order(kept, self.epoch, self.order_world or self.world)
        return permutation(order_key(self.seed, self.epoch), self.length)
