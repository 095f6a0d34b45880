"""Processes as the agent handles them: start, ask for a stack, kill, reap. Linux; pidfds where allowed."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from penstock.lanes.wire import Channel
from penstock.measure.host import DUMP_SIGNAL, process_state

DUMP_WAIT_S = 0.3
"""Time for a worker to write its stack before it is killed or reported."""


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the kernel or a sandbox denies it."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return -1


@dataclass(slots=True, eq=False)
class Hand:
    """One worker process, held by the agent."""

    id: int
    pid: int
    channel: Channel
    lifeline: int
    """Write end of the pipe whose closing kills the worker."""
    crash: int
    """File that the worker's fault handler writes to."""
    process: Any = None
    """The multiprocessing object, where the agent is the parent."""
    pidfd: int = -1
    layouts: set[int] = field(default_factory=set)
    """Layouts the worker has been told."""
    ended: bool = False
    hung: bool = False
    kill_at: float | None = None
    warn_at: float | None = None
    silent_s: float = 0.0
    dumped: int = 0

    def __post_init__(self) -> None:
        self.pidfd = open_pidfd(self.pid)

    def unregister(self, selector: selectors.BaseSelector) -> None:
        for registered in (self.channel.sock, self.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(registered)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def ask_stack(self) -> None:
        self.dumped = os.fstat(self.crash).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, DUMP_SIGNAL)

    def crash_text(self) -> str:
        """What the worker's fault handler wrote, if anything."""
        size = os.fstat(self.crash).st_size
        return os.pread(self.crash, min(size, 16384), max(0, size - 16384)).decode(errors="replace").strip()

    def where(self) -> str:
        """The newest stack, or why there is none."""
        size = os.fstat(self.crash).st_size
        if size > self.dumped:
            stack = os.pread(self.crash, size - self.dumped, self.dumped).decode(errors="replace").strip()
            return f"in:\n{stack}"
        state = process_state(self.pid)
        return "because it is stopped (SIGSTOP?)" if state in "Tt" else f"and gives no stack (state {state})"

    def reap(self) -> int | None:
        """Exit code of a child that has ended or is about to."""
        self.process.join(1.0)
        if self.process.exitcode is None:
            self.kill()
            self.process.join(1.0)
        code: int | None = self.process.exitcode
        return code

    def end_by(self, deadline_s: float) -> None:
        """Wait for the worker's end until the deadline, then kill it."""
        left = max(0.0, deadline_s - time.monotonic())
        if self.process is not None:
            self.process.join(left)
        elif self.pidfd >= 0:
            select.select([self.pidfd], [], [], left)
        self.kill()
        if self.process is not None:
            self.process.join(1.0)

    def close(self) -> None:
        self.channel.close()
        for fd in (self.lifeline, self.crash, self.pidfd):
            if fd >= 0:
                os.close(fd)
        if self.process is not None:
            self.process.close()
