"""What keeps partly prepared samples: the contract of its stores, in memory, on disk, on a device.

Rule 1: an entry is known by its sample and the epoch in which it was renewed. `get` gives what `put` was given for both, byte for byte,
        or nothing; it never gives anything else, whatever was killed, torn, damaged, full or removed meanwhile.
Rule 2: a store may forget: whoever finds nothing prepares the sample again. So `put` may refuse, and no failure of a store ends an epoch.
Rule 3: a sample has one entry. One that was renewed later takes the place of the one before.
Rule 4: all processes of a job use one store at once, and any of them may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray


class Entry(NamedTuple):
    values: NDArray[Any]
    """Of a plain type, in C order; read-only where a store gave it."""
    extra: bytes = b""
    """What else belongs to the sample, its target, as whoever put it wrote it down."""


class Wanted(NamedTuple):
    sample: int
    """From 0 on."""
    renewed: int
    """An epoch."""


class PartialStore(Protocol):
    def get(self, wanted: Wanted) -> Entry | None:
        """The entry, if it is there."""

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        """Several at once, in this order."""

    def put(self, wanted: Wanted, entry: Entry) -> bool:
        """Keep it, if there is room; whether it is kept. The values may be changed afterwards."""

    def remove(self, sample: int) -> None:
        """Forget a sample's entry, if there is one."""

    def stats(self) -> dict[str, int]:
        """`entries`, `bytes` (of what is kept) and `held_bytes` (that the store takes), `max_bytes`."""

    def close(self) -> None:
        """Give back what this process has of it; the entries stay for others."""
