"""Which node of a group keeps which sample.

Rule 1: a sample's home is a pure function of (seed, members, sizes): every node computes the same, on every platform, and asks nobody.
Rule 2: each node draws a number for each sample; the lowest draw is the home (rendezvous hashing). Draws are exponential with the node's room
        as rate, so a node's share is proportional to its room.
Rule 3: a node takes its lowest draws first. Samples that do not fit go to the lowest draw among nodes that are not full. What fits
        nowhere is kept nowhere, and read from the source in every epoch.
Rule 4: a draw does not depend on other nodes. If there is room for all, a node that joins or leaves moves its own share and nothing else.
        If not, other nodes change at most about as much: room for a sample that lost its home is room of another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.plan.permutation import hashes
from penstock.plan.seeds import home_key

Ints = NDArray[np.int64]
Nodes = NDArray[np.int16]
NOWHERE: Final = -1
MOST_NODES: Final = 1 << 15
CHUNK: Final = 1 << 14  # samples drawn for at a time: they stay in the second-level cache


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A node of a group."""

    name: int
    """Any integer; it stays the same when others join or leave."""
    room_bytes: int
    """Bytes of samples the node can keep; 0 for a node that has left and keeps its index."""

    def __post_init__(self) -> None:
        if self.room_bytes < 0:
            raise ConfigError(f"room_bytes must be at least 0, got {self.room_bytes}")


def find_homes(seed: int, members: Sequence[GroupMember], sizes: Ints) -> Nodes:
    """Return each sample's home, as an index into `members`, or NOWHERE."""
    if len(members) > MOST_NODES or len({member.name for member in members}) < len(members):
        raise ConfigError(f"a group has at most {MOST_NODES} nodes, each with a name of its own")
    homes = np.full(len(sizes), NOWHERE, np.int16)
    rooms = np.array([member.room_bytes for member in members], np.int64)
    weights = [float(member.room_bytes) for member in members]
    keys = [home_key(seed, member.name) for member in members]
    has_room = rooms > 0
    left = np.arange(len(sizes), dtype=np.int64)
    while left.size and has_room.any():
        asked = np.flatnonzero(has_room)
        first, draws = _lowest(left, sizes[left], asked, rooms, keys, weights)
        found = first != NOWHERE  # a sample larger than any room left has no home
        left, first, draws = left[found], first[found], draws[found]
        order = np.lexsort((draws, first))  # by node, lowest draws first
        left, first = left[order], first[order]
        sums = np.cumsum(sizes[left])
        starts = np.searchsorted(first, np.arange(len(members)))
        before = np.concatenate([[0], sums])[starts]
        fits = sums - before[first] <= rooms[first]
        homes[left[fits]] = first[fits]
        np.subtract.at(rooms, first[fits], sizes[left[fits]])
        left, first = left[~fits], first[~fits]
        has_room[first] = False
        left.sort()
    return homes


def _lowest(
    samples: Ints, sizes: Ints, asked: Ints, rooms: Ints, keys: Sequence[int], weights: Sequence[float]
) -> tuple[Nodes, NDArray[np.float64]]:
    """Return the node with the lowest draw for each sample, among those asked that have room for it, and the draw."""
    nodes = np.full(len(samples), NOWHERE, np.int16)
    lowest = np.full(len(samples), np.inf)
    # With equal weights, the lowest uniform draw is the lowest exponential one.
    weighted = len({weights[node] for node in asked.tolist()}) > 1
    largest = int(sizes.max())
    for start in range(0, len(samples), CHUNK):
        part = slice(start, start + CHUNK)
        best, who = lowest[part], nodes[part]
        for node in asked.tolist():
            draws: NDArray[np.float64] = hashes(samples[part], keys[node]).astype(np.float64) * 2.0**-64
            if weighted:
                draws = exponential(draws) / weights[node]
            if rooms[node] < largest:
                draws[sizes[part] > rooms[node]] = np.inf
            lower = draws < best
            np.copyto(best, draws, where=lower)
            np.copyto(who, np.int16(node), where=lower)
    return nodes, lowest


def exponential(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return about -log(1 - u) by sums and products alone: a library's logarithm differs between machines in its last bit.

    It is exact for small u, which lowest draws are.
    """
    t = uniform / (2.0 - uniform)
    t2 = t * t
    series = t2 / 13.0 + 1.0 / 11.0
    for divisor in (9.0, 7.0, 5.0, 3.0, 1.0):
        series = series * t2 + 1.0 / divisor
    return 2.0 * t * series


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What decides where samples are kept: small enough for a checkpoint, and the same on every rank.

    All samples count as equally large. With sizes that differ, a sample's home is nearly always the same, and sizes need not be stored.
    """

    seed: int
    members: tuple[GroupMember, ...]
    sample_bytes: int
    """Bytes of a sample, in the mean."""
    gpus: int
    """Ranks of a node: member n has the ranks n * gpus ... (n + 1) * gpus - 1."""

    def __post_init__(self) -> None:
        if self.sample_bytes < 1 or self.gpus < 1:
            raise ConfigError(
                f"sample_bytes and gpus must be at least 1, got {self.sample_bytes} and {self.gpus}"
            )

    def homes(self, samples: int) -> Nodes:
        """Return the home of each of `samples` samples, or NOWHERE."""
        return _homes_of(self, samples)

    def facts(self) -> dict[str, Any]:
        """Return it as plain values, for a checkpoint."""
        return asdict(self) | {"members": [[member.name, member.room_bytes] for member in self.members]}

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Ownership:
        members = tuple(GroupMember(name=name, room_bytes=room) for name, room in facts["members"])
        return cls(**facts | {"members": members})


@lru_cache(maxsize=2)
def _homes_of(owners: Ownership, samples: int) -> Nodes:
    homes = find_homes(owners.seed, owners.members, np.full(samples, owners.sample_bytes, np.int64))
    homes.setflags(write=False)
    return homes
