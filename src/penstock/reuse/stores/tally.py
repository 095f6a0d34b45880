"""Numbers that the processes of a loader count up together, in memory that they share.

Rule 1: every process adds to a row of its own, so that nobody waits for anybody, and what was counted stays when one is killed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from penstock.wire.arena import anonymous_file

ROWS = 1024
"""One for each process, around and around."""


class Tally:
    def __init__(self, names: Sequence[str], *, shared: bool = False) -> None:
        """Not `shared`: each process counts for itself."""
        self._open(tuple(names), anonymous_file() if shared else -1)

    def _open(self, names: tuple[str, ...], fd: int) -> None:
        self.names, self._fd, self._pid, self._row = names, fd, 0, 0
        rows = ROWS if fd >= 0 else 1
        memory = np.zeros(1 + rows * len(names), np.int64)
        if fd >= 0:
            weakref.finalize(self, os.close, fd)
            os.posix_fallocate(fd, 0, memory.nbytes)
            memory = np.frombuffer(mmap.mmap(fd, memory.nbytes), np.int64)
        self._comers, self._counts = memory[:1], memory[1:].reshape(rows, len(names))

    def __getstate__(self) -> tuple[tuple[str, ...], int, int]:
        return self.names, os.getpid(), self._fd

    def __setstate__(self, state: tuple[tuple[str, ...], int, int]) -> None:
        names, pid, fd = state
        self._open(names, os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC) if fd >= 0 else -1)

    def add(self, *numbers: int) -> None:
        """One for each name; what is left out is 0."""
        self._counts[self._own_row(), : len(numbers)] += numbers

    def is_first(self, name: str) -> bool:
        """Count one, and whether it is the first of all processes: for what is to be said once."""
        row, counted = self._own_row(), self._counts[:, self.names.index(name)]
        with self._alone():
            was_none = not counted.any()
            counted[row] += 1
        return was_none

    def _own_row(self) -> int:
        if self._fd >= 0 and self._pid != os.getpid():
            with self._alone():
                self._row = int(self._comers[0]) % ROWS
                self._comers += 1
            self._pid = os.getpid()
        return self._row

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Other processes wait; the threads of this one do not."""
        if self._fd < 0:
            yield
            return
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def sums(self) -> dict[str, int]:
        return dict(zip(self.names, self._counts.sum(0).tolist(), strict=True))
