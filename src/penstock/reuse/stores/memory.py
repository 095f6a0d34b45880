"""Partly prepared samples in memory: one anonymous memory file, mapped by all processes of a loader and by other ranks of the machine.

The index in the same file says what lies where, and until when (`chunks`). Rows and counters count too: the store never exceeds `max_bytes`.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Sequence
from ctypes import memmove
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.accel import compiled, pointer
from penstock.plan.renewal import Renewal
from penstock.reuse.stores.chunks import (
    FOUND,
    GENERATION,
    LINE,
    MISSED,
    OFFSET,
    PUT,
    SIZE,
    Address,
    ChunkIndex,
    ChunkLayout,
    fence,
)
from penstock.reuse.stores.contract import Entry, Make, Wanted
from penstock.wire.arena import is_memory
from penstock.wire.extents import aligned

TYPES = [
    np.dtype(name)
    for name in ["u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", "u2", "u4", "u8", "c8", "c16"]
]
DIMENSIONS = 4
"""Types and dimensions of unfinished samples; others are refused."""
NUMBERS = struct.Struct(f"{DIMENSIONS + 4}q")
HEAD = NUMBERS.size
"""Head of an entry: type, dimensions, shape, bytes of the extra, bytes of the values."""
MADV_POPULATE_READ = 22
"""Linux 5.14 or later; Python has no name for it."""


class Borrowed(NamedTuple):
    """An entry in place (see `contract.Lent`)."""

    entry: Entry
    store: MemoryStore
    chunk: int
    generation: int

    @property
    def mark(self) -> tuple[int, int]:
        return self.store.mark_at(self.chunk), self.generation

    def holds(self) -> bool:
        fence()
        chunks = self.store.chunks
        return len(chunks) > 0 and int(chunks[self.chunk, 0]) == self.generation


class ChunkRoom(NamedTuple):
    """An entry's space in a chunk, valid until epoch `end`."""

    wanted: Wanted
    chunk: int
    generation: int
    offset: int
    size: int
    end: int


