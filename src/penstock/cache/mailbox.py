"""Hands what threads have to say to the one thread that keeps the state."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable


class Mailbox:
    """Readable when something was posted. `post` may be called from any thread."""

    def __init__(self) -> None:
        self._posted: deque[Callable[[], None]] = deque()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._told = False

    def fileno(self) -> int:
        return self._read

    def post(self, call: Callable[[], None]) -> None:
        """Have `call` made by the thread that opens the mailbox."""
        self._posted.append(call)
        if not self._told:
            self._told = True
            with contextlib.suppress(BlockingIOError, OSError):  # it is full, so it is readable; or closed
                os.write(self._write, b"!")

    def open(self) -> None:
        """Make all calls that were posted."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        self._told = False  # before looking: what comes now tells again
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)
