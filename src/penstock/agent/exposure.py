"""Keeps batches unchanged that a forked child of the training process can see.

The child inherits the arena's mapping, not a copy. So a batch held at the moment of a fork is freed only after the child has
ended too. A pipe tells: only the child holds its write end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol
from weakref import WeakSet

from penstock.measure.endings import wait_readable


class Child:
    """A process forked while batches were held."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def gone(self) -> bool:
        """Whether it and all its children have ended or become another program."""
        if self._fd >= 0 and wait_readable(self._fd, 0.0):
            os.close(self._fd)
            self._fd = -1
        return self._fd < 0

    def __del__(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)


class Holder(Protocol):
    """Knows which batches are held."""

    def holds_batches(self) -> bool: ...
    def expose(self, child: Child) -> None: ...


class _Watch:
    """Watches this process's forks, from the first holder on."""

    def __init__(self) -> None:
        self.holders: WeakSet[Holder] = WeakSet()
        self.registered = False
        self.ours = False
        self._pipe: tuple[int, int] | None = None

    def add(self, holder: Holder) -> None:
        """Tell `holder` of children forked while it holds batches."""
        self.holders.add(holder)
        if not self.registered:
            self.registered = True
            os.register_at_fork(
                before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child
            )

    def _before(self) -> None:
        self._pipe = None
        if not self.ours and any(holder.holds_batches() for holder in list(self.holders)):
            with suppress(OSError):
                self._pipe = os.pipe()

    def _in_parent(self) -> None:
        if self._pipe is not None:
            (read, write), self._pipe = self._pipe, None
            os.close(write)
            child = Child(read)
            for holder in list(self.holders):
                holder.expose(child)

    def _in_child(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe[0])  # the write end stays open as long as the child lives


_watch = _Watch()
watch = _watch.add


@contextmanager
def our_own_fork() -> Iterator[None]:
    """Mark a fork whose child, an agent, does not read batches."""
    _watch.ours = True
    try:
        yield
    finally:
        _watch.ours = False