class MemoryStore(ChunkIndex):
    lasts, lends_many = False, True
    _memory: mmap.mmap | None
    """For direct writes. None if the file lies on a disk, which may be full, or without the compiled loops, whose fence a row needs."""

    @classmethod
    def of(cls, renewal: Renewal, address: Address) -> MemoryStore:
        """Open the store of another process on this machine; OSError if it is unreachable."""
        store = cls.__new__(cls)
        store.renewal = renewal
        store._join(address)
        return store

    # ---- reading

    def borrow(self, wanted: Wanted) -> Borrowed | None:
        """Return the entry in place, without a copy."""
        if not 0 <= wanted.sample < len(self.rows):
            return None
        found = self._borrowed(wanted)
        self._count(MISSED if found is None else FOUND)
        return found

    def _borrowed(self, wanted: Wanted) -> Borrowed | None:
        there = self.found(wanted)
        if there is None:
            return None
        row, chunk = there
        found = Borrowed(entry_at(self._bytes, row[OFFSET], row[SIZE]), self, chunk, row[GENERATION])
        return found if found.holds() else None  # its head was read

    def get(self, wanted: Wanted) -> Entry | None:
        borrowed = self.borrow(wanted)
        if borrowed is None:
            return None
        copy = Entry(borrowed.entry.values.copy(), borrowed.entry.extra)
        copy.values.flags.writeable = False
        return copy if borrowed.holds() else None

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        return [self.get(each) for each in wanted]

    # ---- writing

    def put(self, wanted: Wanted, entry: Entry) -> bool:
        if not 0 <= wanted.sample < self.renewal.length:
            return False
        values = np.ascontiguousarray(entry.values).reshape(entry.values.shape)
        plain = values.dtype in TYPES and values.ndim <= DIMENSIONS
        size = entry_size(values.nbytes, entry.extra)
        room = self._room_for(wanted, size) if plain else None
        return self._concluded(room, size, room is not None and self._write(room, values, entry.extra))

    def make(
        self, wanted: Wanted, shape: tuple[int, ...], extra: bytes, make: Make
    ) -> tuple[NDArray[np.uint8], Borrowed | None]:
        """Return `make`'s pixels and store them; if made inside the store, also lend them. `make` must be pure: it may be called twice. One thread
        per process at a time."""
        if not 0 <= wanted.sample < self.renewal.length:
            return make(None), None
        size = entry_size(math.prod(shape), extra)
        room = self._room_for(wanted, size)
        place = None if room is None else self._place(room, shape)
        try:
            values = make(place)
        except BaseException:
            self._give_back(room)
            raise
        if values.shape != shape or values.dtype != np.uint8:
            self._give_back(room)
            self.put(wanted, Entry(values, extra))
            return values, None
        if room is None or place is None:
            flat = np.ascontiguousarray(values)
            self._concluded(room, size, room is not None and self._write(room, flat, extra))
            return values, None
        if values is not place:
            np.copyto(place, values)
        self._write_around(room, place, extra)
        if not self._concluded(room, size, written=True):
            return make(None), None
        place.flags.writeable = False
        return place, Borrowed(Entry(place, extra), self, room.chunk, room.generation)

    def _room_for(self, wanted: Wanted, size: int) -> ChunkRoom | None:
        """Allocate space for an entry of `size` bytes."""
        self.now = max(self.now, wanted.renewed)  # nothing is put before its time
        end = self.renewal.ends(wanted.sample, wanted.renewed)
        offset = self._room(size, end) if size <= self.chunk_bytes and len(self.rows) > 0 else -1
        if offset < 0:
            return None
        chunk = (offset - self._data) // self.chunk_bytes
        return ChunkRoom(wanted, chunk, int(self.chunks[chunk, 0]), offset, size, end)

    def _give_back(self, room: ChunkRoom | None) -> None:
        """Free space if it was allocated last; else it is lost until its chunk is free."""
        if room is None:
            return
        chunk, used = self._filling.get(room.end, (-1, 0))
        if chunk == room.chunk and self._data + chunk * self.chunk_bytes + used == room.offset + room.size:
            self._filling[room.end] = chunk, used - room.size

    def _concluded(self, room: ChunkRoom | None, size: int, written: bool) -> bool:
        """Write the entry's row, or count a refusal; return whether it is stored. It is not if the store was closed meanwhile."""
        self._count(PUT)
        if room is None or not written:
            self._refuse(size)
            return False
        if len(self.chunks) == 0 or int(self.chunks[room.chunk, 0]) != room.generation:
            return False
        self.note(room.wanted, room.offset, room.size, room.generation)
        return True

    def _place(self, room: ChunkRoom, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
        """Return an array for direct writes of an entry's pixels; None if only `_write` can write them."""
        if self._pages(room.chunk) is None:
            return None
        return np.ndarray(shape, np.uint8, self._bytes.data, room.offset + HEAD)

    def _write_around(self, room: ChunkRoom, values: NDArray[Any], extra: bytes) -> None:
        """Write all of an entry but its values."""
        at = self._address + room.offset
        memmove(at, head_of(values, extra), HEAD)
        memmove(at + HEAD + values.nbytes, extra, len(extra))

    def _write(self, room: ChunkRoom, values: NDArray[Any], extra: bytes) -> bool:
        """Write an entry; return whether there was memory for it."""
        pages = self._pages(room.chunk)  # referenced until all is written
        if pages is not None:
            memmove(self._address + room.offset + HEAD, pointer(values), values.nbytes)
            self._write_around(room, values, extra)
            return True
        pixels = values.reshape(-1).view(np.uint8).data
        try:
            written = os.pwritev(self._fd, [head_of(values, extra), pixels, extra], room.offset)
        except OSError:
            return False
        return written == HEAD + values.nbytes + len(extra)

    def _pages(self, chunk: int) -> mmap.mmap | None:
        """Return the mapping if this process may write to the chunk directly, with all its pages mapped. Page faults one by one cost more than the
        kernel's copy, so request all pages at once; but not those of a fresh chunk, which must be cleared."""
        if chunk in self._mapped:
            return self._memory
        if self._memory is None or int(self.chunks[chunk, 0]) <= 1:
            return None
        first = self._data + chunk * self.chunk_bytes
        start = first - first % mmap.PAGESIZE
        try:
            self._memory.madvise(MADV_POPULATE_READ, start, first + self.chunk_bytes - start)
        except OSError:  # most likely an older kernel: do not ask again
            self._memory = None
            return None
        self._mapped.add(chunk)
        return self._memory

    # ---- the rest

    def _lay(self, memory: mmap.mmap | bytearray, layout: ChunkLayout) -> None:
        super()._lay(memory, layout)
        self._address = pointer(self._bytes)
        self._memory = memory if isinstance(memory, mmap.mmap) and compiled() is not None else None

    def _map(self, fd: int, layout: ChunkLayout) -> None:
        super()._map(fd, layout)
        if not is_memory(fd):
            self._memory = None

    def close(self) -> None:
        self._memory, self._mapped = None, set()
        super().close()


def entry_size(nbytes: int, extra: bytes) -> int:
    """Return the size of an entry with `nbytes` of values."""
    return aligned(HEAD + len(extra) + nbytes, LINE)


def head_of(values: NDArray[Any], extra: bytes) -> bytes:
    shape = [*values.shape, *[0] * (DIMENSIONS - values.ndim)]
    return NUMBERS.pack(TYPES.index(values.dtype), values.ndim, *shape, len(extra), values.nbytes)


def entry_at(memory: NDArray[np.uint8], offset: int, room: int) -> Entry:
    """Parse an entry in memory that may be overwritten meanwhile: the result may be anything, but stays within `room` bytes."""
    kind, dimensions, *shape, extra, size = NUMBERS.unpack_from(memory.data, offset)
    first, wanted = offset + HEAD, shape[:dimensions]
    if not (0 <= kind < len(TYPES) and 0 <= dimensions <= DIMENSIONS and 0 <= size <= room - HEAD):
        return Entry(memory[:0])
    sane = all(0 <= side <= room for side in wanted)  # with a side of 0, the others may exceed numpy's limits
    if not sane or TYPES[kind].itemsize * math.prod(wanted) != size:
        return Entry(memory[:0])
    found: NDArray[Any] = np.ndarray(wanted, TYPES[kind], memory.data, first)
    found.flags.writeable = False
    if extra <= 0:
        return Entry(found)
    last = first + size
    return Entry(found, memory[last : last + min(extra, room - HEAD - size)].tobytes())
