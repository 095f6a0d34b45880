"""What a node's cache fetches from where, keeps and drops. The real cache and the simulator use this; it performs nothing.

Events, in this order for each step of a node:
  `ahead`   a batch becomes known, some steps before it is used: which node to ask for each sample, or the source;
  `asked`   (at a sample's home) samples of this home are about to be used somewhere: what it keeps from now on;
  `used`    the batch was used: what the node holds from now on, and what it drops.
When nodes join or leave: `follow_homes`, after the directory has the new homes.

Between `ahead` and `used` bytes lie in a ring of a few batches per rank, which is not counted here: a deeper one would take the room of samples that
are used again.

Rule 1 (ours): a node keeps the samples it is the home of and never drops one. With a permutation per epoch every sample is used once an epoch, so
        what the source must serve is at least 1 - N * c of the data (N nodes, each with room for a share c), and a set that stays meets that.
        Room to spare holds copies of other samples, by next use at this node.
Rule 2: `CacheRules` choose among samples that have no home here. Of two, the one with the later next use goes; of two whose next use is
        unknown, the one used longer ago; then the higher key.
Rule 3: the last copy in the group is guarded as the rules say. Nodes that drop a sample at the same moment, each trusting in the other's copy, lose
        it: the source serves it again, so only cost changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.plan.next_use import FAR, NEVER
from penstock.policy.holdings import SOURCE, Directory, HeldSamples, highest
from penstock.policy.homes import Nodes

Ints = NDArray[np.int64]
AFTER_ALL = 1 << 50
"""Above every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """How a node chooses among samples that it does not keep as their home."""

    victims: Literal["farthest", "oldest", "none"]
    """What goes when room is short: the latest next use, the longest unused, or nothing held (new samples are refused)."""
    homes: bool = False
    """Whether each sample has a home that keeps it."""
    drops_far: bool = False
    """Drop a used sample whose next use here is not in this epoch or the next: the paper's distance above 2 * I - h. Also drop samples that are
    never used here again, the paper's reuse count, except the last copy."""
    guards_last: bool = False
    """Never drop the last copy in the group, by any rule; drop copies of held samples rather than refuse a sample nobody holds."""


POLICIES: Mapping[str, CacheRules] = MappingProxyType(
    {
        "auto": CacheRules(victims="farthest", homes=True),
        "lobster": CacheRules(victims="farthest", drops_far=True),
        "lobster-guarded": CacheRules(victims="farthest", drops_far=True, guards_last=True),
        "lru": CacheRules(victims="oldest"),
        "no-evict": CacheRules(victims="none"),
        "farthest": CacheRules(victims="farthest"),
    }
)
"""`"farthest"` with every next use known is Belady's rule; with a window, what a sampler of the user's gets."""


class CacheChange(NamedTuple):
    """What a node holds from now on, and what it drops."""

    holds: Ints
    drops: Ints


