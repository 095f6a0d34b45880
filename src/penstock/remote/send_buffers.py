"""A remote worker's memory: one row of counters, and buffers for rows that wait to be sent."""

from __future__ import annotations

import threading
from collections import deque

from penstock.wire.arena import FIELDS


class OneRow:
    """Stands in for the board: this worker's row alone."""

    def __init__(self) -> None:
        self._row = memoryview(bytearray(8 * FIELDS)).cast("q")
        self._row[:2] = memoryview(b"\xff" * 16).cast("q")  # no task, no sample

    def row(self, _: int) -> memoryview:
        return self._row


class SendBuffers:
    """Stands in for the arena, which is on another machine. Nothing of it is shared."""

    def __init__(self) -> None:
        self.board = OneRow()
        self.view = memoryview(bytearray(64))
        self._free: deque[bytearray] = deque(maxlen=8)
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> bytearray:
        """Return a buffer of at least `nbytes`: one that was given back, since new memory costs a page fault per page."""
        with self._lock:
            for _ in range(len(self._free)):
                buffer = self._free.popleft()
                if len(buffer) >= nbytes:
                    return buffer
        return bytearray(nbytes)

    def give_back(self, buffer: bytearray) -> None:
        with self._lock:
            self._free.append(buffer)
