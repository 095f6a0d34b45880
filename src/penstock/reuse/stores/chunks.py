"""The index of stored samples in shared memory: a table of chunks and a table of rows. The bytes follow it (`memory`) or lie elsewhere (`device`).

Rule 1: memory is allocated in chunks. Everything a process writes into one chunk is renewed in the same epoch, the chunk's *end*; then the whole
        chunk is free at once, with no moves and no fragmentation. A replaced or removed entry keeps its space until then.
Rule 2: a chunk's generation grows before the chunk is rewritten. A read is valid only if the generation is unchanged afterwards, so nobody waits
        for anybody.
Rule 3: a row locates a sample's entry. It is written last, so a killed process leaves no row for unfinished work. The check rejects a torn row.
Rule 4: a writer holds a kernel lock on its chunk, which ends with the process; nobody else claims the chunk meanwhile.
Rule 5: the file's head holds the layout, written by its maker. Others first check its sign, and change nothing in any other file.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import stat
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.accel import compiled, pointer
from penstock.plan.renewal import Renewal
from penstock.reuse.stores.contract import Wanted
from penstock.wire.arena import anonymous_file
from penstock.wire.extents import aligned

ROW, CHUNK = 5, 3
TAG, OFFSET, SIZE, GENERATION, CHECK = range(ROW)
"""Columns of a row: renewal epoch + 1; offset and size of the entry; generation of its chunk; check of these four."""
BORN, END = 1, 2
"""Columns of a chunk after its generation: epoch of the claim + 1; epoch in which all its entries are renewed."""
LARGEST_CHUNK, SMALLEST_CHUNK, CHUNKS, FEWEST, ENTRIES = 8 << 20, 1 << 20, 512, 8, 4
"""Chunks of 1 to 8 MiB, aiming at 512 of them; larger if 4 entries would not fit; an eighth of the room below 8 MiB, since each end needs its own
chunks."""
LINE = 64
"""Alignment of entries."""
HEAD_NUMBERS = 16
SIGN, PROCESSES, THERE, SAID, LAYOUT = range(5)
"""The head: a random number that identifies the file; processes so far; chunks with memory elsewhere; whether the too-large warning was given; from
here on, the layout."""
COUNTERS = 5
FOUND, MISSED, REFUSED, TOO_LARGE, PUT = range(COUNTERS)
"""Counters of each process. `PUT`: all put attempts; `TOO_LARGE`: those refused because no chunk can hold them."""
SLOTS = 512
"""Rows of counters, assigned to processes round-robin."""
MANY, FEW = 0.1, 4
"""Entries that may be too large without a warning: this share of all puts, and this many."""
COUNTS = aligned(8 * HEAD_NUMBERS)
ROWS = aligned(COUNTS + 8 * COUNTERS * SLOTS)
"""Offsets of the counters and of the rows."""
ODD = 0x9E37_79B9_7F4A_7C15 & (2**63 - 1)

log = logging.getLogger("penstock")
_fence = threading.Lock()


def fence() -> None:
    """Memory barrier: order earlier reads and writes before later ones. The fallback lock suffices only where the CPU makes it so, as on x86-64."""
    loops = compiled()
    if loops is not None:
        loops.penstock_fence()
        return
    with _fence:
        pass


class Address(NamedTuple):
    """Where other processes of this machine find a store."""

    pid: int
    fd: int
    sign: int


class ChunkLayout(NamedTuple):
    """Rows, chunks, bytes of a chunk, and the requested limit. Without chunks there are no rows."""

    rows: int
    chunks: int
    chunk_bytes: int
    max_bytes: int

    @property
    def table(self) -> int:
        """Offset of the chunk table."""
        return aligned(ROWS + 8 * ROW * self.rows)

    @property
    def end(self) -> int:
        """End of the index."""
        return aligned(self.table + 8 * CHUNK * self.chunks)


class ChunkIndex:
    IN_FILE: ClassVar[bool] = True
    """Whether the bytes follow the index and `max_bytes` covers both; else it covers only the bytes, which lie elsewhere."""

    def __init__(self, renewal: Renewal, max_bytes: int, entry_bytes: int = 0) -> None:
        """Make the store. `entry_bytes`: estimated size of an entry. If memory is short it is smaller than requested, or empty."""
        self.renewal = renewal
        size, first = max_bytes, self._made(max_bytes, entry_bytes)
        failed = first
        while failed is not None and size >= SMALLEST_CHUNK:
            size //= 2
            failed = self._made(size, entry_bytes)
        if failed is None and first is not None:  # leave some memory for others
            self.close()
            size //= 2
            failed = self._made(size, entry_bytes)
        if failed is not None:
            size = 0
            self._have_nothing()
        if first is not None:
            log.warning(
                "reuse: there is no memory for max_bytes, %s (%s): samples that are kept have %s bytes, others are prepared anew each time. Give a "
                "smaller max_bytes, or raise the limit that was met (ulimit -v, ulimit -n, the container's memory)",
                f"{max_bytes:,}",
                first,
                f"{size:,}",
            )

    def _made(self, max_bytes: int, entry_bytes: int) -> OSError | None:
        """Make the file; return the error if that fails."""
        layout, fd = layout_of(self.renewal.length, max_bytes, entry_bytes, in_file=self.IN_FILE), -1
        try:
            fd = anonymous_file()
            os.posix_fallocate(fd, 0, layout.end)
            os.ftruncate(fd, self._size(layout))
            self._map(fd, layout)
        except OSError as exc:
            if fd >= 0:
                os.close(fd)
            return exc
        self._head[LAYOUT : LAYOUT + len(layout)] = layout
        self._head[SIGN] = secrets.randbits(62) + 1
        return None

    def _size(self, layout: ChunkLayout) -> int:
        """Size of the file."""
        return layout.end + (layout.chunks * layout.chunk_bytes if self.IN_FILE else 0)

    def _join(self, address: Address) -> None:
        """Map the file of another process; OSError if it is unreachable or another file."""
        fd, layout = joined(address)
        try:
            if layout.rows not in (0, self.renewal.length) or os.fstat(fd).st_size < self._size(layout):
                raise OSError("it is of other data: all ranks and workers must have the same")
            self._map(fd, layout)
        except BaseException:
            os.close(fd)
            raise

    def _map(self, fd: int, layout: ChunkLayout) -> None:
        self._lay(mmap.mmap(fd, self._size(layout)), layout)
        self._fd = fd
        self._let_go: Callable[[], object] = weakref.finalize(self, os.close, fd)

    def _have_nothing(self) -> None:
        """Act as a closed, empty store in this process."""
        self._lay(bytearray(ROWS + 8), ChunkLayout(0, 0, LINE, 0))
        self._let_go = lambda: None
        self.close()

    def _lay(self, memory: mmap.mmap | bytearray, layout: ChunkLayout) -> None:
        self.max_bytes, self.chunk_bytes = layout.max_bytes, layout.chunk_bytes
        self._data = layout.end if self.IN_FILE else 0
        """Offset of the first chunk."""
        self._bytes = np.frombuffer(memory, np.uint8)
        self._head = np.frombuffer(memory, np.int64, HEAD_NUMBERS)
        self._counts = np.frombuffer(memory, np.int64, COUNTERS * SLOTS, COUNTS).reshape(-1, COUNTERS)
        self.rows = np.frombuffer(memory, np.int64, ROW * layout.rows, ROWS).reshape(-1, ROW)
        self.chunks = np.frombuffer(memory, np.int64, CHUNK * layout.chunks, layout.table).reshape(-1, CHUNK)
        self._marks = pointer(self.chunks)
        self._fd, self.now = -1, 0
        self._filling: dict[int, tuple[int, int]] = {}
        """This process's chunk for each end, and its used bytes."""
        self._mapped: set[int] = set()
        """Chunks with all pages mapped in this process."""
        self._pid = self._slot = 0

    @property
    def address(self) -> Address:
        return Address(os.getpid(), self._fd, int(self._head[SIGN]) if len(self._head) else 0)

    def __getstate__(self) -> tuple[Renewal, Address]:
        return self.renewal, self.address

    def __setstate__(self, state: tuple[Renewal, Address]) -> None:
        self.renewal, address = state
        try:
            self._join(address)
        except OSError as exc:
            self._have_nothing()
            if address.sign:
                log.warning(
                    "reuse: what is kept cannot be reached by process %d, which prepares all samples anew: %s",
                    os.getpid(),
                    exc,
                )

    # ---- rows

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """Do nothing: entries are in memory already."""

    def found(self, wanted: Wanted) -> tuple[list[int], int] | None:
        """Return the row of a valid entry, and its chunk."""
        row = self.rows[wanted.sample].tolist()
        if row[TAG] != wanted.renewed + 1 or row[CHECK] != check_of(row):
            return None
        fence()
        chunk = (row[OFFSET] - self._data) // self.chunk_bytes
        return (row, chunk) if int(self.chunks[chunk, 0]) == row[GENERATION] else None

    def mark_at(self, chunk: int) -> int:
        """Return the address of a chunk's generation."""
        return self._marks + 8 * CHUNK * chunk

    def note(self, wanted: Wanted, offset: int, size: int, generation: int) -> None:
        """Write the row of an entry."""
        row = [wanted.renewed + 1, offset, size, generation, 0]
        row[CHECK] = check_of(row)
        fence()
        self.rows[wanted.sample] = row

    def remove(self, sample: int) -> None:
        if 0 <= sample < len(self.rows):
            self.rows[sample] = 0

    # ---- chunks

    def _room(self, size: int, end: int) -> int:
        """Allocate space that stays valid until epoch `end`; -1 if there is none."""
        self._settle()
        chunk, used = self._filling.get(end, (-1, self.chunk_bytes))
        if used + size > self.chunk_bytes:
            for over in [other for other in self._filling if other <= self.now or other == end]:
                self._unlock(self._filling.pop(over)[0])
            chunk, used = self._claimed(end), 0
            if chunk < 0:
                return -1
        self._filling[end] = chunk, used + size
        return self._data + chunk * self.chunk_bytes + used

    def _claimed(self, end: int) -> int:
        """Claim a chunk: one past its end, else a fresh one, else one claimed in a future epoch (time was set back, or others are ahead). Chunks
        that others still write to are locked."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, 0)
        try:
            _, born, ends = self._usable().T
            (free,) = np.nonzero((born == 0) | (ends <= self.now) | (born > self.now + 1))
            later = np.where(born[free] == 0, 1, np.where(born[free] > self.now + 1, 2, 0))
            for chunk in free[np.argsort(later, kind="stable")].tolist():
                if not self._lock(chunk):
                    continue
                if self.IN_FILE and not born[chunk]:
                    self._fill_up(chunk)
                self.chunks[chunk, 0] += 1
                fence()
                self.chunks[chunk, 1:] = self.now + 1, end
                return int(chunk)
        except OSError as exc:
            log.debug("no memory for samples that are to be kept: %s", exc)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 0)
        return -1

    def _fill_up(self, chunk: int) -> None:
        """Allocate the memory of a fresh chunk; on OSError others may try."""
        try:
            os.posix_fallocate(self._fd, self._data + chunk * self.chunk_bytes, self.chunk_bytes)
        except OSError:
            self._unlock(chunk)
            raise

    def _usable(self) -> NDArray[np.int64]:
        """Return the chunks that have memory."""
        return self.chunks

    def _settle(self) -> None:
        """Register a process that is new to the store: inherited chunks and pages are its parent's."""
        if self._pid != os.getpid() and self._fd >= 0:
            self._pid, self._filling, self._mapped = os.getpid(), {}, set()
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, 0)
            self._slot = int(self._head[PROCESSES]) % SLOTS
            self._head[PROCESSES] += 1
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 0)

    def _refuse(self, size: int) -> None:
        """Count a refused entry; warn once for all processes if chunks are too small for many."""
        self._count(REFUSED)
        if size <= self.chunk_bytes or not len(self.chunks):
            return
        self._count(TOO_LARGE)
        large, put = self._counts[:, TOO_LARGE].sum(), self._counts[:, PUT].sum()
        if large > max(FEW, MANY * put) and not self._head[SAID]:
            self._head[SAID] = 1
            log.warning(
                "reuse: %s of %s samples so far were not kept, since they are larger than %s bytes, as memory is given out: they are prepared anew "
                "each time. Split behind an op that makes them smaller (Resize, a crop), or give a larger max_bytes",
                *(f"{each:,}" for each in (large, put, self.chunk_bytes)),
            )

    def _count(self, what: int) -> None:
        self._settle()
        self._counts[self._slot, what] += 1

    def _lock(self, chunk: int) -> bool:
        if any(chunk == own for own, _ in self._filling.values()):
            return False
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, chunk + 1)
        except OSError:
            return False
        return True

    def _unlock(self, chunk: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, chunk + 1)

    # ---- the rest

    def stats(self) -> dict[str, int]:
        there = self.rows[self.rows[:, TAG] > 0]
        if len(there):
            chunks = (there[:, OFFSET] - self._data) // self.chunk_bytes
            there = there[self.chunks[chunks, 0] == there[:, GENERATION]]
        claimed = int(np.count_nonzero(self.chunks[:, BORN]))
        return {
            "entries": len(there),
            "bytes": self._sum_of(there[:, SIZE]),
            "held_bytes": self._data + claimed * self.chunk_bytes,
            "max_bytes": self.max_bytes,
            **dict(zip(("found", "missed", "refused"), self._counts.sum(0).tolist(), strict=False)),
        }

    def _sum_of(self, sizes: Any) -> int:
        return int(sizes.sum())

    def close(self) -> None:
        """Detach this process: lookups miss, puts are refused, borrowed entries are invalid. The memory ends with the last process that maps it."""
        self.rows, self.chunks = self.rows[:0].copy(), self.chunks[:0].copy()
        self._counts = self._counts.copy()
        self._bytes, self._head = self._bytes[:0].copy(), self._head[:0].copy()
        self._data, self._filling, self._fd = 0, {}, -1
        self._let_go()


