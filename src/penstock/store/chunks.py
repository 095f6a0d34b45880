"""Where partly prepared samples lie: an index in shared memory, of chunks and of rows. The bytes are behind it (`kept_memory`), or elsewhere
(`kept_device`).

Rule 1: memory is given out in chunks. All that a process writes into one chunk is renewed in the same epoch, the chunk's *end*: then the
        whole chunk is free at once, and nothing is ever moved or left over between entries. What is put a second time, or removed, keeps its
        place until then.
Rule 2: a chunk has a generation, which grows before it is written again. What was read from a chunk counts only if its generation is still the
        same afterwards: so nobody need wait for anybody.
Rule 3: a row says where a sample's entry is. It is written last: of what a process leaves half done when it is killed, there is no row. A row that
        is torn is none, by its check.
Rule 4: who writes to a chunk has a lock of the kernel's on it, which ends with whoever has it: nobody else claims the chunk meanwhile.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.plan.renewal import Renewal
from penstock.store.arena import anonymous_file
from penstock.store.extents import aligned
from penstock.store.partial import Wanted

ROW, CHUNK = 5, 3
TAG, OFFSET, SIZE, GENERATION, CHECK = range(ROW)
"""Of a row: the epoch of renewal + 1; where the entry begins; its size; the generation of its chunk; a check of all four."""
BORN, END = 1, 2
"""Of a chunk, beside its generation: the epoch in which it was claimed + 1; that in which all that is in it is renewed."""
LARGEST_CHUNK, SMALLEST_CHUNK, CHUNKS, FEWEST = 8 << 20, 1 << 20, 512, 8
"""Chunks of 1 to 8 MiB, so that there are about 512; of less than 8 MiB it is an eighth, since each end has chunks of its own."""
LINE = 64
"""Entries begin at multiples of this."""
SIGN, PROCESSES, THERE = range(3)
"""Of the head: a random number that tells this file from others; how many processes have come; how many chunks have memory elsewhere."""
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


class ChunkIndex:
    IN_FILE: ClassVar[bool] = True
    """Whether the bytes lie behind the index, and both together take `max_bytes`; or only the bytes, elsewhere, do."""

    def __init__(self, renewal: Renewal, max_bytes: int) -> None:
        self.renewal, self.max_bytes = renewal, max_bytes
        self._open(anonymous_file())
        self._head[SIGN] = secrets.randbits(62) + 1

    def _open(self, fd: int) -> None:
        counts = aligned(8 * 8)
        rows = aligned(counts + 8 * 3 * SLOTS)
        chunks = aligned(rows + 8 * ROW * self.renewal.length)
        room = self.max_bytes
        if self.IN_FILE:
            room = max(0, room - chunks - aligned(8 * CHUNK * room // SMALLEST_CHUNK))
        self.chunk_bytes = chunk_bytes(room)
        count = room // self.chunk_bytes
        end = aligned(chunks + 8 * CHUNK * count)
        self._data = end if self.IN_FILE else 0
        """Where the first chunk begins."""
        size = end + count * self.chunk_bytes if self.IN_FILE else end
        os.posix_fallocate(fd, 0, end)
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

    # ---- rows

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """These will be asked for next. They need not be fetched from anywhere."""

    def found(self, wanted: Wanted) -> tuple[list[int], int] | None:
        """The row of an entry that is there, and its chunk."""
        row = self.rows[wanted.sample].tolist()
        if row[TAG] != wanted.renewed + 1 or row[CHECK] != check_of(row):
            return None
        fence()
        chunk = (row[OFFSET] - self._data) // self.chunk_bytes
        return (row, chunk) if int(self.chunks[chunk, 0]) == row[GENERATION] else None

    def note(self, wanted: Wanted, offset: int, size: int, generation: int) -> None:
        """Write the row of an entry that lies there."""
        row = [wanted.renewed + 1, offset, size, generation, 0]
        row[CHECK] = check_of(row)
        fence()
        self.rows[wanted.sample] = row

    def remove(self, sample: int) -> None:
        if 0 <= sample < len(self.rows):
            self.rows[sample] = 0

    # ---- chunks

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
            _, born, ends = self._usable().T
            (free,) = np.nonzero((born == 0) | (ends <= self.now) | (born > self.now + 1))
            for chunk in free[np.argsort(born[free] == 0, kind="stable")].tolist():  # those with memory first
                if not self._lock(chunk):
                    continue
                if self.IN_FILE and not born[chunk]:
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

    def _usable(self) -> NDArray[np.int64]:
        """The chunks that there is memory for."""
        return self.chunks

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
            "bytes": self._sum_of(there[:, SIZE]),
            "held_bytes": self._data + claimed * self.chunk_bytes,
            "max_bytes": self.max_bytes,
            **dict(zip(("found", "missed", "refused"), self._counts.sum(0).tolist(), strict=True)),
        }

    def _sum_of(self, sizes: Any) -> int:
        return int(sizes.sum())

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
