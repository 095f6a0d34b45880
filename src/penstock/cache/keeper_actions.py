"""What the keeper of a dataset says must be done (`keeper`). All are plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

Ranges = Sequence[tuple[str, int, int | None]]
Asker = Any
"""A batch of a rank, or a peer: any hashable value."""


class ReadSource(NamedTuple):
    """Read a sample from its source."""

    sample: int
    ranges: Ranges
    step: int
    rank: int


class ReadDisk(NamedTuple):
    sample: int
    ranges: Ranges


class AskPeer(NamedTuple):
    node: int
    sample: int
    ranges: Ranges
    step: int


class Land(NamedTuple):
    """Tell a batch's asker where a sample is, and keep it there until the batch is over."""

    batch: Asker
    ordinal: int
    sample: int
    lengths: tuple[int, ...]


class LeaveUnread(NamedTuple):
    """Tell a batch's asker that it must read a sample itself."""

    batch: Asker
    ordinal: int


class Give(NamedTuple):
    """Send a sample to a peer; then comes `given`."""

    peer: Asker
    sample: int
    lengths: tuple[int, ...]


class Refuse(NamedTuple):
    """Tell a peer that it must ask the source."""

    peer: Asker
    sample: int


class Evict(NamedTuple):
    """Forget a sample's bytes in memory."""

    sample: int


class Spill(NamedTuple):
    """Copy a sample from memory to disk; then comes `spilled`."""

    sample: int
    ranges: Ranges


class Unspill(NamedTuple):
    """Forget a sample on disk."""

    sample: int
    ranges: Ranges


class AnnounceHeld(NamedTuple):
    """Tell the other nodes what this one holds from now on, and what no more."""

    holds: tuple[int, ...]
    drops: tuple[int, ...]


KeeperAction = (
    ReadSource
    | ReadDisk
    | AskPeer
    | Land
    | LeaveUnread
    | Give
    | Refuse
    | Evict
    | Spill
    | Unspill
    | AnnounceHeld
)
