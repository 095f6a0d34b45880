"""Who gets which sample of a global batch.

Rule 1: the samples of a global batch stay the same; only their ranks change. Every rank gets as many as without dealing.
Rule 2: a node gets samples it is the home of, up to its share of the batch. All other samples fill the free places, in order.
Rule 3: within a node, local samples and others are each dealt round to its ranks: none has more of either than another, to within one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def deal_to_owners(homes: NDArray[np.int16], ranks: Ints, *, gpus: int) -> Ints:
    """Return the rank of each sample of a global batch, from their homes (-1: none) and their ranks without dealing.

    Node n has the ranks n * gpus ... (n + 1) * gpus - 1.
    """
    counts = np.bincount(ranks, minlength=(int(ranks.max(initial=-1)) // gpus + 1) * gpus)
    shares = counts.reshape(-1, gpus).sum(axis=1)
    nodes = len(shares)
    wanted = np.where((homes >= 0) & (homes < nodes), homes, nodes).astype(np.int64)
    order = np.argsort(wanted, kind="stable")
    in_order = wanted[order]
    ordinals = np.arange(len(order)) - np.searchsorted(in_order, in_order)
    stays = ordinals < np.append(shares, 0)[in_order]
    free = shares - np.bincount(in_order[stays], minlength=nodes)
    placed = np.empty(len(order), np.int64)
    placed[order[stays]] = in_order[stays]
    moved = np.sort(order[~stays])
    placed[moved] = np.repeat(np.arange(nodes), free)
    # A node's local samples come first, so that dealing round spreads both kinds.
    within = np.lexsort((placed != wanted, placed))
    dealt = np.empty(len(order), np.int64)
    dealt[within] = _seats(counts, gpus)
    return dealt


def _seats(counts: Ints, gpus: int) -> Ints:
    """Return the ranks in dealing order: node by node, one sample to each of its ranks in turn until each has its count."""
    ranks = np.repeat(np.arange(len(counts)), counts)
    turns = np.arange(len(ranks)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks[np.lexsort((ranks, turns, ranks // gpus))]
