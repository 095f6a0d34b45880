"""Segments: append-only files of small records, and bulk reads from them.

Rule 1: a segment has one writer, which holds its kernel lock. Its number is random and never reused, so an old row finds the old record or none.
Rule 2: space is allocated before it is written; the writer returns the excess on closing.
Rule 3: in a segment without a writer, everything behind the last record with a row is garbage of a killed one.
Rule 4: read a batch in disk order, neighbours in one call. Request all of it before waiting for any, so that the disk can work on the whole
        batch. That needs no threads, and costs little if the data is cached.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk_files import Files, close_locked, is_gone, try_lock
from penstock.reuse.stores.disk_index import LARGE, DiskIndex, IndexRow
from penstock.reuse.stores.disk_records import decode

GAP_BYTES = 4096
"""Largest gap between neighbours that are read together."""
RUN_BYTES = 1 << 20
"""Largest single read."""
MOST_OPEN = 256
"""Limit of open segments, and of runs read together."""
TRIES = 5
STEP_BYTES = 1 << 20
"""Space is allocated in steps of this size."""
LEAST_BUFFER, MOST_BUFFERED = 64 << 10, 32 << 20
"""Bytes of a read that gets a buffer (below, the interpreter's allocator is warm enough), and of all buffers."""


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What all parts of the store share in one process."""

    files: Files
    folder: str
    digest: bytes
    index: DiskIndex
    max_bytes: int
    segment_bytes: int

    @property
    def segments(self) -> str:
        return f"{self.folder}/segments"

    @property
    def room_bytes(self) -> int:
        """Limit for segments and large files together."""
        return self.max_bytes - self.index.nbytes

    @property
    def put_bytes(self) -> int:
        """Limit for entries: the rest lets compaction write when the store is full."""
        return self.room_bytes - self.segment_bytes

    def path_of(self, number: int) -> str:
        """Return the path of a segment or large file; large files are spread over 256 folders."""
        name = name_of(number)
        return f"{self.folder}/large/{name[-2:]}/{name}" if number & LARGE else f"{self.segments}/{name}"

    def large_folders(self) -> list[str]:
        """Return the existing folders of large files."""
        return [f"{self.folder}/large/{name}" for name in sorted(self.files.names(f"{self.folder}/large"))]

    def segment_numbers(self) -> list[int]:
        return [number for name in self.files.names(self.segments) if (number := number_of(name))]


def new_number() -> int:
    return secrets.randbits(62) | 1 << 62


def name_of(number: int) -> str:
    return f"{number:016x}"


def number_of(name: str) -> int:
    """Parse a file name; 0 if it is not ours."""
    with contextlib.suppress(ValueError):
        number = int(name, 16)
        return number if 0 < number < 1 << 64 and name_of(number) == name else 0
    return 0


class SegmentWriter:
    """A segment being written, by one thread at a time. `most_bytes`: limit of the store's held bytes."""

    def __init__(self, shelf: StoreParts, most_bytes: int) -> None:
        """Raise OSError if no file can be made."""
        self.shelf, self.most_bytes = shelf, most_bytes
        self.end = self.reserved = self._written = 0
        self._waiting: list[bytes] = []
        for _ in range(TRIES):
            self.number = new_number()
            self.path = shelf.path_of(self.number)
            self.fd = shelf.files.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            # Between these two lines another process may remove it as a dead writer's.
            if try_lock(self.fd) and not is_gone(self.fd):
                return
            shelf.files.close(self.fd)
        raise OSError(errno.EAGAIN, "no segment could be made")

    @property
    def waiting_bytes(self) -> int:
        return self.end - self._written

    def fits(self, nbytes: int) -> bool:
        """Return whether the segment can grow by `nbytes`; an empty one always can."""
        return self.end + nbytes <= self.shelf.segment_bytes or not self.end

    def take_room(self, nbytes: int) -> bool:
        """Allocate space for an append. OSError if the disk is full."""
        lack = self.end + nbytes - self.reserved
        if lack <= 0:
            return True
        step = min(STEP_BYTES, max(self.shelf.segment_bytes // 4, 4096))
        for more in (max(lack, min(step, self.shelf.segment_bytes - self.reserved)), lack):
            if self.shelf.index.grow(self.fd, self.reserved, more, self.most_bytes):
                self.reserved += more
                return True
        return False

    def append(self, record: bytes, renewed: int) -> IndexRow:
        """Buffer a record; return the row to write once it is written out."""
        row = IndexRow(self.number, renewed, len(record), self.end)
        self._waiting.append(record)
        self.end += len(record)
        return row

    def write_out(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.shelf.files.write(self.fd, waiting, self._written)
        self._written = self.end

    def sync(self) -> None:
        """Make the segment and its name survive a power cut."""
        self.shelf.files.sync(self.fd)
        self.shelf.files.sync_folder(self.shelf.segments)  # guard: sync-folder

    def close(self, *, sync: bool) -> None:
        """Close the segment. All rows that lead here have been written, or never will be."""
        try:
            with contextlib.suppress(OSError):
                self.shelf.index.shrink(self.fd, self._written)
            if not self._written:
                with contextlib.suppress(OSError):
                    self.shelf.files.unlink(self.path)
            elif sync:
                self.sync()
        finally:
            close_locked(self.shelf.files, self.fd)


class Buffers:
    """Reusable read buffers, for one thread at a time: fresh memory costs more than the read, since the kernel clears it page by page. A buffer is
    reused only when nobody refers to it; every array or view made from it does."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._bytes = 0

    def of(self, nbytes: int) -> bytearray:
        """Return a buffer of at least `nbytes`, with arbitrary content."""
        for at in range(len(self._kept)):
            # guard: buffer-in-use
            if nbytes <= len(self._kept[at]) <= 2 * nbytes and sys.getrefcount(self._kept[at]) == 2:
                return self._kept[at]
        made = bytearray(nbytes + nbytes // 8)  # the next one may be a little larger
        self._kept.append(made)
        self._bytes += len(made)
        while self._bytes > MOST_BUFFERED:
            self._bytes -= len(self._kept.pop(0))
        return made


Run = tuple[int, int, int, list[int]]
"""One read: segment, start, end, and the keys of its rows."""


class SegmentReader:
    """Reads records of segments and large files by their rows. Thread-safe, serialized by a lock. Segments stay open. A large file is opened for its
    one record, which is likely to be replaced before its next use, and locked meanwhile: a replacement overwrites it (`disk_large`)."""

    def __init__(self, shelf: StoreParts) -> None:
        self.shelf = shelf
        self._open: OrderedDict[int, int] = OrderedDict()
        self._gone = shelf.index.gone
        self._lock = threading.Lock()
        self._buffers = Buffers()

    def look_up(self, wanted: Sequence[Wanted], left: list[int], found: list[Entry | None]) -> int:
        """Fill `found` for the positions in `left`; return how many records did not match their rows."""
        wrong: dict[int, IndexRow] = {}
        # guard: moved-record
        for _ in range(2):  # compaction may move a record meanwhile; its row then says where
            tried, wrong = wrong, {}
            for at, row in zip(left, self.shelf.index.rows([wanted[at].sample for at in left]), strict=True):
                if row.segment and row.renewed == wanted[at].renewed and row.length <= self.shelf.max_bytes:
                    wrong[at] = row
            for at, data in self.read({at: row for at, row in wrong.items() if tried.get(at) != row}):
                entry = found[at] = decode(data, self.shelf.digest, wanted[at])
                if entry is not None:
                    del wrong[at]
            left = list(wrong)
            if not left:
                break
        return len(left)

    def read(self, rows: Mapping[int, IndexRow]) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield each row's key and bytes as they arrive, so that each can be checked while in the CPU cache. Missing or short records are omitted."""
        runs = runs_of(rows)
        with self._lock:
            # guard: open-while-read
            for some in (runs[at : at + MOST_OPEN] for at in range(0, len(runs), MOST_OPEN)):
                for data, (_, start, _, members) in zip(self._read_runs(some), some, strict=True):
                    for at in members:
                        _, _, length, offset = rows[at]
                        offset -= start
                        piece = data if len(members) == 1 else memoryview(data)[offset : offset + length]
                        if len(piece) == length:
                            yield at, piece

    def _read_runs(self, runs: Sequence[Run]) -> Iterator[bytes | memoryview]:
        """Yield the bytes of each run, after requesting all of them from the disk."""
        self._let_go()  # guard: removed-files
        files, once = self.shelf.files, list[int]()
        try:
            ways: list[int | None] = []
            for segment, start, end, _ in runs:
                ways.append(fd := self._descriptor(segment))
                if fd is not None:
                    files.will_need(fd, start, end - start)
                    if segment & LARGE:
                        once.append(fd)
            for fd, (_, start, end, _) in zip(ways, runs, strict=True):
                yield b"" if fd is None else self._bytes(fd, start, end)
        finally:
            for fd in once:
                close_locked(files, fd)

    def _bytes(self, fd: int, start: int, end: int) -> bytes | memoryview:
        """Read a range, as far as it exists; empty on a disk error."""
        nbytes = end - start
        try:
            if nbytes < LEAST_BUFFER:
                return self.shelf.files.read(fd, nbytes, start)
            memory = memoryview(self._buffers.of(nbytes))[:nbytes]
            return memory[: self.shelf.files.read_into(fd, memory, start)].toreadonly()
        except OSError:
            return b""

    def _descriptor(self, segment: int) -> int | None:
        fd = self._open.get(segment)
        if fd is not None:
            self._open.move_to_end(segment)
            return fd
        try:
            fd = self.shelf.files.open(self.shelf.path_of(segment), os.O_RDONLY)
        except OSError:
            return None
        if segment & LARGE:
            # guard: no-locks
            with contextlib.suppress(OSError):  # a file system may not support locks
                if try_lock(fd, shared=True):  # guard: large-being-written
                    return fd
            self.shelf.files.close(fd)  # it is being overwritten
            return None
        self.shelf.files.will_jump(fd)
        self._open[segment] = fd
        if len(self._open) > MOST_OPEN:  # never one of the current read: those are at most MOST_OPEN
            self.shelf.files.close(self._open.popitem(last=False)[1])
        return fd

    def _let_go(self) -> None:
        """Close removed files, to free their space."""
        gone = self.shelf.index.gone
        if gone != self._gone:
            self._gone = gone
            for segment in [segment for segment, fd in self._open.items() if is_gone(fd)]:
                self.shelf.files.close(self._open.pop(segment))

    def close(self) -> None:
        with self._lock:
            while self._open:
                self.shelf.files.close(self._open.popitem()[1])

    def descriptors(self) -> list[int]:
        return list(self._open.values())


def runs_of(rows: Mapping[int, IndexRow]) -> list[Run]:
    """Group rows into reads, in disk order. Neighbours join, unless the read gets too long or they overlap, which means one is wrong."""
    runs: list[Run] = []
    last, first, before = 0, 0, 0
    for segment, start, length, at in sorted(
        (row.segment, row.offset, row.length, at) for at, row in rows.items()
    ):
        end = start + length
        if segment == last and start - before <= GAP_BYTES and before <= end <= first + RUN_BYTES:
            members = runs.pop()[3]
            members.append(at)
        else:
            first, members = start, [at]
        runs.append((segment, first, end, members))
        last, before = segment, end
    return runs
