"""Partly prepared samples in a device's memory: the index lies in shared memory (`chunks`), the bytes in one tensor of the training process.

Workers look a sample up, or reserve a place for it; they never see its bytes. Whoever brings batches to the device (`gpu.residents`) copies it
to its place and has it read from there.

Rule 1: until there is memory on the device, and where there is none, no place is given out.
Rule 2: a row is written when the bytes lie there, by the process that has the memory: what a worker reserves and never sends has no row.
Rule 3: the first write to a chunk that was claimed anew is noted before it is begun (`begin`). What was read from a chunk counts only if none was
        begun by then (`hold`). A chunk may have been claimed long before: what is on its way to the device is still right until then.
Rule 4: nobody writes to a chunk while what was meant for an earlier or a later generation of it is being written.
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
"""Of all that is kept here: what has others, and what is not of bytes, is not."""
HALF = 32
"""Bits of a row's size: its height is above them, its width below."""


class DevicePlace(NamedTuple):
    """Of a sample on the device, as its slot names it."""

    sample: int
    renewed: int
    offset: int
    generation: int

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.sample, self.renewed)


Places = NDArray[np.int64]
"""Many of them: their numbers in columns."""


class Resident(NamedTuple):
    """An image that lies on the device."""

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
        """The bytes, in the process that has them."""
        self._returned: Callable[[], None] | None = None
        self.opening, self.was_tried = threading.Lock(), False
        """For whoever takes the memory: once."""
        self._guard = threading.Lock()
        self._written = np.zeros(len(self.chunks), np.int64)
        """Of each chunk the generation whose bytes it holds, or is about to."""
        self._writing: dict[int, list[int]] = {}
        """Chunks that are being written, with how many writes there are."""

    # ---- workers

    @property
    def is_open(self) -> bool:
        return bool(self._there())

    def _there(self) -> int:
        return int(self._head[THERE]) if len(self._head) else 0

    def _usable(self) -> NDArray[np.int64]:
        return self.chunks[: self._there()]

    def find(self, wanted: Wanted) -> Resident | None:
        """Where a sample is; it may be gone when it is used."""
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
        """A place for a sample that is not there; None where it is not to be kept."""
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
        """Never an entry: there are no bytes on the host."""

    def get(self, wanted: Wanted) -> None:
        """Never, either."""

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        return [None for _ in wanted]

    def put(self, wanted: Wanted, entry: Entry) -> bool:  # noqa: ARG002 - as other stores have it
        """Never here: whoever sends it to the device keeps it."""
        return False

    def make(
        self, _wanted: Wanted, _shape: tuple[int, ...], _extra: bytes, make: Make, /
    ) -> tuple[NDArray[np.uint8], None]:
        return make(None), None

    # ---- the process that has the memory; any thread

    def open(self, arena: Any, returned: Callable[[], None] | None = None) -> None:
        """From now on places are given out, in as many chunks as fit there. `returned`: called when the memory was let go of."""
        with self._guard:
            self.arena, self._returned = arena, returned
            fence()
            self._head[THERE] = min(len(self.chunks), len(arena) // self.chunk_bytes)

    def begin(self, places: Sequence[DevicePlace]) -> list[bool]:
        """Which of these may be written now; `end` must be told of those."""
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
        """These were written, and the device is done with it; their sizes, unless something went wrong."""
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
        """Whether what was read of each up to now was the sample."""
        chunks = places[:, DevicePlace._fields.index("offset")] // self.chunk_bytes
        with self._guard:
            if self.arena is None:
                return np.zeros(len(places), np.bool_)
            found: NDArray[np.bool_] = (
                self._written[chunks] == places[:, DevicePlace._fields.index("generation")]
            )
            return found

    def _is_of(self, chunk: int, place: DevicePlace) -> bool:
        """Whether a place is in a chunk of that generation still."""
        return 0 <= chunk < self._there() and int(self.chunks[chunk, 0]) == place.generation

    # ---- the rest

    def stats(self) -> dict[str, int]:
        return {**super().stats(), "held_bytes": self._there() * self.chunk_bytes}

    def _sum_of(self, sizes: Any) -> int:
        return int((CHANNELS * (sizes >> HALF) * (sizes & ((1 << HALF) - 1))).sum())

    def close(self) -> None:
        """From now on nothing is found here or given a place; what is on its way does not hold."""
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
        with contextlib.suppress(Exception):  # the interpreter may be going, or it was never opened
            self._give_back()
