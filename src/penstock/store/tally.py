"""Numbers that the processes of a loader count up together, in memory that they share.

Rule 1: every process adds to a row of its own, so that nobody waits for anybody, and what was counted stays when one is killed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence

import numpy as np

from penstock.store.arena import anonymous_file

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
        """One for each name."""
        if self._fd >= 0 and self._pid != os.getpid():
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            self._row = int(self._comers[0]) % ROWS
            self._comers += 1
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
            self._pid = os.getpid()
        self._counts[self._row] += numbers

    def sums(self) -> dict[str, int]:
        return dict(zip(self.names, self._counts.sum(0).tolist(), strict=True))
