"""Segments: files that small records are appended to, and reading many of them in one pass.

Rule 1: a segment has one writer, which holds its kernel lock as long as it writes. Its number is drawn at random and never used
        again, so whoever has an old row finds the old record, or none.
Rule 2: space is taken before it is written, and what was taken too much is given back when the writer lets go.
Rule 3: what lies beyond the last record that a row leads to, in a segment without a writer, is rubbish of one that was killed.
Rule 4: a batch is read in the order in which it lies on the disk, neighbours at once. The disk is asked for all of it before any
        of it is waited for, so that it has the whole batch to work on; that does without threads, and with memory that is warm
        costs little.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.reuse.stores.buffers import LEAST_BYTES, Buffers
from penstock.reuse.stores.disk_files import Files, close_locked, is_gone, try_lock
from penstock.reuse.stores.disk_index import LARGE, DiskIndex, IndexRow

GAP_BYTES = 4096
"""Neighbours that are read at once may have so much between them."""
RUN_BYTES = 1 << 20
"""So much at most is read at once."""
MOST_OPEN = 256
"""Of segments that stay open, and of what is read at once."""
TRIES = 5
STEP_BYTES = 1 << 20
"""Space is taken by so much at a time."""


@dataclass(frozen=True, slots=True)
class StoreParts:
    """What all parts of the store in one process share."""

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
        """For segments and large files in all."""
        return self.max_bytes - self.index.nbytes

    @property
    def put_bytes(self) -> int:
        """Of these, what entries may fill: the rest is where compaction writes when everything is full."""
        return self.room_bytes - self.segment_bytes

    def path_of(self, number: int) -> str:
        """Of a segment, or of a large file: those lie in 256 folders."""
        name = name_of(number)
        return f"{self.folder}/large/{name[-2:]}/{name}" if number & LARGE else f"{self.segments}/{name}"

    def large_folders(self) -> list[str]:
        """Those that there are."""
        return [f"{self.folder}/large/{name}" for name in sorted(self.files.names(f"{self.folder}/large"))]

    def segment_numbers(self) -> list[int]:
        return [number for name in self.files.names(self.segments) if (number := number_of(name))]


def new_number() -> int:
    return secrets.randbits(62) | 1 << 62


def name_of(number: int) -> str:
    return f"{number:016x}"


def number_of(name: str) -> int:
    """0 for a name that is not ours."""
    with contextlib.suppress(ValueError):
        number = int(name, 16)
        return number if 0 < number < 1 << 64 and name_of(number) == name else 0
    return 0


class SegmentWriter:
    """A segment that is being written, by one thread at a time. `most_bytes`: what the store may hold then."""

    def __init__(self, shelf: StoreParts, most_bytes: int) -> None:
        """OSError where no file can be made."""
        self.shelf, self.most_bytes = shelf, most_bytes
        self.end = self.reserved = self._written = 0
        self._waiting: list[bytes] = []
        for _ in range(TRIES):
            self.number = new_number()
            self.path = shelf.path_of(self.number)
            self.fd = shelf.files.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            # Between these two lines someone may take it for a dead writer's, and remove it.
            if try_lock(self.fd) and not is_gone(self.fd):
                return
            shelf.files.close(self.fd)
        raise OSError(errno.EAGAIN, "no segment could be made")

    @property
    def waiting_bytes(self) -> int:
        return self.end - self._written

    def fits(self, nbytes: int) -> bool:
        """Whether the segment can become so much longer; one that is empty can."""
        return self.end + nbytes <= self.shelf.segment_bytes or not self.end

    def take_room(self, nbytes: int) -> bool:
        """Make sure that so much can be appended. OSError where the disk is full."""
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
        """The row that it gets once it is written out."""
        row = IndexRow(self.number, renewed, len(record), self.end)
        self._waiting.append(record)
        self.end += len(record)
        return row

    def write_out(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.shelf.files.write(self.fd, waiting, self._written)
        self._written = self.end

    def sync(self) -> None:
        """Have it stay through a power cut, its name too."""
        self.shelf.files.sync(self.fd)
        self.shelf.files.sync_folder(self.shelf.segments)  # guard: sync-folder

    def close(self, *, sync: bool) -> None:
        """Let go of it. Every row that leads here has been written, or never will be."""
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


Run = tuple[int, int, int, list[int]]
"""Segment, start and end of what is read at once, and whose rows lead there."""


class SegmentReader:
    """Reads records of segments and large files, by their places. Of several threads, one after another.

    Segments stay open. A large file is opened for its one record, which is likely to be replaced before it is wanted again, and locked meanwhile:
    what is replaced is written over (`disk_large`)."""

    def __init__(self, shelf: StoreParts) -> None:
        self.shelf = shelf
        self._open: OrderedDict[int, int] = OrderedDict()
        self._gone = shelf.index.gone
        self._lock = threading.Lock()
        self._buffers = Buffers()

    def read(self, rows: Mapping[int, IndexRow]) -> Iterator[tuple[int, bytes | memoryview]]:
        """Which of the rows, and the bytes that it leads to: one after another, as they come from the disk, so that each can be looked at
        while it is in the processor's cache. What is not there, or shorter, is left out."""
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
        """What there is of each: the disk is asked for all of it first."""
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
        """What there is of a range; a disk that cannot read it has nothing there."""
        nbytes = end - start
        try:
            if nbytes < LEAST_BYTES:
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
            with contextlib.suppress(OSError):  # a file system may have no locks to give
                if try_lock(fd, shared=True):  # guard: large-being-written
                    return fd
            self.shelf.files.close(fd)  # it is being written over
            return None
        self.shelf.files.will_jump(fd)
        self._open[segment] = fd
        if len(self._open) > MOST_OPEN:  # none of those that are read now: they are no more than stay open
            self.shelf.files.close(self._open.popitem(last=False)[1])
        return fd

    def _let_go(self) -> None:
        """Close files that have been removed: their space is not free before."""
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
    """What to read, in the order in which it lies on the disk. Neighbours are read at once, unless that is too much, or they overlap, and
    one of them is wrong."""
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
