"""Partly prepared samples in device memory: the index lies in shared memory (`chunks`), the bytes in one tensor of the training process.

Workers look up a sample or reserve a place for it; they never see its bytes. The thread that transfers batches (`gpu.residents`) copies it to its
place and reads it from there.

Rule 1: without memory on the device, no place is given out.
Rule 2: the owner of the memory writes a row once the bytes are there: a reserved place that is never sent has no row.
Rule 3: the first write to a newly claimed chunk is recorded before it begins (`begin`). A read from a chunk is valid only if no such write had
        begun by then (`hold`). A claim alone invalidates nothing: entries in transit stay right until the first write.
Rule 4: writes for different generations of a chunk never overlap.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.reuse.stores.chunks import (
    FOUND,
    GENERATION,
    LINE,
    MISSED,
    OFFSET,
    PUT,
    SIZE,
    THERE,
    ChunkIndex,
    ChunkLayout,
    fence,
)
from penstock.reuse.stores.contract import Entry, Make, Wanted
from penstock.wire.extents import aligned

CHANNELS = 3
"""Required number of channels; other images, and non-byte types, are not stored here."""
HALF = 32
"""Bits for the width in a row's size; the height is above them."""


class DevicePlace(NamedTuple):
    """Place of a sample on the device, as its slot names it."""

    sample: int
    renewed: int
    offset: int
    generation: int

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.sample, self.renewed)


Places = NDArray[np.int64]
"""Many places: one row each."""


class Resident(NamedTuple):
    """An image that is resident on the device."""

    size: tuple[int, int]
    place: DevicePlace

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.size, CHANNELS)


class DeviceStore(ChunkIndex):
    IN_FILE = False
    lasts = lends_many = False

    def _lay(self, memory: mmap.mmap | bytearray, layout: ChunkLayout) -> None:
        super()._lay(memory, layout)
        self.arena: Any = None
        """The bytes, in the process that owns them."""
        self._returned: Callable[[], None] | None = None
        self.opening, self.was_tried = threading.Lock(), False
        """For allocating the memory once."""
        self._guard = threading.Lock()
        self._written = np.zeros(len(self.chunks), np.int64)
        """Generation whose bytes each chunk holds, or is about to."""
        self._writing: dict[int, list[int]] = {}
        """Chunks being written: generation and number of writes."""

    # ---- workers

    @property
    def is_open(self) -> bool:
        return bool(self._there())

    def _there(self) -> int:
        return int(self._head[THERE]) if len(self._head) else 0

    def _usable(self) -> NDArray[np.int64]:
        return self.chunks[: self._there()]

    def find(self, wanted: Wanted) -> Resident | None:
        """Return where a sample is; it may be evicted before it is used."""
        if not 0 <= wanted.sample < len(self.rows):
            return None
        there = self.found(wanted) if self.is_open else None
        self._count(MISSED if there is None else FOUND)
        if there is None:
            return None
        row = there[0]
        size = row[SIZE] >> HALF, row[SIZE] & ((1 << HALF) - 1)
        return Resident(size, DevicePlace(*wanted, row[OFFSET], row[GENERATION]))

    def reserve(self, wanted: Wanted, size: tuple[int, int]) -> DevicePlace | None:
        """Reserve a place for a missing sample; None if it should not be stored."""
        if not 0 <= wanted.sample < len(self.rows) or not self.is_open:
            return None
        self.now = max(self.now, wanted.renewed)
        end = self.renewal.ends(wanted.sample, wanted.renewed)
        if end <= self.now + 1:  # nobody will ask for it
            return None
        self._count(PUT)
        nbytes = aligned(CHANNELS * size[0] * size[1], LINE)
        offset = self._room(nbytes, end) if nbytes <= self.chunk_bytes else -1
        if offset < 0:
            self._refuse(nbytes)
            return None
        return DevicePlace(*wanted, offset, int(self.chunks[offset // self.chunk_bytes, 0]))

    def borrow(self, wanted: Wanted) -> None:
        """Return nothing: the host has no bytes."""

    def get(self, wanted: Wanted) -> None:
        """Return nothing, as `borrow`."""

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        return [None for _ in wanted]

    def put(self, wanted: Wanted, entry: Entry) -> bool:  # noqa: ARG002 - as other stores have it
        """Refuse: whoever sends the sample to the device stores it."""
        return False

    def make(
        self, _wanted: Wanted, _shape: tuple[int, ...], _extra: bytes, make: Make, /
    ) -> tuple[NDArray[np.uint8], None]:
        return make(None), None

    # ---- the process that has the memory; any thread

    def open(self, arena: Any, returned: Callable[[], None] | None = None) -> None:
        """Enable reservations, in as many chunks as fit the arena. `returned`: called when the memory is released."""
        with self._guard:
            self.arena, self._returned = arena, returned
            fence()
            self._head[THERE] = min(len(self.chunks), len(arena) // self.chunk_bytes)

    def begin(self, places: Sequence[DevicePlace]) -> list[bool]:
        """Return which places may be written now; call `end` for those."""
        found: list[bool] = []
        with self._guard:
            for place in places:
                chunk = place.offset // self.chunk_bytes
                others = self._writing.get(chunk)
                # guard: may-write
                may = self._is_of(chunk, place) and (others is None or others[0] == place.generation)
                if may:
                    self._written[chunk] = place.generation  # guard: write-noted
                    self._writing[chunk] = [place.generation, 1 + (others[1] if others else 0)]
                found.append(may)
        return found

    def end(self, places: Sequence[DevicePlace], sizes: Sequence[tuple[int, int]] | None) -> None:
        """Complete writes after the device is done. `sizes`: of the images; None on failure."""
        with self._guard:
            for number, place in enumerate(places):
                chunk = place.offset // self.chunk_bytes
                if sizes is not None and self._is_of(chunk, place):  # guard: row-of-chunk
                    height, width = sizes[number]
                    self.note(place.wanted, place.offset, height << HALF | width, place.generation)
                self._writing[chunk][1] -= 1
                if not self._writing[chunk][1]:
                    del self._writing[chunk]

    def hold(self, places: Places) -> NDArray[np.bool_]:
        """Return for each place whether everything read so far was the sample."""
        chunks = places[:, DevicePlace._fields.index("offset")] // self.chunk_bytes
        with self._guard:
            if self.arena is None:
                return np.zeros(len(places), np.bool_)
            found: NDArray[np.bool_] = (
                self._written[chunks] == places[:, DevicePlace._fields.index("generation")]
            )
            return found

    def _is_of(self, chunk: int, place: DevicePlace) -> bool:
        """Return whether the chunk still has the place's generation."""
        return 0 <= chunk < self._there() and int(self.chunks[chunk, 0]) == place.generation

    # ---- the rest

    def stats(self) -> dict[str, int]:
        return {**super().stats(), "held_bytes": self._there() * self.chunk_bytes}

    def _sum_of(self, sizes: Any) -> int:
        return int((CHANNELS * (sizes >> HALF) * (sizes & ((1 << HALF) - 1))).sum())

    def close(self) -> None:
        """Release the memory: lookups miss, nothing is reserved, entries in transit are invalid."""
        with self._guard:
            self._give_back()
            if len(self._head):
                self._head[THERE] = 0
            super().close()

    def _give_back(self) -> None:
        had, self.arena = self.arena is not None, None
        if had and self._returned is not None:
            self._returned()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be exiting, or it was never opened
            self._give_back()
