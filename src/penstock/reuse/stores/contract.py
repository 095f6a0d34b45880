"""The contract of all stores of partly prepared samples: in memory, on disk, on a device.

Rule 1: the key of an entry is its sample and renewal epoch. `get` returns what `put` was given for that key, byte for byte, or nothing, whatever
        was killed, torn, damaged, full or removed meanwhile.
Rule 2: a store may forget: on a miss the sample is prepared again. So `put` may refuse, and no store failure ends an epoch.
Rule 3: a sample has one entry. A later renewal replaces it.
Rule 4: all processes of a job share one store concurrently, and any may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Make = Callable[[NDArray[np.uint8] | None], NDArray[np.uint8]]
"""Makes values, in the given buffer if it can."""


class Entry(NamedTuple):
    values: NDArray[Any]
    """Of a plain type, in C order; read-only if a store returned it."""
    extra: bytes = b""
    """The sample's serialized target."""


class Wanted(NamedTuple):
    sample: int
    renewed: int
    """The renewal epoch."""


class Lent(Protocol):
    """A borrowed entry, in place. It may be overwritten while it is read."""

    @property
    def entry(self) -> Entry: ...

    @property
    def mark(self) -> tuple[int, int]:
        """An address and its expected number: the number changes as soon as the entry may. The address is valid while the entry is referenced. Both
        are 0 for an entry the caller owns."""

    def holds(self) -> bool:
        """Return whether everything read so far was the entry."""


class PartialStore(Protocol):
    """A store as reusing datasets call it; one thread per process."""

    now: int
    """The current epoch, as far as known."""
    lasts: bool
    """Whether entries outlive this run: then nothing may be stored that runs code when read."""
    lends_many: bool
    """Whether all samples of a task may be borrowed before the first is used."""

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """Announce the next lookups, in order, once each."""

    def borrow(self, wanted: Wanted) -> Lent | None:
        """Return the entry in place, if found."""

    def get(self, wanted: Wanted) -> Entry | None:
        """Return a copy that the caller owns, if found."""

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        """Return several entries, in order."""

    def put(self, wanted: Wanted, entry: Entry) -> bool:
        """Store the entry if there is room; return whether it is stored. The values may be changed afterwards."""

    def make(
        self, wanted: Wanted, shape: tuple[int, ...], extra: bytes, make: Make, /
    ) -> tuple[NDArray[np.uint8], Lent | None]:
        """Make values of this shape and store them if there is room. If they were made inside the store, also return the loan."""

    def remove(self, sample: int) -> None:
        """Remove a sample's entry, if any."""

    def stats(self) -> dict[str, int]:
        """Return `entries`, their `bytes`, `held_bytes` (size of the store) and `max_bytes`."""

    def close(self) -> None:
        """Release this process's resources; the entries stay for others."""
