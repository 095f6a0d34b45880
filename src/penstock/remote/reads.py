"""The bytes that one remote worker asks for: checked, opened a few files at a time, queued behind its other frames.

Rule 1: a worker asks only for tasks that it has, and only for files of its loader's dataset (`remote.permits`).
Rule 2: each range is answered once, with its bytes or an errno; for a task that is void, with ECANCELED.
Rule 3: few files are open for a worker at a time, and the number of unanswered ranges is bounded.
"""

from __future__ import annotations

import errno
import json
from collections import deque
from collections.abc import Callable
from struct import error as struct_error

from penstock.remote.file_desk import Answer, AskedRange, FileDesk, FileSpan
from penstock.remote.frames import BYTES, HEAD, READ, Net, framed
from penstock.remote.inlet import MOST_BYTES, Hostile
from penstock.remote.permits import Permit

AT_ONCE = 8
"""Files opened together; the next are opened when half as many are left to send."""
MOST_ASKED = 1 << 16

Post = Callable[[bytes, FileSpan | None], None]
"""Queues a frame, and the bytes behind it."""


class Readings:
    """Requests of one worker."""

    def __init__(self, desk: FileDesk, post: Post, is_wanted: Callable[[int], bool]) -> None:
        """`is_wanted` says whether a task is not void."""
        self._desk, self._post, self._is_wanted = desk, post, is_wanted
        self._waiting: deque[AskedRange] = deque()
        self._opening = False
        self._unsent = 0
        self.nbytes = 0
        """Bytes given so far."""

    def on_frame(self, payload: bytes, permit: Permit | None) -> None:
        try:
            task, number = READ.unpack_from(payload)
            asked = json.loads(payload[READ.size :])
            for at, (name, start, end) in enumerate(asked, number):
                if type(start) is not int or type(end) not in (int, type(None)):
                    raise TypeError
                file = None if permit is None else permit.find(name)
                self._waiting.append(AskedRange(task, at, file, start, end))
        except (struct_error, ValueError, TypeError, RecursionError):
            raise Hostile("it asked for bytes in words that are none") from None
        if len(self._waiting) > MOST_ASKED:  # guard: reads-bounded
            raise Hostile(f"it asked for more than {MOST_ASKED:,} ranges of bytes at a time")
        self.go_on()

    def go_on(self) -> None:
        """Open the next files if there is room for them."""
        while self._waiting and not self._is_wanted(self._waiting[0].task):
            self._answer(self._waiting.popleft(), errno.ECANCELED)
        if self._waiting and not self._opening and self._unsent <= AT_ONCE // 2:
            self._opening = True
            some = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            self._desk.open(some, self._on_opened)

    def _on_opened(self, answers: list[Answer]) -> None:
        self._opening = False
        for asked, found in answers:
            if isinstance(found, FileSpan) and not self._is_wanted(asked.task):
                found.close()
                self._answer(asked, errno.ECANCELED)
            else:
                self._answer(asked, found)
        self.go_on()

    def _answer(self, asked: AskedRange, found: FileSpan | int) -> None:
        if isinstance(found, int):
            self._post(framed(Net.BYTES, BYTES.pack(asked.task, asked.number, found)), None)
            return
        nbytes = found.end - found.at
        if nbytes > MOST_BYTES:
            found.close()
            self._answer(asked, errno.EFBIG)
            return
        self.nbytes += nbytes
        self._unsent += 1
        head = HEAD.pack(BYTES.size + nbytes, Net.BYTES) + BYTES.pack(asked.task, asked.number, 0)
        self._post(head, found)

    def sent(self) -> None:
        """A file has been sent."""
        self._unsent -= 1
        self.go_on()