def joined(address: Address) -> tuple[int, ChunkLayout]:
    """Open the file at an address and read its layout; OSError if there is none or another. Across PID namespaces the number may name any file of
    any process, so check it before opening it for writing."""
    looked = os.open(
        f"/proc/{address.pid}/fd/{address.fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    )
    try:
        plain = stat.S_ISREG(os.fstat(looked).st_mode)
        head = np.frombuffer(os.pread(looked, 8 * HEAD_NUMBERS, 0) if plain else b"", np.int64).tolist()
        if len(head) < HEAD_NUMBERS or head[SIGN] != address.sign:
            raise OSError("it is another file: processes of this machine do not see each other")
        return os.open(f"/proc/self/fd/{looked}", os.O_RDWR | os.O_CLOEXEC), ChunkLayout(
            *head[LAYOUT : LAYOUT + 4]
        )
    finally:
        os.close(looked)


def layout_of(samples: int, max_bytes: int, entry_bytes: int = 0, *, in_file: bool) -> ChunkLayout:
    """Compute the layout; no rows and no chunks if not one entry fits beside the index."""
    room = room_beside(samples, max_bytes) if in_file else max_bytes
    size = chunk_bytes(room, entry_bytes)
    count = room // size if entry_bytes <= size else 0
    return ChunkLayout(samples if count else 0, count, size, max_bytes)


def room_beside(samples: int, max_bytes: int) -> int:
    """Return the bytes left beside an index of `samples` rows."""
    table = aligned(8 * CHUNK * max_bytes // SMALLEST_CHUNK)
    return max(0, max_bytes - ChunkLayout(samples, 0, 0, 0).table - table)


def chunk_bytes(room: int, entry_bytes: int = 0) -> int:
    """Choose the chunk size for `room` bytes; entries take about `entry_bytes`, or a little more."""
    entry = aligned(entry_bytes + entry_bytes // 32, LINE)
    usual = min(LARGEST_CHUNK, max(SMALLEST_CHUNK, room // CHUNKS))
    size = min(max(usual, ENTRIES * entry), room // FEWEST)
    if size < ENTRIES * entry:  # then chunks should hold entries without a remainder
        size = min(max(1, size // entry) * entry, room)
    return max(LINE, size // LINE * LINE)


def check_of(row: Sequence[int]) -> int:
    """Return a check of the row's other numbers; never 0."""
    found = ODD
    for number in row[:CHECK]:
        found = ((found ^ number) * ODD) & (2**63 - 1)
    return found | 1
