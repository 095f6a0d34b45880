"""Partly prepared samples in memory: one unnamed memory file, mapped by all processes of a loader, and by other ranks' of the same machine.

Rule 1: memory is given out in chunks. All that a process writes into one chunk is renewed in the same epoch, the chunk's *end*: then the
        whole chunk is free at once, and nothing is ever moved or left over between entries. What is put a second time, or removed, keeps its
        place until then. Rows and counters count as memory too: no more than `max_bytes` is ever held.
Rule 2: a chunk has a generation, which grows before it is written again. What was read from a chunk counts only if its generation is still the
        same afterwards (`Borrowed.holds`): so nobody need wait for anybody.
Rule 3: a row says where a sample's entry is. It is written last: of what a process leaves half done when it is killed, there is no row. A row that
        is torn is none, by its check.
Rule 4: who writes to a chunk has a lock of the kernel's on it, which ends with whoever has it: nobody else claims the chunk meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.plan.renewal import Renewal
from penstock.store.arena import anonymous_file
from penstock.store.extents import aligned
from penstock.store.partial import Entry, Wanted

TYPES = [
    np.dtype(name)
    for name in ("u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", "u2", "u4", "u8", "c8", "c16")
]
DIMENSIONS = 4
"""Types and dimensions that samples have before they are finished; what has others is refused."""
HEAD = 8 * (DIMENSIONS + 4)
"""Of an entry: its type, its dimensions, its shape, bytes of what else belongs to it, bytes of its values."""
ROW, CHUNK = 5, 3
TAG, OFFSET, SIZE, GENERATION, CHECK = range(ROW)
"""Of a row: the epoch of renewal + 1; where the entry begins; its bytes; the generation of its chunk; a check of all four."""
BORN, END = 1, 2
"""Of a chunk, beside its generation: the epoch in which it was claimed + 1; that in which all that is in it is renewed."""
LARGEST_CHUNK, SMALLEST_CHUNK, CHUNKS, FEWEST = 8 << 20, 1 << 20, 512, 8
"""Chunks of 1 to 8 MiB, so that there are about 512; of less than 8 MiB it is an eighth, since each end has chunks of its own."""
LINE = 64
"""Entries begin at multiples of this."""
SIGN, PROCESSES = range(2)
"""Of the head: a random number that tells this file from others; how many processes have come."""
FOUND, MISSED, REFUSED = range(3)
SLOTS = 1024
"""Rows of counters, one for each process, around and around."""
ODD = 0x9E37_79B9_7F4A_7C15 & (2**63 - 1)

log = logging.getLogger("penstock")
_fence = threading.Lock()


def fence() -> None:
    """What this process has read or written before, it has done before what follows, on machines that would turn that around too."""
    with _fence:
        pass


class Borrowed(NamedTuple):
    """An entry where it lies."""

    entry: Entry
    store: MemoryStore
    chunk: int
    generation: int

    def holds(self) -> bool:
        """Whether all that was read of it up to now was the entry."""
        fence()
        chunks = self.store.chunks
        return len(chunks) > 0 and int(chunks[self.chunk, 0]) == self.generation


class Address(NamedTuple):
    """Where other processes of this machine find a store."""

    pid: int
    fd: int
    sign: int


class MemoryStore:
    def __init__(self, renewal: Renewal, max_bytes: int) -> None:
        self.renewal, self.max_bytes = renewal, max_bytes
        self._open(anonymous_file())
        self._head[SIGN] = secrets.randbits(62) + 1

    @classmethod
    def of(cls, renewal: Renewal, max_bytes: int, address: Address) -> MemoryStore:
        """The store of another process on this machine; OSError if it cannot be reached."""
        store = cls.__new__(cls)
        store.renewal, store.max_bytes = renewal, max_bytes
        store._open(os.open(f"/proc/{address.pid}/fd/{address.fd}", os.O_RDWR | os.O_CLOEXEC))
        if int(store._head[SIGN]) != address.sign:
            raise OSError("it is another file: processes of this machine do not see each other")
        return store

    @property
    def address(self) -> Address:
        return Address(os.getpid(), self._fd, int(self._head[SIGN]))

    def _open(self, fd: int) -> None:
        counts = aligned(8 * 8)
        rows = aligned(counts + 8 * 3 * SLOTS)
        chunks = aligned(rows + 8 * ROW * self.renewal.length)
        room = max(0, self.max_bytes - chunks - aligned(8 * CHUNK * self.max_bytes // SMALLEST_CHUNK))
        self.chunk_bytes = chunk_bytes(room)
        count = room // self.chunk_bytes
        self._data = aligned(chunks + 8 * CHUNK * count)
        size = self._data + count * self.chunk_bytes
        os.posix_fallocate(fd, 0, self._data)
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        memory = mmap.mmap(fd, size)
        self._bytes = np.frombuffer(memory, np.uint8)
        self._head = np.frombuffer(memory, np.int64, 8)
        self._counts = np.frombuffer(memory, np.int64, 3 * SLOTS, counts).reshape(-1, 3)
        self.rows = np.frombuffer(memory, np.int64, ROW * self.renewal.length, rows).reshape(-1, ROW)
        self.chunks = np.frombuffer(memory, np.int64, CHUNK * count, chunks).reshape(-1, CHUNK)
        self._fd, self.now = fd, 0
        self._filling: dict[int, tuple[int, int]] = {}
        """This process's chunk for each end, and how many of its bytes are taken."""
        self._pid = self._slot = 0
        self._let_go = weakref.finalize(self, os.close, fd)

    def __getstate__(self) -> tuple[Renewal, int, int, int]:
        return self.renewal, self.max_bytes, os.getpid(), self._fd

    def __setstate__(self, state: tuple[Renewal, int, int, int]) -> None:
        self.renewal, self.max_bytes, pid, fd = state
        self._open(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC))

    # ---- reading

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """These will be asked for next. They need not be fetched from anywhere."""

    def borrow(self, wanted: Wanted) -> Borrowed | None:
        """The entry where it lies, without a copy."""
        if not 0 <= wanted.sample < len(self.rows):
            return None
        found = self._borrowed(wanted)
        self._count(MISSED if found is None else FOUND)
        return found

    def _borrowed(self, wanted: Wanted) -> Borrowed | None:
        row = self.rows[wanted.sample].tolist()
        tag, offset, size, generation, check = row
        if tag != wanted.renewed + 1 or check != check_of(row):
            return None
        fence()
        chunk = (offset - self._data) // self.chunk_bytes
        if int(self.chunks[chunk, 0]) != generation:
            return None
        found = Borrowed(entry_in(self._bytes[offset : offset + size]), self, chunk, generation)
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
        if not 0 <= wanted.sample < len(self.rows):
            return False
        self.now = max(self.now, wanted.renewed)  # nothing is put before its time
        values = np.ascontiguousarray(entry.values).reshape(entry.values.shape)
        size = aligned(HEAD + len(entry.extra) + values.nbytes, LINE)
        kept = values.dtype in TYPES and values.ndim <= DIMENSIONS and size <= self.chunk_bytes
        offset = self._room(size, self.renewal.ends(wanted.sample, wanted.renewed)) if kept else -1
        if offset < 0:
            self._count(REFUSED)
            return False
        write_entry(self._bytes[offset : offset + size], values, entry.extra)
        chunk = (offset - self._data) // self.chunk_bytes
        row = [wanted.renewed + 1, offset, size, int(self.chunks[chunk, 0]), 0]
        row[CHECK] = check_of(row)
        fence()
        self.rows[wanted.sample] = row
        return True

    def remove(self, sample: int) -> None:
        if 0 <= sample < len(self.rows):
            self.rows[sample] = 0

    def _room(self, size: int, end: int) -> int:
        """Where so many bytes can be written that are kept until an epoch; -1: nowhere."""
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
        """A chunk of our own: one that was never used, or has come to its end, or was claimed in an epoch that is still to come, now that
        time was set back. One that somebody else still writes to is locked."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, 0)
        try:
            born, ends = self.chunks[:, BORN], self.chunks[:, END]
            (free,) = np.nonzero((born == 0) | (ends <= self.now) | (born > self.now + 1))
            for chunk in free[np.argsort(born[free] == 0, kind="stable")].tolist():  # those with memory first
                if not self._lock(chunk):
                    continue
                if not born[chunk]:
                    os.posix_fallocate(self._fd, self._data + chunk * self.chunk_bytes, self.chunk_bytes)
                self.chunks[chunk, 0] += 1
                fence()
                self.chunks[chunk, 1:] = self.now + 1, end
                return int(chunk)
        except OSError as exc:
            log.debug("no memory for samples that are to be kept: %s", exc)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 0)
        return -1

    def _settle(self) -> None:
        """In a process that is new to the store: chunks that are being filled are those of the one that it was forked from."""
        if self._pid != os.getpid():
            self._pid, self._filling = os.getpid(), {}
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, 0)
            self._slot = int(self._head[PROCESSES]) % SLOTS
            self._head[PROCESSES] += 1
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, 0)

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
            "bytes": int(there[:, SIZE].sum()),
            "held_bytes": self._data + claimed * self.chunk_bytes,
            "max_bytes": self.max_bytes,
            **dict(zip(("found", "missed", "refused"), self._counts.sum(0).tolist(), strict=True)),
        }

    def close(self) -> None:
        """From now on nothing is found here or put; what was borrowed does not hold. The memory ends with the last process that has it."""
        self.rows, self._counts = self.rows[:0].copy(), self._counts.copy()
        self.chunks, self._bytes, self._head = (
            self.chunks[:0].copy(),
            self._bytes[:0].copy(),
            self._head[:0].copy(),
        )
        self._data, self._filling = 0, {}
        self._let_go()


def chunk_bytes(room: int) -> int:
    """Of each chunk, of so many bytes."""
    size = min(LARGEST_CHUNK, max(SMALLEST_CHUNK, room // CHUNKS), room // FEWEST)
    return max(LINE, size // LINE * LINE)


def check_of(row: Sequence[int]) -> int:
    """Of the other numbers of a row; never 0."""
    found = ODD
    for number in row[:CHECK]:
        found = ((found ^ number) * ODD) & (2**63 - 1)
    return found | 1


def write_entry(memory: NDArray[np.uint8], values: NDArray[Any], extra: bytes) -> None:
    shape = [*values.shape, *[0] * (DIMENSIONS - values.ndim)]
    head = [TYPES.index(values.dtype), values.ndim, *shape, len(extra), values.nbytes]
    memory[:HEAD].view(np.int64)[:] = head
    memory[HEAD : HEAD + values.nbytes] = values.reshape(-1).view(np.uint8)
    memory[HEAD + values.nbytes : HEAD + values.nbytes + len(extra)] = np.frombuffer(extra, np.uint8)


def entry_in(memory: NDArray[np.uint8]) -> Entry:
    """What memory says that may be written anew meanwhile: anything, then, but within that memory."""
    kind, dimensions, *shape, extra, size = memory[:HEAD].view(np.int64).tolist()
    if not (0 <= kind < len(TYPES) and 0 <= dimensions <= DIMENSIONS and 0 <= size <= len(memory) - HEAD):
        return Entry(memory[:0])
    values = memory[HEAD : HEAD + size]
    wanted = shape[:dimensions]
    if min(wanted, default=0) < 0 or TYPES[kind].itemsize * math.prod(wanted) != size:
        return Entry(memory[:0])
    found = values.view(TYPES[kind]).reshape(wanted)
    found.flags.writeable = False
    return Entry(found, memory[HEAD + size : HEAD + size + max(0, extra)].tobytes())
