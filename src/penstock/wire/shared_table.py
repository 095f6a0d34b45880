"""Numbers in an unnamed memory file that all processes of a loader map, forked or spawned."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.wire.arena import anonymous_file

Column = tuple[str, type, tuple[int, ...]]
"""Name, type, shape."""


class SharedTable:
    """Arrays by name, all zero at first. When pickled, it must be opened while the process that sent it still has it."""

    def __init__(self, *columns: Column) -> None:
        """OSError where there is no memory."""
        self._open(columns, anonymous_file())

    def _open(self, columns: tuple[Column, ...], fd: int) -> None:
        self._columns, self.fd = columns, fd
        weakref.finalize(self, os.close, fd)
        layout = np.dtype(list(columns))
        nbytes = max(1, layout.itemsize)
        os.posix_fallocate(fd, 0, nbytes)
        self._arrays = np.ndarray((), layout, mmap.mmap(fd, nbytes))

    def __getitem__(self, name: str) -> NDArray[Any]:
        found: NDArray[Any] = self._arrays[name]
        return found

    def __getstate__(self) -> tuple[tuple[Column, ...], int, int]:
        return self._columns, os.getpid(), self.fd

    def __setstate__(self, state: tuple[tuple[Column, ...], int, int]) -> None:
        columns, pid, fd = state
        self._open(columns, os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC))
