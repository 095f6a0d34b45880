"""Who holds what: one node's view of a group, and the samples a node holds by its own choice. Values only; no byte is here."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.policy.homes import NOWHERE, Nodes

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
SOURCE: Final = NOWHERE
"""No node of the group holds the sample."""


class Directory:
    """Which node holds which sample: a bit each."""

    def __init__(self, samples: int, nodes: int, homes: Nodes | None = None) -> None:
        self.nodes = nodes
        self.homes = np.full(samples, NOWHERE, np.int16) if homes is None else homes
        """The node that keeps a sample and never drops it; NOWHERE if none does."""
        self.copies = np.zeros(samples, np.int16)
        """Nodes that hold a sample."""
        self._bits = np.zeros((samples, -(-nodes // 8)), np.uint8)

    def has(self, node: int, samples: Ints) -> Mask:
        found: Mask = (self._bits[samples, node >> 3] & np.uint8(1 << (node & 7))) != 0
        return found

    def gain(self, node: int, samples: Ints) -> None:
        """Note samples, none of which the node held."""
        self._bits[samples, node >> 3] |= np.uint8(1 << (node & 7))
        self.copies[samples] += np.int16(1)

    def lose(self, node: int, samples: Ints) -> None:
        """Note samples that the node held and dropped."""
        self._bits[samples, node >> 3] &= np.uint8(~(1 << (node & 7)) & 255)
        self.copies[samples] -= np.int16(1)

    def forget(self, node: int) -> None:
        """Note that a node is gone, with all it held."""
        self.lose(node, np.flatnonzero(self.has(node, np.arange(len(self.copies)))))

    def at_home(self, samples: Ints) -> Mask:
        """Return which samples are held by their home."""
        homes = self.homes[samples]
        bits = self._bits[samples, homes >> 3] >> (homes & 7).astype(np.uint8) & np.uint8(1)
        found: Mask = (homes != NOWHERE) & (bits != 0)
        return found

    def holder(self, samples: Ints) -> Nodes:
        """Return a node to ask for each sample: its home, unless only others hold it; SOURCE if it has no home and nobody holds it."""
        found = self.homes[samples]
        strays = np.flatnonzero(~self.at_home(samples) & (self.copies[samples] > 0))
        found[strays] = np.unpackbits(self._bits[samples[strays]], axis=1, bitorder="little").argmax(axis=1)
        return found


class HeldSamples:
    """Samples of one node with their sizes and ranks; the highest rank is dropped first. Keys are sorted."""

    def __init__(self) -> None:
        self.keys = np.empty(0, np.int64)
        self.ranks = np.empty(0, np.int64)
        self.sizes = np.empty(0, np.int64)
        self.bytes = 0

    def rank_again(self, keys: Ints, ranks: Ints) -> None:
        """Give new ranks to samples that are held."""
        self.ranks[np.searchsorted(self.keys, keys)] = ranks

    def add(self, keys: Ints, ranks: Ints, sizes: Ints) -> None:
        order = np.argsort(keys)
        keys, ranks, sizes = keys[order], ranks[order], sizes[order]
        at = np.searchsorted(self.keys, keys)
        self.keys = np.insert(self.keys, at, keys)
        self.ranks = np.insert(self.ranks, at, ranks)
        self.sizes = np.insert(self.sizes, at, sizes)
        self.bytes += int(sizes.sum())

    def drop(self, keys: Ints) -> None:
        at = np.searchsorted(self.keys, keys)
        self.bytes -= int(self.sizes[at].sum())
        self.keys, self.ranks, self.sizes = (
            np.delete(held, at) for held in (self.keys, self.ranks, self.sizes)
        )


def highest(ranks: Ints, sizes: Ints, keys: Ints, need_bytes: int) -> Ints:
    """Return where the samples of highest rank stand, by rank and then key, until they have `need_bytes`; all if they never do."""
    take = 64
    while True:
        take = min(len(ranks), 4 * take)
        # Equal ranks must all be looked at, or the partition would choose among them.
        least = np.partition(ranks, len(ranks) - take)[len(ranks) - take] if take else 0
        at = np.flatnonzero(ranks >= least)
        at = at[np.lexsort((keys[at], -ranks[at]))]
        freed = np.cumsum(sizes[at])
        if take == len(ranks) or freed[-1] >= need_bytes:
            return at[: int(np.searchsorted(freed, need_bytes)) + 1]
