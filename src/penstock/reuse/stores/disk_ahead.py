"""Read-ahead for the disk store: read a task's entries in bulk, and release each as it is taken.

Rule 1: hold at most `MOST_BYTES`, or one stretch of a task: long tasks are read in stretches.
Rule 2: flush a task's puts when it ends: its worker may exit the next moment.
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
"""Limits for the entries of a stretch, which adapts to recent entry sizes."""


class Given(NamedTuple):
    """An entry the caller owns."""

    entry: Entry

    @property
    def mark(self) -> tuple[int, int]:
        """No number: the entry cannot change."""
        return 0, 0

    def holds(self) -> bool:
        return True


class DiskAhead:
    """The disk store as a loader uses it, from one thread."""

    lasts = True
    lends_many = False
    """Prefetched entries are held until used."""

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
        """Announce the next lookups, in order, once each."""
        self._expected = list(wanted)
        self._place = {each: at for at, each in enumerate(self._expected)}
        self._read: dict[Wanted, Entry | None] = {}
        self._ends = False

    def get(self, wanted: Wanted) -> Entry | None:
        place = self._place.pop(wanted, None)
        if place is None:  # unannounced
            return self.store.get(wanted)
        if wanted not in self._read:
            self._read_from(place)
        found = self._read.pop(wanted)
        self._ends = not self._place
        # guard: flush-last-found
        if self._ends:  # a put for the last one may or may not follow
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
