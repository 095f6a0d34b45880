"""Processes as the agent handles them: start, ask for a stack, kill, reap. Linux; pidfds where allowed."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from penstock.engine.troubles import user_frames
from penstock.lanes import wire
from penstock.lanes.wire import Channel
from penstock.measure.host import DUMP_SIGNAL, CoreWaits, catches, process_state

DUMP_WAIT_S = 0.3
"""Time for a worker to write its stack before it is killed or reported."""
STACK_BYTES = 1 << 16


def open_pidfd(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the kernel or a sandbox denies it."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return -1


def wait_readable(fd: int, timeout_s: float) -> bool:
    """Whether `fd` becomes readable in time. By poll: select refuses the descriptors above 1023 of a large program."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


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
    waits: CoreWaits = field(init=False)
    layouts: set[int] = field(default_factory=set)
    """Layouts the worker has been told."""
    ended: bool = False
    hung: bool = False
    kill_at: float | None = None
    warn_at: float | None = None
    silent_s: float = 0.0
    verdict: str = ""
    """Why it was killed by us: how long it was silent, and where."""
    dumped: int = 0

    @property
    def name(self) -> str:
        return f"worker {self.id} (pid {self.pid})"

    def __post_init__(self) -> None:
        self.pidfd, self.waits = open_pidfd(self.pid), CoreWaits(self.pid)

    def unregister(self, selector: selectors.BaseSelector) -> None:
        for registered in (self.channel.sock, self.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(registered)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def ask_stack(self, now_s: float, silent_s: float) -> None:
        """Have the worker write down where it is; it is reported when it has had time to."""
        self.dumped, self.silent_s = os.fstat(self.crash).st_size, silent_s
        self.warn_at = now_s + DUMP_WAIT_S
        if catches(self.pid, DUMP_SIGNAL):  # else it would kill: the process has only just begun
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, DUMP_SIGNAL)

    def condemn(self, now_s: float) -> None:
        """It hangs: kill it when it has had time to say where."""
        self.hung, self.warn_at, self.kill_at = True, None, now_s + DUMP_WAIT_S

    def heard_out(self, now_s: float) -> str:
        """When a silent worker has had its time: kill it if it is condemned; what to report if it is not."""
        if self.kill_at is not None and now_s >= self.kill_at:
            self.kill_at = None
            self.verdict = f"was silent for {self.silent_s:.1f} s {self.where()}"
            self.kill()
        if self.warn_at is not None and now_s >= self.warn_at:
            self.warn_at = None
            return f"{self.name} has been silent for {self.silent_s:.0f} s {self.where()}"
        return ""

    def crash_text(self) -> str:
        """What the worker's fault handler wrote, if anything."""
        return self._written(0)

    def _written(self, start: int) -> str:
        size = os.fstat(self.crash).st_size
        start = max(start, size - STACK_BYTES)
        return user_frames(os.pread(self.crash, size - start, start).decode(errors="replace"))

    def where(self) -> str:
        """The newest stack, on lines of its own, or why there is none."""
        if stack := self._written(self.dumped):
            return f"(stack below)\n{stack}"
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
            wait_readable(self.pidfd, left)
        self.kill()
        if self.process is not None:
            self.process.join(1.0)

    def close(self) -> None:
        self.kill_at = self.warn_at = None
        self.channel.close()
        self.waits.close()
        for fd in (self.lifeline, self.crash, self.pidfd):
            if fd >= 0:
                os.close(fd)
        if self.process is not None:
            self.process.close()


def sent_hand(adoptions: socket.socket) -> Hand | None:
    """A worker that the training process has started: its pid, socket, lifeline and crash file. None: no more will come."""
    data, fds, _, _ = socket.recv_fds(adoptions, 64, 3)
    if not data:
        return None
    worker, pid = wire.WORKER.unpack(data)
    return Hand(worker, pid, Channel(socket.socket(fileno=fds[0])), lifeline=fds[1], crash=fds[2])
