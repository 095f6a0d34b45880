"""Who gets which sample of a global batch.

Rule 1: the samples of a global batch stay the same; only their ranks change. Every rank gets as many as without dealing.
Rule 2: a node gets samples it is the home of, up to its share of the batch. All other samples fill the free places, in order.
Rule 3: within a node, local samples and others are each dealt round to its ranks: none has more of either than another, to within one.

Every rank deals every global batch, so this must be fast: numbers that are sorted have 16 bits, for which NumPy counts instead of comparing.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Nodes = NDArray[np.int16]


class SampleOwners(Protocol):
    """Where samples are kept. Equal owners keep the same samples in the same places."""

    @property
    def gpus(self) -> int:
        """Ranks of a node: node n has the ranks n * gpus ... (n + 1) * gpus - 1."""

    def homes(self, samples: int) -> Nodes:
        """Return the node of each of `samples` samples; -1: none."""

    def facts(self) -> dict[str, Any]:
        """Return what they follow from, as plain values for a checkpoint."""

    def __hash__(self) -> int: ...


def deal_to_owners(homes: Nodes, ranks: Ints, *, gpus: int) -> Ints:
    """Return the rank of each sample of a global batch, from their homes (-1: none) and their ranks without dealing.

    Node n has the ranks n * gpus ... (n + 1) * gpus - 1.
    """
    counts = np.bincount(ranks, minlength=(int(ranks.max(initial=-1)) // gpus + 1) * gpus)
    shares = counts.reshape(-1, gpus).sum(axis=1)
    nodes = len(shares)
    wanted = np.where((homes >= 0) & (homes < nodes), homes, nodes).astype(np.uint16)
    wants = np.bincount(wanted, minlength=nodes + 1)
    order = np.argsort(wanted, kind="stable")
    ordinals = np.arange(len(order)) - np.repeat(np.cumsum(wants) - wants, wants)
    stays = ordinals < np.repeat(np.append(shares, 0), wants)
    placed = wanted.copy()
    moved = np.sort(order[~stays])
    placed[moved] = np.repeat(np.arange(nodes), shares - np.minimum(wants[:nodes], shares))
    # A node's local samples come first, so that dealing round spreads both kinds.
    is_moved = np.zeros(len(order), np.uint16)
    is_moved[moved] = 1
    within = np.argsort(2 * placed + is_moved, kind="stable")
    dealt = np.empty(len(order), np.int64)
    dealt[within] = _seats(counts, gpus)
    return dealt


def _seats(counts: Ints, gpus: int) -> Ints:
    """Return the ranks in dealing order: node by node, one sample to each of its ranks in turn until each has its count."""
    turns = np.arange(counts.max(initial=0)).reshape(1, -1, 1)
    taken = turns < counts.reshape(-1, 1, gpus)
    seats: Ints = np.broadcast_to(np.arange(len(counts)).reshape(-1, 1, gpus), taken.shape)[taken]
    return seats
