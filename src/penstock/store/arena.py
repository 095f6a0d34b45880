"""The shared arena: one unnamed memory file, mapped once by every process of a loader, that batches are assembled in.

The file is as long as the limit but holds no memory until `back` reserves it: `posix_fallocate` answers ENOSPC where a
plain touch would end in SIGBUS. Its first pages are the board, a few counters per worker that anyone may read without
asking. Nothing has a name in the file system, so nothing is left behind, however the processes end.
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
from penstock.store.extents import aligned

SMALLEST = 64 << 20
SHARED = "/dev/shm"  # noqa: S108 - files there are unlinked as soon as they are made
FIELDS = 16
"""Counters per worker on the board (see `Board`)."""


class Board:
    """Counters in shared memory. One row per worker, written by that worker alone, and one of the agent's; read by all."""

    TASK, ORDINAL, BEAT, PREPARE_NS, WRITE_NS, COLLATE_NS, SAMPLES, TASKS, PID = range(9)
    BACKED, TASK_SIZE, REISSUED = range(3)
    """Columns of the last row, which is the agent's."""

    def __init__(self, view: memoryview, workers: int) -> None:
        self._rows = view[: (workers + 1) * FIELDS * 8].cast("q")
        self.workers = workers

    def row(self, worker: int) -> memoryview:
        return self._rows[worker * FIELDS : (worker + 1) * FIELDS]

    def column(self, which: int) -> list[int]:
        return [self._rows[worker * FIELDS + which] for worker in range(self.workers)]


class Arena:
    """A mapping of the memory file. `base` is where batches begin, behind the board."""

    def __init__(self, fd: int, size: int, workers: int) -> None:
        self.fd, self.size, self.workers = fd, size, workers
        self.map = mmap.mmap(fd, size)
        self.view = memoryview(self.map)
        self.base = board_bytes(workers)
        self.board = Board(self.view, workers)

    @classmethod
    def create(cls, limit_bytes: int, workers: int) -> Arena:
        fd = anonymous_file()
        size = board_bytes(workers) + max(limit_bytes, SMALLEST)
        try:
            os.posix_fallocate(fd, 0, board_bytes(workers))
        except OSError as exc:
            os.close(fd)
            raise ArenaFull(full_text(board_bytes(workers), limit_bytes, exc)) from exc
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
        """Reserve memory for [start, end); raises OSError (ENOSPC, ENOMEM) when there is none."""
        os.posix_fallocate(self.fd, start, end - start)

    def unback(self, start: int, end: int) -> None:
        """Give the memory of [start, end) back to the system; nothing refers to it."""
        with contextlib.suppress(OSError):
            self.map.madvise(mmap.MADV_REMOVE, start, end - start)

    def close(self) -> None:
        """Let go of the descriptor; the mapping ends when the last batch that refers to it does."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def board_bytes(workers: int) -> int:
    return aligned((workers + 1) * FIELDS * 8)


def anonymous_file() -> int:
    """A file that exists only as a descriptor: memfd, or an unlinked file where that is denied."""
    try:
        return os.memfd_create("penstock", os.MFD_CLOEXEC)
    except (OSError, AttributeError) as exc:
        folder = SHARED if os.access(SHARED, os.W_OK) else None
        say_once(
            f"memfd_create is denied ({exc}): batches use unlinked files in {folder or 'TMPDIR'} instead, which is often "
            f"small in a container (docker: --shm-size)"
        )
        fd, path = tempfile.mkstemp(prefix="penstock-", dir=folder)
        Path(path).unlink()
        return fd


def full_text(need_bytes: int, limit_bytes: int, cause: object) -> str:
    return (
        f"shared memory for batches is full: {need_bytes:,} more bytes are needed ({cause}), the limit is "
        f"{limit_bytes:,} bytes. Lower batch_size or prefetch_batches, raise slab_bytes, or give the container more "
        f"memory (docker: --shm-size or --memory)."
    )