class NodeCache:
    """The choices of one node. `directory` is its view of the group: it notes what this node gains and drops."""

    def __init__(self, node: int, *, room_bytes: int, rules: CacheRules, directory: Directory) -> None:
        if room_bytes < 0:
            raise ConfigError(f"room_bytes must be at least 0, got {room_bytes}")
        self.node, self.room_bytes, self.rules, self.directory = node, room_bytes, rules, directory
        self.kept_bytes = 0
        """Bytes of samples kept as their home."""
        self._held = HeldSamples()
        self._uses = 0

    @property
    def held_bytes(self) -> int:
        return self.kept_bytes + self._held.bytes

    def ahead(self, samples: Ints) -> Nodes:
        """Return the node to ask for each sample: this one if it holds it, another, or SOURCE.

        A home that does not hold the sample yet reads it from the source and keeps it.
        """
        asks = self.directory.holder(samples)
        here = self.directory.has(self.node, samples)
        return np.where(here, self.node, np.where(asks == self.node, SOURCE, asks)).astype(np.int16)

    def asked(self, samples: Ints, sizes: Ints) -> CacheChange:
        """Keep samples of this home, as far as they fit, and drop copies for them."""
        new = np.flatnonzero(self.is_home(samples) & ~self.directory.has(self.node, samples))
        # They fit by their homes, unless sizes are not as was thought.
        new = new[self.kept_bytes + np.cumsum(sizes[new]) <= self.room_bytes]
        self.directory.gain(self.node, samples[new])
        self.kept_bytes += int(sizes[new].sum())
        return CacheChange(samples[new], self._make_room())

    def used(self, step: int, samples: Ints, sizes: Ints, next_use: Ints) -> CacheChange:
        """Decide on a used batch; each sample once. `next_use`: at this node, by step; anything for samples of this home."""
        home = self.is_home(samples)
        kept = self.asked(samples[home], sizes[home])
        samples, sizes, next_use = samples[~home], sizes[~home], next_use[~home]
        ranks = self._ranks(step, next_use)
        held = self.directory.has(self.node, samples)
        self._held.rank_again(samples[held], ranks[held])
        useless = self._useless(samples, held, next_use)
        dropped = self._drop(samples[held & useless])
        new = ~held & ~useless
        chosen = self._choose(samples[new], ranks[new], sizes[new])
        return CacheChange(
            np.concatenate([kept.holds, chosen.holds]), np.concatenate([kept.drops, dropped, chosen.drops])
        )

    def lost(self, samples: Ints, sizes: Ints) -> None:
        """Note that held samples are gone: their bytes were damaged, or could not be stored."""
        chosen = np.isin(samples, self._held.keys)
        self._held.drop(samples[chosen])
        self.kept_bytes -= int(sizes[~chosen].sum())
        self.directory.lose(self.node, samples)

    def follow_homes(self, sizes: Ints) -> None:
        """Follow new homes. `sizes`: of all samples.

        Samples with a new home elsewhere become copies, the first to go when room is short: until then their homes can ask for them.
        """
        here = np.flatnonzero(self.directory.has(self.node, np.arange(len(sizes))))
        home, chosen = self.is_home(here), np.isin(here, self._held.keys)
        settled, left = here[home & chosen], here[~home & ~chosen]
        self._held.drop(settled)
        self._held.add(left, np.full(len(left), AFTER_ALL), sizes[left])
        self.kept_bytes += int(sizes[settled].sum()) - int(sizes[left].sum())

    # ---- what is kept as a home

    def is_home(self, samples: Ints) -> NDArray[np.bool_]:
        """Return which samples this node is the home of: it keeps them whenever they are used."""
        found: NDArray[np.bool_] = self.directory.homes[samples] == self.node
        return found

    def _make_room(self) -> Ints:
        """Drop copies for kept samples."""
        need = self.held_bytes - self.room_bytes
        if need <= 0 or not self._held.bytes:
            return np.empty(0, np.int64)
        held = self._held
        return self._drop(held.keys[highest(held.ranks, held.sizes, held.keys, need)])

    # ---- what is held by choice

    def _ranks(self, step: int, next_use: Ints) -> Ints:
        """Return the order of dropping: high first."""
        if self.rules.victims == "farthest":
            return np.where(next_use < FAR, next_use, next_use + FAR // 2 - step)
        first, self._uses = self._uses, self._uses + len(next_use)
        order = np.arange(first, self._uses, dtype=np.int64)
        return -order if self.rules.victims == "oldest" else order

    def _useless(self, samples: Ints, held: NDArray[np.bool_], next_use: Ints) -> NDArray[np.bool_]:
        """Return which used samples the rules drop, whatever the room."""
        if not self.rules.drops_far:
            return np.zeros(len(samples), np.bool_)
        elsewhere = self.directory.copies[samples] > held
        far = (next_use >= FAR) & (next_use < NEVER)
        return (far & (elsewhere | (not self.rules.guards_last))) | ((next_use >= NEVER) & elsewhere)

    def _choose(self, samples: Ints, ranks: Ints, sizes: Ints) -> CacheChange:
        """Take in new samples and drop what does not fit: of held and new ones those of highest rank."""
        held, copies = self._held, self.directory.copies
        need = self.held_bytes + int(sizes.sum()) - self.room_bytes
        if need <= 0:
            self._take(samples, ranks, sizes)
            return CacheChange(samples, np.empty(0, np.int64))
        if not len(held.keys) and int(sizes.min()) > self.room_bytes - self.held_bytes:
            return CacheChange(samples[:0], samples[:0])  # the usual case of homes without room to spare
        may_go = np.full(len(held.keys), self.rules.victims != "none")
        if self.rules.guards_last:
            may_go &= copies[held.keys] > 1
            ranks = ranks - np.where(copies[samples] > 0, 0, AFTER_ALL)  # the only copy is refused last
        places = np.flatnonzero(may_go)
        all_keys = np.concatenate([held.keys[places], samples])
        out = highest(
            np.concatenate([held.ranks[places], ranks]),
            np.concatenate([held.sizes[places], sizes]),
            all_keys,
            need,
        )
        refused = np.zeros(len(samples), np.bool_)
        refused[out[out >= len(places)] - len(places)] = True
        dropped = self._drop(held.keys[places[out[out < len(places)]]])
        if self.rules.guards_last:
            ranks = np.where(ranks < 0, ranks + AFTER_ALL, ranks)
        self._take(samples[~refused], ranks[~refused], sizes[~refused])
        return CacheChange(samples[~refused], dropped)

    def _take(self, samples: Ints, ranks: Ints, sizes: Ints) -> None:
        self._held.add(samples, ranks, sizes)
        self.directory.gain(self.node, samples)

    def _drop(self, samples: Ints) -> Ints:
        self._held.drop(samples)
        self.directory.lose(self.node, samples)
        return samples
