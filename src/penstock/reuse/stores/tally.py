"""Counters shared by the processes of a loader, in shared memory.

Rule 1: every process adds to its own row, so nobody waits, and counts survive a kill.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from penstock.wire.shared_table import SharedTable

ROWS = 1024
"""Rows, assigned to processes round-robin."""


class Tally:
    def __init__(self, names: Sequence[str], table: SharedTable | None = None) -> None:
        """Without a `table`, each process counts for itself."""
        self.names, self._table, self._pid, self._row = tuple(names), table, 0, 0
        self._counts = np.zeros((1, len(names)), np.int64) if table is None else table["counts"]

    @classmethod
    def shared(cls, names: Sequence[str]) -> Tally:
        """Return a tally of all processes; raise OSError if there is no memory."""
        return cls(names, SharedTable(("comers", np.int64, (1,)), ("counts", np.int64, (ROWS, len(names)))))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return Tally, (self.names, self._table)

    def add(self, *numbers: int) -> None:
        """Add one number per name; missing ones are 0."""
        self._counts[self._own_row(), : len(numbers)] += numbers

    def is_first(self, name: str) -> bool:
        """Count one; return whether it is the first of all processes: for messages given once."""
        row, counted = self._own_row(), self._counts[:, self.names.index(name)]
        with self._alone():
            was_none = not counted.any()
            counted[row] += 1
        return was_none

    def _own_row(self) -> int:
        if self._table is not None and self._pid != os.getpid():
            with self._alone():
                comers = self._table["comers"]
                self._row = int(comers[0]) % ROWS
                comers += 1
            self._pid = os.getpid()
        return self._row

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude other processes, but not threads of this one."""
        if self._table is None:
            yield
            return
        fcntl.lockf(self._table.fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._table.fd, fcntl.LOCK_UN)

    def sums(self) -> dict[str, int]:
        return dict(zip(self.names, self._counts.sum(0).tolist(), strict=True))
