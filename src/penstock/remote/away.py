"""A remote worker's source of bytes that only the loader's machine has: it asks the ferry for them.

All ranges of a task are asked for when the task arrives, so that they travel while the task before it is prepared. Every range asked for is
answered, with its bytes or an errno; what nobody asked for, or nobody needs any more, is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from struct import error as struct_error

from penstock.remote.frames import BYTES, READ, Net
from penstock.sources.sources import ByteRange, Source
from penstock.wire.frames import Channel

AT_ONCE = 512
"""Ranges in a frame."""


class AwaySource(Source):
    """Files of the loader's machine."""

    def __init__(self, stood_in_for: Source, channel: Channel, wait: Callable[[], bool]) -> None:
        """`wait` returns when more has arrived; False: nothing will."""
        self.chunk_bytes = stood_in_for.chunk_bytes
        self._channel, self._wait = channel, wait
        self._task = -1
        self._asked: dict[int, list[ByteRange]] = {}
        self._came: dict[int, dict[ByteRange, bytes | int]] = {}

    def ask(self, task: int, ranges: Sequence[ByteRange]) -> None:
        """Ask for bytes that a task will read."""
        before = self._asked.setdefault(task, [])
        self._came.setdefault(task, {})
        for first in range(0, len(ranges), AT_ONCE):
            some = ranges[first : first + AT_ONCE]
            self._channel.send(Net.READ, READ.pack(task, len(before)), json.dumps(some).encode())
            before.extend(some)

    def begin(self, task: int) -> None:
        """What is read from now on is for this task."""
        self._task = task

    def drop(self, task: int) -> None:
        """A task is over."""
        self._asked.pop(task, None)
        self._came.pop(task, None)

    def take(self, payload: bytes) -> None:
        """Take an answer."""
        try:
            task, number, failed = BYTES.unpack_from(payload)
        except struct_error:
            return
        ranges = self._asked.get(task)
        if ranges is not None and 0 <= number < len(ranges):
            self._came[task][ranges[number]] = failed or payload[BYTES.size :]

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        wanted = (name, start, end)
        if wanted not in self._asked.get(self._task, ()):
            self.ask(self._task, [wanted])
        came = self._came[self._task]
        while wanted not in came:
            if not self._wait():
                raise ConnectionError("the machine that has the files is gone")
        found = came[wanted]
        if isinstance(found, int):
            raise OSError(found, os.strerror(found), name)
        return found

    def read_many(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        missing = [one for one in ranges if one not in self._asked.get(self._task, ())]
        if missing:
            self.ask(self._task, missing)
        return [self.read(*one) for one in ranges]

    def size(self, name: str) -> int:
        return len(self.read(name))

    def stamp(self, name: str) -> str:
        raise OSError(f"{name} is on another machine")

    def close(self) -> None:
        """The connection is the worker's."""
