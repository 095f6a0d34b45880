"""The index of the disk store: where each sample's record lies. One file, mapped by all processes of all jobs.

Rule 1: the index is a hint. Records identify themselves (`disk_records`), so a stale, torn or lost row costs time, never correctness. A row with
        a wrong checksum is no row.
Rule 2: rows and counters are written only under the index's kernel lock, after the data they refer to. So a killed process leaves an old row or a
        new one; readers take no lock.
Rule 3: write through the descriptor, not the mapping: a full or broken disk is then an error, never a SIGBUS.
Rule 4: `state` says whether rows are complete. `STALE`: rebuild them from the segments before removing anything for lack of a row. A new index is
        stale, and so is one that was in use when the machine stopped.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from penstock.reuse.stores.disk_files import Files, locked, size_of

Rows = NDArray[Any]
"""Many rows, of dtype `ROW`."""

ROW = np.dtype(
    [("segment", "<u8"), ("renewed", "<i8"), ("length", "<u8"), ("offset", "<u4"), ("check", "<u4")]
)
"""32 bytes, so none crosses a page. Segment 0: no entry."""
ROW_WORDS = struct.Struct("<QqQII")
LARGE = 1 << 63
"""Flag in the number of a file that holds a single entry."""


class IndexRow(NamedTuple):
    """One row without its checksum, as plain numbers: for a single row ten times faster than arrays."""

    segment: int
    renewed: int
    length: int
    offset: int = 0


NO_ROW = IndexRow(0, 0, 0)
FEW = 16
"""Up to this many rows, plain numbers are faster than arrays."""
FIRST_ROW = 4096
ROWS_AT_ONCE = 1 << 18
HEAD = struct.Struct("<8sIIQ16sI")
"""Magic, version, bytes of a row, samples, boot, state; their checksum follows."""
MAGIC, VERSION = b"PnIndex\n", 1
STALE, IN_USE, CLEAN = 0, 1, 2
HELD_AT, GONE_AT = 512, 520
ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD)
WORD = (1 << 64) - 1


def check_of(sample: Any, segment: Any, renewed: Any, length: Any, offset: Any) -> Any:
    """Return the checksum of a sample's row, or of many, given as uint64 arrays."""
    mixed = (segment * ODD[0] & WORD) ^ (renewed * ODD[1] + offset & WORD)
    mixed = (mixed + length * ODD[2] & WORD) ^ (sample * ODD[3] & WORD)
    mixed ^= mixed >> 32
    return (mixed * ODD[4] & WORD) >> 32


def count_rows(files: Files, path: str, samples: int) -> int | None:
    """Count the rows of an index file without opening its store; None if it cannot be read. Entries that are not written out yet are not in it."""
    try:
        fd = files.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if size_of(fd) != FIRST_ROW + ROW.itemsize * samples:
            return None
        found = 0
        for first in range(0, samples, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, samples - first)
            data = files.read(fd, ROW.itemsize * count, FIRST_ROW + ROW.itemsize * first)
            rows = np.frombuffer(bytearray(data), ROW)
            found += int(np.count_nonzero(valid(rows, np.arange(first, first + count))["segment"]))
        return found
    except (OSError, ValueError):
        return None
    finally:
        files.close(fd)


def valid(rows: Rows, samples: NDArray[np.int64]) -> Rows:
    """Return these samples' rows, set to zero where a checksum is wrong."""
    numbers = [rows[name].astype(np.uint64) for name in IndexRow._fields]
    rows[rows["check"] != check_of(samples.astype(np.uint64), *numbers)] = 0  # guard: row-checksum
    return rows


