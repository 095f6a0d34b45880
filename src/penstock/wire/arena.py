"""The shared arena: one unnamed memory file, mapped once by every process of a loader, for assembling batches.

The file is as long as the limit but has no memory until `back` reserves it: `posix_fallocate` answers ENOSPC where a
plain touch would end in SIGBUS. Its first pages are the board: a few counters per worker that anyone may read. Nothing
has a name in the file system, so nothing is left behind, however the processes end.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from pathlib import Path

from penstock.errors import ArenaFull
from penstock.measure.host import say_once
from penstock.wire.extents import aligned

SMALLEST = 64 << 20
SHARED = "/dev/shm"  # noqa: S108 - files there are unlinked as soon as they are made
FIELDS = 24
"""Counters per worker on the board (see `Board`)."""
MOST_WORKERS = 1024
"""Most workers of a loader; the board has a row of 192 bytes for each."""


AS_CORES = -1
"""As many workers as the cores allow."""


class Board:
    """Counters in shared memory: one row per worker, written by that worker alone, and one for the agent; read by all.

    Rows of workers that never start are not backed by memory; the agent's row, the first, counts those started (`LANES`).
    The training process writes some columns of that row: the `WANTED` worker count (0: no wish; or AS_CORES), whether a GPU
    lane (`LANE`) needs cores now, and sums over its steady state: `BATCHES`, `TAKEN` samples, `ELAPSED_NS` and `WAITED_NS`;
    the batch that it takes next: the number by which it asked for it (`NEXT`), its `EPOCH`, and its number there (`BATCH`); and how much the lane
    has still to make of what workers left to it (`AT_LANE`), in thousandths of a batch.
    """

    TASK, ORDINAL, BEAT, PREPARE_NS, WRITE_NS, COLLATE_NS = range(6)
    SAMPLES, TASKS, PID, CPU_NS, DELAYED_NS, RETRIES = range(6, 12)
    POOL = 12
    """Number of the worker's pool; written by the agent."""
    BACKED, TASK_SIZE, REISSUED, AGENT_BEAT, LANES, WANTED, LANE = range(7)
    BATCHES, TAKEN, ELAPSED_NS, WAITED_NS, OFFLOADED, SAMPLE_BYTES = range(7, 13)
    NEXT, EPOCH, BATCH, AT_LANE = range(13, 17)
    OWN, EXTRA_NS = range(17, 19)
    """Columns of the agent's row. OFFLOADED: samples prepared by other pools than the local one. OWN: workers that this rank has by itself, if it may
    lend and borrow cores, else 0; EXTRA_NS: core-time that it has borrowed, less what it has lent."""

    def __init__(self, view: memoryview, workers: int) -> None:
        self._rows = view[: (workers + 1) * FIELDS * 8].cast("q")
        self.workers = workers

    def row(self, worker: int) -> memoryview:
        return self._rows[(worker + 1) * FIELDS : (worker + 2) * FIELDS]

    @property
    def agent(self) -> memoryview:
        """The agent's row."""
        return self._rows[:FIELDS]

    def column(self, which: int) -> list[int]:
        """Return one counter of all workers started so far."""
        return [self._rows[(worker + 1) * FIELDS + which] for worker in range(self._rows[self.LANES])]


class Arena:
    """A mapping of the memory file, with a board for up to `workers` workers. Batches begin behind it, at `base`."""

    def __init__(self, fd: int, size: int, workers: int) -> None:
        self.fd, self.size, self.workers = fd, size, workers
        self.map = mmap.mmap(fd, size)
        self.view = memoryview(self.map)
        self.base = board_bytes(workers)
        self.board = Board(self.view, workers)

    @classmethod
    def create(cls, limit_bytes: int, workers: int, *, at_first: int | None = None) -> Arena:
        """Create an arena whose board has room for `workers` workers, and memory for `at_first` of them."""
        fd = anonymous_file()
        size, board = board_bytes(workers) + max(limit_bytes, SMALLEST), board_bytes(at_first or workers)
        try:
            os.posix_fallocate(fd, 0, board)
        except OSError as exc:
            os.close(fd)
            raise ArenaFull(full_text(board, limit_bytes, exc)) from exc
        while True:
            os.ftruncate(fd, size)
            try:
                return cls(fd, size, workers)
            except OSError as exc:
                # An address-space limit (ulimit -v): a smaller arena means less prefetching, not failure.
                if exc.errno != errno.ENOMEM or size <= SMALLEST:
                    os.close(fd)
                    raise
                size //= 2

    def back(self, start: int, end: int) -> None:
        """Reserve memory for [start, end); raise OSError (ENOSPC, ENOMEM) if there is none."""
        os.posix_fallocate(self.fd, start, end - start)  # guard: memory-reserved

    def has_room_for(self, workers: int) -> bool:
        """Whether the board has room for so many workers; backs their rows."""
        try:
            self.back(0, board_bytes(workers))
        except OSError:
            return False
        return workers <= self.workers

    def unback(self, start: int, end: int) -> None:
        """Return the memory of [start, end), which nothing refers to, to the system."""
        with contextlib.suppress(OSError):
            self.map.madvise(mmap.MADV_REMOVE, start, end - start)

    def close(self) -> None:
        """Close the descriptor; the mapping ends with the last batch that refers to it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def board_rows(workers: int) -> int:
    """Return the board's rows for a loader that starts with `workers`."""
    return max(MOST_WORKERS, workers)


def board_bytes(workers: int) -> int:
    return aligned((workers + 1) * FIELDS * 8)


def anonymous_file(*, sealable: bool = False) -> int:
    """Return a descriptor of an unnamed file: a memfd, or an unlinked file where memfd is denied."""
    try:
        return os.memfd_create("penstock", os.MFD_CLOEXEC | (os.MFD_ALLOW_SEALING if sealable else 0))
    except (OSError, AttributeError) as exc:
        folder = SHARED if os.access(SHARED, os.W_OK) else None
        say_once(
            f"memfd_create is denied ({exc}): batches use unlinked files in {folder or 'TMPDIR'} instead, which is often "
            f"small in a container (docker: --shm-size)"
        )
        fd, path = tempfile.mkstemp(prefix="penstock-", dir=folder)
        Path(path).unlink()
        return fd


def is_memory(fd: int) -> bool:
    """Whether such a file is known to have no disk behind it."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(("/memfd:", f"{SHARED}/"))
    return False


def full_text(need_bytes: int, limit_bytes: int, cause: object) -> str:
    return (
        f"shared memory for batches is full: {need_bytes:,} more bytes are needed ({cause}), the limit is "
        f"{limit_bytes:,} bytes. Lower batch_size or prefetch_batches, raise slab_bytes, or give the container more "
        f"memory (docker: --shm-size or --memory)."
    )
