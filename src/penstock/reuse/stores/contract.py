"""What keeps partly prepared samples: the contract of its stores, in memory, on disk, on a device.

Rule 1: an entry is known by its sample and the epoch in which it was renewed. `get` gives what `put` was given for both, byte for byte,
        or nothing; it never gives anything else, whatever was killed, torn, damaged, full or removed meanwhile.
Rule 2: a store may forget: whoever finds nothing prepares the sample again. So `put` may refuse, and no failure of a store ends an epoch.
Rule 3: a sample has one entry. One that was renewed later takes the place of the one before.
Rule 4: all processes of a job use one store at once, and any of them may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Make = Callable[[NDArray[np.uint8] | None], NDArray[np.uint8]]
"""Makes values, in the place that it is given if it can."""


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


class Lent(Protocol):
    """An entry where it lies. Something else may be written there while it is read."""

    @property
    def entry(self) -> Entry: ...

    @property
    def mark(self) -> tuple[int, int]:
        """Where a number lies, as long as the entry is referred to, and that number: it is another as soon as the entry may be. Both are 0 of an
        entry that is the caller's."""

    def holds(self) -> bool:
        """Whether all that was read of it up to now was the entry."""


class PartialStore(Protocol):
    """As datasets use it that reuse samples; in each process one thread."""

    now: int
    """The epoch, as far as is known."""
    lasts: bool
    """Whether others than this run may come by entries: then nothing may be put that runs code when it is read."""
    lends_many: bool
    """Whether all samples of a task may be borrowed before the first is used."""

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """These will be asked for next, in this order, once each."""

    def borrow(self, wanted: Wanted) -> Lent | None:
        """The entry, if it is there."""

    def get(self, wanted: Wanted) -> Entry | None:
        """The same, as the caller's own."""

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        """Several at once, in this order."""

    def put(self, wanted: Wanted, entry: Entry) -> bool:
        """Keep it, if there is room; whether it is kept. The values may be changed afterwards."""

    def make(
        self, wanted: Wanted, shape: tuple[int, ...], extra: bytes, make: Make, /
    ) -> tuple[NDArray[np.uint8], Lent | None]:
        """The values that `make` makes, of this shape, and keep them, if there is room; where they were made in the store, lent from there."""

    def remove(self, sample: int) -> None:
        """Forget a sample's entry, if there is one."""

    def stats(self) -> dict[str, int]:
        """`entries`, `bytes` (of what is kept) and `held_bytes` (that the store takes), `max_bytes`."""

    def close(self) -> None:
        """Give back what this process has of it; the entries stay for others."""