class DiskIndex:
    """The index of one namespace, opened by one process. Thread-safe."""

    def __init__(self, files: Files, folder: str, samples: int) -> None:
        """Open or make the index; OSError if there is no space."""
        self.files, self.samples = files, samples
        self.nbytes = FIRST_ROW + ROW.itemsize * samples
        self._path = f"{folder}/index"
        self._thread_lock = threading.Lock()
        self.lock_fd = files.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT)
        try:
            self.fd = self._open(folder)
        except OSError:
            files.close(self.lock_fd)
            raise
        self._map = mmap.mmap(self.fd, self.nbytes, prot=mmap.PROT_READ)
        self._rows: Rows = np.frombuffer(self._map, ROW, samples, FIRST_ROW)

    def _open(self, folder: str) -> int:
        with self.locked():
            for name in self.files.names(folder):
                if name.startswith("index.") and name.endswith(".tmp"):  # its maker was killed
                    self.files.unlink(f"{folder}/{name}")
            with contextlib.suppress(FileNotFoundError):
                fd = self.files.open(self._path, os.O_RDWR)
                if size_of(fd) == self.nbytes and self._head(fd) is not None:
                    return fd
                self.files.close(fd)
            # Processes with the old file open continue with it: their rows are not seen here, which only costs time.
            temporary = f"{folder}/index.{secrets.token_hex(8)}.tmp"
            fd = self.files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                self.files.reserve(fd, 0, self.nbytes)
                self._write_head(fd, STALE)
                self.files.rename(temporary, self._path)
            except OSError:
                self.files.close(fd)
                with contextlib.suppress(OSError):
                    self.files.unlink(temporary)
                raise
            return fd

    # ---- head and counters

    def _head(self, fd: int) -> tuple[bytes, int] | None:
        """Return boot and state; None unless the head is ours and for as many samples."""
        data = self.files.read(fd, HEAD.size + 4, 0)
        if len(data) < HEAD.size + 4 or data[HEAD.size :] != struct.pack("<I", crc32(data[: HEAD.size])):
            return None
        *fixed, boot, state = HEAD.unpack_from(data)
        return (boot, state) if fixed == [MAGIC, VERSION, ROW.itemsize, self.samples] else None

    def _write_head(self, fd: int, state: int) -> None:
        head = HEAD.pack(MAGIC, VERSION, ROW.itemsize, self.samples, self.files.boot(), state)
        self.files.write(fd, [head, struct.pack("<I", crc32(head))], 0)

    def begin(self, *, alone: bool) -> None:
        """Mark the index as in use, so that it is not trusted after a power cut. `alone`: nobody else uses it now."""
        boot, state = self._head(self.fd) or (b"", STALE)
        if state == CLEAN or (state == IN_USE and alone and boot != self.files.boot()):  # guard: power-cut
            self._write_head(self.fd, IN_USE if state == CLEAN else STALE)
            self.files.sync(self.fd)  # before any row may be written

    @property
    def is_stale(self) -> bool:
        return (self._head(self.fd) or (b"", STALE))[1] == STALE

    def is_whole(self) -> None:
        """Mark the rows as complete."""
        self._write_head(self.fd, IN_USE)

    def end(self) -> None:
        """Sync the index and mark it as trusted; nobody uses it any more."""
        if not self.is_stale:
            self.files.sync(self.fd)
            self._write_head(self.fd, CLEAN)
            self.files.sync(self.fd)

    @property
    def held_bytes(self) -> int:
        """Bytes of segments and large files, as far as known."""
        return int(struct.unpack_from("<Q", self._map, HELD_AT)[0])

    @property
    def gone(self) -> int:
        """Grows when files are removed: whoever has them open should close them."""
        return int(struct.unpack_from("<Q", self._map, GONE_AT)[0])

    def count(self, *, held_bytes: int, gone: int = 0) -> None:
        """Set the held bytes and add to `gone`. Under the lock."""
        gone = (self.gone + gone) & 0xFFFF_FFFF
        self.files.write(self.fd, [struct.pack("<QQ", max(0, held_bytes), gone)], HELD_AT)

    def grow(self, fd: int, start: int, nbytes: int, most_bytes: int) -> bool:
        """Allocate more space for a file, unless that exceeds `most_bytes`. OSError if the disk is full."""
        with self.locked():
            if self.held_bytes + nbytes > most_bytes:  # guard: held-limit
                return False
            self.files.reserve(fd, start, nbytes)
            self.count(held_bytes=self.held_bytes + nbytes)
            return True

    def shrink(self, fd: int, nbytes: int) -> None:
        """Truncate a file."""
        with self.locked():
            freed = size_of(fd) - nbytes
            if freed > 0:
                self.files.cut(fd, nbytes)
                self.count(held_bytes=self.held_bytes - freed)

    # ---- rows

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the right to write; LockHeldError at the deadline."""
        with self._thread_lock, locked(self.lock_fd):
            yield

    def row(self, sample: int) -> IndexRow:
        """Return a sample's row; NO_ROW if it is missing or invalid."""
        *found, check = ROW_WORDS.unpack_from(self._map, FIRST_ROW + ROW.itemsize * sample)
        if check != check_of(sample, *found):  # guard: one-row-checksum
            return NO_ROW
        return IndexRow(*found)

    def rows(self, samples: Sequence[int]) -> list[IndexRow]:
        """Return several rows, as `row`."""
        if len(samples) <= FEW:
            return [self.row(sample) for sample in samples]
        rows = self.table(np.array(samples, np.int64))
        return list(map(IndexRow, *(rows[name].tolist() for name in IndexRow._fields)))

    def table(self, samples: NDArray[np.int64]) -> Rows:
        """Return copies of these samples' rows; zero if missing or invalid."""
        return valid(self._rows[samples], samples)  # a copy

    def all(self) -> Rows:
        return self.table(np.arange(self.samples))

    def large_numbers(self) -> NDArray[np.uint64]:
        """Return the numbers of all single-entry files."""
        numbers: NDArray[np.uint64] = self._large()["segment"]
        return numbers

    def large_bytes(self) -> int:
        return int(self._large()["length"].sum())

    def _large(self) -> Rows:
        return self.table(np.flatnonzero(self._rows["segment"] & np.uint64(LARGE)))

    def write(self, rows: Mapping[int, IndexRow]) -> None:
        """Write rows, neighbours in one call. Under the lock."""
        run: list[bytes] = []
        for sample in sorted(rows):
            row = rows[sample]
            run.append(ROW_WORDS.pack(*row, check_of(sample, *row) if row.segment else 0))
            if sample + 1 not in rows:
                first = sample + 1 - len(run)
                self.files.write(self.fd, [b"".join(run)], FIRST_ROW + ROW.itemsize * first)
                run = []

    def switch(self, before: Mapping[int, IndexRow], after: Mapping[int, IndexRow]) -> None:
        """Replace those rows that are still as `before`."""
        with self.locked():
            same = [sample for sample in after if self.row(sample) == before[sample]]  # guard: row-changed
            self.write({sample: after[sample] for sample in same})

    def close(self) -> None:
        self._rows = np.zeros(0, ROW)
        with contextlib.suppress(BufferError):  # a thread still reads: the mapping ends with it
            self._map.close()
        self.files.close(self.fd)
        self.files.close(self.lock_fd)

    def descriptors(self) -> list[int]:
        return [self.fd, self.lock_fd]
