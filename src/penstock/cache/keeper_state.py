"""What the keeper knows of a sample and of a batch (`keeper`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.cache.keeper_actions import Asker, Ranges

DISK: Final = -2
"""Asked of this machine's disk, beside the nodes and SOURCE."""
PARKED: Final = -3
"""Asked of nobody until there is room."""


@dataclass(slots=True, eq=False)
class CachedSample:
    """A sample that is held, on its way, or in use."""

    ranges: Ranges
    asked: int | None = None
    """Whom it was asked of: a node, SOURCE, DISK or PARKED. None: nobody is asked now."""
    here: bool = False
    """Whether its bytes are in memory."""
    stays: bool = False
    """Whether its bytes stay in memory while it is kept."""
    on_disk: bool = False
    spilling: bool = False
    kept: bool = False
    """Whether the policy holds it."""
    size: int = 0
    """Bytes of memory that it takes."""
    lengths: tuple[int, ...] = ()
    waiting: list[tuple[Asker, int]] = field(default_factory=list)
    """Batches that wait for it, and its place there."""
    peers: list[Asker] = field(default_factory=list)
    """Peers that wait for it."""
    users: int = 0
    """Batches and peers that were told of it and are not over."""
    step: int = 0
    rank: int = 0

    @property
    def is_idle(self) -> bool:
        return not (self.users or self.waiting or self.peers or self.spilling or self.asked is not None)


@dataclass(slots=True, eq=False)
class OpenBatch:
    step: int
    rank: int
    samples: list[int]
    told: set[int] = field(default_factory=set)
    """Places whose sample has landed."""
