"""Bytes that the machine's cache has fetched for a task, as a source in front of the dataset's own.

Rule 1: what the cache has not got, or not as told, is read from the dataset's own source: never an error, never other bytes.
Rule 2: bytes are copied out by `pread`, as from a file: nothing that a sample keeps refers to the cache's memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.dataset.offers import Offer, ReadSeam
from penstock.sources.sources import ByteRange, Source
from penstock.wire.frames import PLACES
from penstock.wire.pickles import unpack_keys
from penstock.wire.places import Landing, split_places

MOST_FILES = 4
"""Memory files kept open: there is a new one only if a cache has died."""


class MemoryFile(NamedTuple):
    """The cache's memory, as another process has it open."""

    inode: int
    pid: int
    fd: int


class OpenMemory(NamedTuple):
    fd: int
    size: int


NO_MEMORY = OpenMemory(-1, 0)


class PlacedBytes(Source):
    """A dataset's `bytes_from` while its loader has a cache."""

    def __init__(self, inner: Source) -> None:
        self.inner = inner
        self.chunk_bytes, self.near_bytes = inner.chunk_bytes, inner.near_bytes
        self._places: dict[ByteRange, tuple[int, int, int]] = {}
        """Descriptor, offset and length."""
        self._files: dict[MemoryFile, OpenMemory] = {}

    def place(
        self,
        memory: MemoryFile,
        landings: Sequence[Landing],
        ranges_of: Callable[[int], Sequence[ByteRange]],
    ) -> None:
        """Take where the samples of the next task are; `ranges_of` gives the ranges of the sample with an ordinal."""
        fd, size = self._file(memory)
        self._places = {}
        if fd < 0:
            return
        try:
            for ordinal, offset, lengths in landings:
                at = offset
                for where, length in zip(ranges_of(ordinal), lengths, strict=True):
                    if min(at, length) >= 0 and at + length <= size:  # guard: place-in-file
                        self._places[where] = fd, at, length
                    at += length
        except Exception:  # noqa: BLE001 - the user's code: it raises again when the sample is prepared
            self._places = {}

    def clear(self) -> None:
        """Forget the places: their task is done."""
        self._places = {}

    def _file(self, memory: MemoryFile) -> OpenMemory:
        """Return a descriptor of the cache's memory, and its size; NO_MEMORY if there is none to be had."""
        if memory not in self._files:
            found = NO_MEMORY
            try:
                fd = os.open(f"/proc/{memory.pid}/fd/{memory.fd}", os.O_RDONLY | os.O_CLOEXEC)
                found = OpenMemory(fd, (status := os.fstat(fd)).st_size)
                if status.st_ino != memory.inode:  # guard: same-memory
                    os.close(fd)
                    found = NO_MEMORY
            except OSError:
                found = NO_MEMORY
            if len(self._files) >= MOST_FILES:
                self.close_files()
            self._files[memory] = found
        return self._files[memory]

    def close_files(self) -> None:
        for fd, _ in self._files.values():
            if fd >= 0:
                os.close(fd)
        self._files.clear()

    # ---- a source

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        data = self._placed((name, start, end))
        return self.inner.read(name, start, end) if data is None else data

    def read_many(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        found = [self._placed(one) for one in ranges]
        missing = [one for one, data in zip(ranges, found, strict=True) if data is None]
        read = iter(self.inner.read_many(missing) if missing else ())
        return [next(read) if data is None else data for data in found]

    def _placed(self, where: ByteRange) -> bytes | None:
        place = self._places.get(where)
        if place is None:
            return None
        fd, offset, length = place
        try:
            data = os.pread(fd, length, offset)
        except OSError:
            return None
        return data if len(data) == length else None

    def is_local(self, name: str) -> bool:
        return self.inner.is_local(name)

    def size(self, name: str) -> int:
        return self.inner.size(name)

    def stamp(self, name: str) -> str:
        return self.inner.stamp(name)

    def close(self) -> None:
        self.close_files()
        self.inner.close()


class TaskPlaces:
    """Where the bytes of a worker's tasks are, as the agent says before each task."""

    def __init__(self) -> None:
        self._noted: dict[int, bytes] = {}
        self._bytes: PlacedBytes | None = None
        """In front of the dataset's source, once something was placed."""

    def note(self, payload: bytes) -> None:
        self._noted[PLACES.unpack_from(payload)[0]] = payload

    def forget(self, task: int) -> None:
        self._noted.pop(task, None)

    def use(self, task: int, offer: Callable[[], Offer], start: int, keys: tuple[int, bytes]) -> None:
        """Have the samples of a task that begins read from where they are."""
        payload = self._noted.pop(task, None)
        if self._bytes is not None:
            self._bytes.clear()
        if payload is None or (seam := offer().seam) is None:
            return
        if self._bytes is None:
            self._bytes = placed_in_front(seam)
        of, ranges = unpack_keys(*keys), seam.ranges
        _, *memory = PLACES.unpack_from(payload)
        landings = list(split_places(payload[PLACES.size :]))
        self._bytes.place(MemoryFile(*memory), landings, lambda ordinal: ranges(of[ordinal - start]))


def placed_in_front(seam: ReadSeam) -> PlacedBytes:
    """Put placed bytes in front of a dataset's source, in this process."""
    holder: Any = seam.holder
    if not isinstance(holder.bytes_from, PlacedBytes):
        holder.bytes_from = PlacedBytes(holder.bytes_from)
    placed: PlacedBytes = holder.bytes_from
    return placed
