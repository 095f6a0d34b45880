"""Files that remote workers ask for, opened in a few threads so that a slow disk holds up nobody else. Their bytes go to the socket by
`sendfile`: half the CPU time of reading and sending them.
"""

from __future__ import annotations

import errno
import os
import queue
import selectors
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.remote.permits import AllowedFile
from penstock.sources.sources import stamp_of

THREADS = 4
WARM_BYTES = 1 << 20


class AskedRange(NamedTuple):
    """Bytes [start, end) of a file that a task needs; `end` None: to its end. `file` None: refused."""

    task: int
    number: int
    file: AllowedFile | None
    start: int
    end: int | None


@dataclass(slots=True)
class FileSpan:
    """Bytes of an open file that wait to be sent."""

    fd: int
    at: int
    end: int

    def send(self, sock: int) -> None:
        """Send all, or as much as there is room for: then BlockingIOError. Another OSError if the file has become shorter."""
        while self.at < self.end:
            sent = os.sendfile(sock, self.fd, self.at, self.end - self.at)
            if not sent:
                raise OSError(errno.EIO, "a file became shorter while it was sent")
            self.at += sent
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


Answer = tuple[AskedRange, FileSpan | int]
"""What was asked for, and the bytes or an errno."""


class FileDesk:
    """Opens files for all remote workers of a ferry."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._asked: queue.SimpleQueue[tuple[Sequence[AskedRange], Callable[[list[Answer]], None]]] = (
            queue.SimpleQueue()
        )
        self._opened: queue.SimpleQueue[tuple[list[Answer], Callable[[list[Answer]], None]]] = (
            queue.SimpleQueue()
        )
        self._ready, self._wake = os.pipe()
        os.set_blocking(self._ready, False)
        selector.register(self._ready, selectors.EVENT_READ, lambda _: self._hand_out())
        self._started = False

    def open(self, ranges: Sequence[AskedRange], then: Callable[[list[Answer]], None]) -> None:
        """Open them; `then` is called by the ferry's loop."""
        if not self._started:
            self._started = True
            for _ in range(THREADS):
                threading.Thread(target=self._work, name="penstock reads", daemon=True).start()
        self._asked.put((ranges, then))

    def _work(self) -> None:
        while True:
            ranges, then = self._asked.get()
            self._opened.put(([(one, opened(one)) for one in ranges], then))
            os.write(self._wake, b".")

    def _hand_out(self) -> None:
        os.read(self._ready, 4096)
        while not self._opened.empty():
            answers, then = self._opened.get()
            then(answers)


def opened(asked: AskedRange) -> FileSpan | int:
    """Open a file and have its bytes in memory; return an errno if that fails."""
    if asked.file is None:
        return errno.EACCES
    try:
        fd = os.open(asked.file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as exc:
        return (exc.errno if isinstance(exc, OSError) else None) or errno.EIO
    failed = errno.EIO
    try:
        status = os.fstat(fd)
        end = status.st_size if asked.end is None else asked.end
        if not stat.S_ISREG(status.st_mode):  # guard: read-regular
            failed = errno.EINVAL
        elif asked.file.stamp and asked.file.stamp != stamp_of(status):  # guard: read-stamp
            failed = errno.ESTALE
        elif 0 <= asked.start <= end <= status.st_size:  # guard: read-span
            warm(fd, asked.start, end)
            return FileSpan(fd, asked.start, end)
    except OSError as exc:
        failed = exc.errno or errno.EIO
    os.close(fd)
    return failed


def warm(fd: int, start: int, end: int) -> None:
    """Have the bytes in the page cache, so that sending them does not wait for the disk."""
    try:
        os.preadv(fd, [bytearray(1)], max(start, end - 1), os.RWF_NOWAIT)
        if start < end:
            os.preadv(fd, [bytearray(1)], start, os.RWF_NOWAIT)
    except BlockingIOError:
        room = bytearray(min(WARM_BYTES, end - start))
        while start < end and (got := os.preadv(fd, [memoryview(room)[: end - start]], start)):
            start += got
    except OSError:  # a file system that cannot tell
        return
