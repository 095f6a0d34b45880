"""Reading ahead from the store on disk: what a task will ask for is read at once, and let go of as it is taken.

Rule 1: no more is held than `MOST_BYTES`, or one stretch of a task: a task of any length is read in stretches.
Rule 2: what a task puts, others see when it has ended: a worker may be gone the moment after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.reuse.stores.contract import Entry, Make, Wanted
from penstock.reuse.stores.disk import DiskStore

MOST_BYTES = 16 << 20
FEWEST, MOST = 4, 256
"""Entries of a stretch: by the size of those that were read last."""


class Given(NamedTuple):
    """An entry that is the caller's."""

    entry: Entry

    @property
    def mark(self) -> tuple[int, int]:
        """There is no number that could change."""
        return 0, 0

    def holds(self) -> bool:
        return True


class DiskAhead:
    """A store on disk as a loader uses it. Of one thread."""

    lasts = True
    lends_many = False
    """What is read ahead is held until it is used."""

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        self.now = 0
        self._stretch = 16
        self.expect([])

    def __getstate__(self) -> DiskStore:
        return self.store

    def __setstate__(self, store: DiskStore) -> None:
        self.__init__(store)  # type: ignore[misc]

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """These will be asked for next, in this order, once each."""
        self._expected = list(wanted)
        self._place = {each: at for at, each in enumerate(self._expected)}
        self._read: dict[Wanted, Entry | None] = {}
        self._ends = False

    def get(self, wanted: Wanted) -> Entry | None:
        place = self._place.pop(wanted, None)
        if place is None:  # nobody said so
            return self.store.get(wanted)
        if wanted not in self._read:
            self._read_from(place)
        found = self._read.pop(wanted)
        self._ends = not self._place
        # guard: flush-last-found
        if self._ends:  # whether anything is put for the last of them, nobody knows
            self.store.flush()
        return found

    def _read_from(self, place: int) -> None:
        stretch = self._expected[place : place + self._stretch]
        self._read = dict(zip(stretch, self.store.get_many(stretch), strict=True))
        sizes = [entry.values.nbytes for entry in self._read.values() if entry is not None]
        if sizes:
            self._stretch = max(FEWEST, min(MOST, MOST_BYTES // (max(sizes) or 1)))

    def borrow(self, wanted: Wanted) -> Given | None:
        found = self.get(wanted)
        return None if found is None else Given(found)

    def put(self, wanted: Wanted, entry: Entry) -> bool:
        kept = self.store.put(wanted, entry)
        if self._ends:  # guard: flush-last-put
            self.store.flush()
        return kept

    def make(
        self, wanted: Wanted, _: tuple[int, ...], extra: bytes, make: Make, /
    ) -> tuple[NDArray[np.uint8], None]:
        values = make(None)
        self.put(wanted, Entry(values, extra))
        return values, None

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        return self.store.get_many(wanted)

    def remove(self, sample: int) -> None:
        self.store.remove(sample)

    def stats(self) -> dict[str, int]:
        return self.store.stats()

    def close(self) -> None:
        self.store.close()
