"""The memory tier: cached bytes in one unnamed memory file. The process that made it writes, and those that it started for that; others can only read.

Rule 1: bytes can be found once they are committed, not while they are written. From then on they do not change until nobody holds a lease.
Rule 2: a lease belongs to an owner (a batch, a thread) and ends when its owner leaves. Evicted bytes are found no more, and are freed with their last
        lease.
Rule 3: the file is sealed, so that no other process can map it for writing from then on, whatever it has open.
Rule 4: cached bytes without a lease may be moved, to make room: who reads them has a lease.
Rule 5: the tier decides nothing. `reserve` answers None if there is no room, and its caller evicts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import accel
from penstock.cache.backing import Backing
from penstock.cache.space import FreeSpace, rounded
from penstock.errors import ConfigError
from penstock.measure.host import memory_left
from penstock.wire.arena import anonymous_file

log = logging.getLogger("penstock")

LEAST_BYTES = 1 << 20
SHARE_OF_LEFT = 0.8
"""Most of the memory that is left here: workers and the page cache need some too."""


class Place(NamedTuple):
    """Where cached bytes lie in the memory file."""

    offset: int
    size: int


@dataclass(slots=True, eq=False)
class Extent:
    """Bytes that are cached, or evicted and still leased."""

    place: Place
    check: int | None
    """Their crc32, if one was made."""
    leases: int = 0
    """Owners that have any."""
    evicted: bool = False


@dataclass(slots=True, eq=False)
class Reservation:
    """Memory that is being written."""

    place: Place
    view: memoryview
    memory: weakref.ref[NDArray[np.uint8]]
    """What the view and all slices and arrays made of it refer to."""
    writer: Hashable
    lent: bool = False
    """To another process: nothing here shows whether that writes."""

    def let_go(self) -> bool:
        """End the view; return whether nobody can write any more."""
        try:
            self.view.release()
        except BufferError:  # a read into it goes on
            return False
        return self.memory() is None


class MemoryTier:
    """Cached bytes by key. Thread-safe; for the process that made it."""

    def __init__(
        self, max_bytes: int, *, checks: bool = True, writers: Callable[[int, int], None] | None = None
    ) -> None:
        """`checks`: whether a checksum is made of what is committed. `writers` starts processes that write (`lend`): they map the file (descriptor, bytes)
        before it returns; later nobody can. OSError if there is no memory file to be had."""
        if max_bytes < LEAST_BYTES:
            raise ConfigError(f"a cache in memory needs at least {LEAST_BYTES:,} bytes, got {max_bytes:,}")
        most = affordable(max_bytes)
        self.fd = anonymous_file(sealable=True)
        try:
            mapped = self._mapped(most)
            if writers is not None:
                writers(self.fd, len(mapped))
        except BaseException:
            os.close(self.fd)
            raise
        # On an older kernel, or without memfd, others still open it read-only.
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)  # guard: cache-sealed
        self._memory = np.frombuffer(mapped, np.uint8)
        self._space = FreeSpace()
        self._lock = threading.RLock()
        self._checks = checks
        self._backing = Backing(self.fd, self._memory, self._space, self._lock, maps=writers is None)
        if self.max_bytes < max_bytes:
            log.warning(
                "cache: memory=%s bytes is more than this machine or container can spare: %s are used. Give a smaller memory=, or raise the limit "
                "(the container's memory, ulimit -v)",
                f"{max_bytes:,}",
                f"{self.max_bytes:,}",
            )
        self._extents: dict[bytes, Extent] = {}
        self._at: dict[int, bytes] = {}
        """Keys by the offset of their extents."""
        self._leases: dict[Hashable, dict[int, Extent]] = {}
        """Of each owner, by the extents' offsets."""
        self._reserved: dict[bytes, Reservation] = {}
        self._unsettled: list[Reservation] = []
        """Given up, but somebody may still write there."""
        self._found = self._missed = self._bytes = 0

    def tell_of_less(self, tell: Callable[[int], None]) -> None:
        """Have `tell` called, by any thread, with a smaller limit than was hoped for."""
        self._backing.on_less = tell

    @property
    def max_bytes(self) -> int:
        """Bytes that it may take: what was asked for, or what is to be had."""
        return self._backing.max_bytes

    def _mapped(self, most: int) -> mmap.mmap:
        while True:
            os.ftruncate(self.fd, most)
            try:
                mapped = mmap.mmap(self.fd, most)
            except OSError as exc:  # an address-space limit (ulimit -v)
                if exc.errno != errno.ENOMEM or most // 2 < LEAST_BYTES:
                    raise
                most //= 2
                continue
            return mapped

    def open_for_reading(self) -> int:
        """Return a descriptor for another process, which can only read by it."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    # ---- writing

    def reserve(self, key: bytes, size: int, writer: Hashable = None) -> memoryview | None:
        """Return memory to write `size` bytes to, followed by `commit` or `abandon`. None if there is no room, or the key is there or being written."""
        length = rounded(size)
        with self._lock:
            offset = self._take(length)
            if offset is None:
                return None
            if key in self._extents or key in self._reserved:
                self._space.give(offset, length)
                return None
            memory = self._memory[offset : offset + size]
            view = memory.data
            self._reserved[key] = Reservation(Place(offset, size), view, weakref.ref(memory), writer)
            return view

    def lend(self, key: bytes, size: int, writer: Hashable = None) -> int | None:
        """Reserve memory for another process; return its offset. The caller knows when that process writes there no more."""
        with self._lock:
            view = self.reserve(key, size, writer)
            if view is None:
                return None
            view.release()
            self._reserved[key].lent = True
            return self._reserved[key].place.offset

    def _take(self, length: int) -> int | None:
        """Return the offset of memory that nobody uses. To wait for it frees the lock."""
        offset = self._space.take(length)
        while offset is None and (
            self._backing.wait_for(length) or self._settle() or self._have_hole(length)
        ):
            offset = self._space.take(length)
        self._backing.look_ahead()
        return offset

    def _have_hole(self, length: int) -> bool:
        """Move cached bytes until there is a hole; return whether there is one."""
        way = self._space.way_to(length, self._movable)
        for start, extent in way or ():
            size = self._space.shift(start, extent)
            key = self._at.pop(start + size)
            self._at[start] = key
            moved = self._extents[key]
            moved.place = Place(start, moved.place.size)
            self._memory[start : start + extent] = self._memory[start + size : start + size + extent]
        return way is not None

    def _movable(self, start: int) -> int | None:
        """Return the length of the extent that starts there, if nobody uses it."""
        extent = self._extents.get(self._at.get(start, b""))
        return None if extent is None or extent.leases else rounded(extent.place.size)  # guard: leases-stay

    def commit(self, key: bytes, check: int | None = None, *, made: int | None = None) -> bool:
        """Make reserved bytes findable; their view ends. `check`: their crc32, if known; False if it is another, and the bytes are given up. `made`: what their
        writer found it to be, if that was another process. BufferError if something still refers to them: slices of the view, arrays."""
        with self._lock:
            reserved = self._reserved.get(key)
        if reserved is None:
            return False
        found = None
        if self._checks or check is not None:
            found = accel.crc32(reserved.view) if made is None else made
        if check is not None and check != found:  # guard: commit-checksum
            self.abandon(key)
            return False
        with self._lock:
            if self._reserved.get(key) is not reserved:
                return False
            if not reserved.let_go():
                raise BufferError("bytes are committed while their writer still refers to them")
            del self._reserved[key]
            self._extents[key] = Extent(reserved.place, found)
            self._at[reserved.place.offset] = key
            self._bytes += reserved.place.size
        return True

    def abandon(self, key: bytes, lent_at: int | None = None) -> None:
        """Give up a reservation. Memory that was lent is given up by whoever knows its offset: others may have been lent some for the same key."""
        with self._lock:
            reserved = self._reserved.get(key)
            if reserved is None:
                return
            if reserved.lent and reserved.place.offset != lent_at:  # guard: lent-to-another
                return
            del self._reserved[key]
            self._unsettled.append(reserved)
            self._settle()

    def _settle(self) -> bool:
        """Free the memory of reservations that were given up, once nobody can write to it; return whether any was freed."""
        given_up, self._unsettled = self._unsettled, []
        for reserved in given_up:
            if reserved.let_go():  # guard: still-written
                self._free(reserved.place)
            else:
                self._unsettled.append(reserved)
        return len(self._unsettled) < len(given_up)

    # ---- reading

    def lookup(self, keys: Sequence[bytes], owner: Hashable) -> list[Place | None]:
        """Lease cached keys to `owner`; return each key's place, or None if it is not cached."""
        places: list[Place | None] = []
        with self._lock:
            leases = self._leases.setdefault(owner, {})
            for key in keys:
                extent = self._extents.get(key)
                if extent is None:
                    places.append(None)
                    continue
                places.append(extent.place)
                if extent.place.offset not in leases:
                    leases[extent.place.offset] = extent
                    extent.leases += 1
            missed = places.count(None)
            self._found, self._missed = self._found + len(places) - missed, self._missed + missed
        return places

    def leave(self, owner: Hashable) -> None:
        """End all leases and reservations of `owner`, which is gone."""
        with self._lock:
            for extent in self._leases.pop(owner, {}).values():  # guard: own-leases
                extent.leases -= 1
                if extent.evicted and not extent.leases:
                    self._free(extent.place)
            for key in [key for key, reserved in self._reserved.items() if reserved.writer == owner]:
                self.abandon(key)

    @contextmanager
    def reading(self, key: bytes) -> Iterator[memoryview | None]:
        """Yield the bytes of a key, leased meanwhile; None if it is not there."""
        owner = object()
        (place,) = self.lookup([key], owner)
        try:
            yield (
                None
                if place is None
                else self._memory[place.offset : place.offset + place.size].data.toreadonly()
            )
        finally:
            self.leave(owner)

    def evict(self, key: bytes) -> bool:
        """Forget a key; return whether it was there. Its memory is free when nobody holds a lease."""
        with self._lock:
            extent = self._extents.pop(key, None)
            if extent is None:
                return False
            del self._at[extent.place.offset]
            self._bytes -= extent.place.size
            extent.evicted = True
            if not extent.leases:  # guard: leased-memory
                self._free(extent.place)
            return True

    def _free(self, place: Place) -> None:
        self._space.give(place.offset, rounded(place.size))

    # ---- the rest

    def __contains__(self, key: bytes) -> bool:
        return key in self._extents

    def check_of(self, key: bytes) -> int | None:
        """Return the crc32 of a key's bytes; None if it is not there, or none was made."""
        extent = self._extents.get(key)
        return None if extent is None else extent.check

    def stats(self) -> dict[str, int]:
        """`bytes`: cached; `held_bytes`: memory in use for them; `free_bytes`, `largest_hole`: of the memory that was reserved."""
        with self._lock:
            return {
                "entries": len(self._extents),
                "bytes": self._bytes,
                "held_bytes": self._space.end,
                "free_bytes": self._space.free,
                "largest_hole": self._space.largest,
                "leased": len({offset for leases in self._leases.values() for offset in leases}),
                "reserved": len(self._reserved) + len(self._unsettled),
                "found": self._found,
                "missed": self._missed,
                "max_bytes": self.max_bytes,
            }

    def close(self) -> None:
        """Close the descriptor. The memory ends with the last process that maps it, and the last that writes there."""
        self._backing.close()
        self._memory = np.empty(0, np.uint8)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


SEALS = sum(getattr(fcntl, name, 0) for name in ("F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL")) | 0x10
"""0x10: F_SEAL_FUTURE_WRITE, which Python 3.12 has no name for: mappings that exist can be written, new ones cannot be made."""


def affordable(max_bytes: int) -> int:
    """Return the bytes that a cache may have in this container."""
    most = max(LEAST_BYTES, int(SHARE_OF_LEFT * memory_left()))
    return max_bytes if max_bytes <= most else most // mmap.PAGESIZE * mmap.PAGESIZE
