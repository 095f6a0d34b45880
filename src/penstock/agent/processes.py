"""Worker processes as the agent handles them: watch, dump stacks, kill, reap. Linux; pidfds where allowed."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.agent.capacity import move_to_cores
from penstock.agent.handles import Hear
from penstock.agent.troubles import end_text, oom_text, user_frames
from penstock.measure import host
from penstock.measure.endings import open_pidfd, wait_readable
from penstock.measure.host import DUMP_SIGNAL, CoreWaits, catches, process_state
from penstock.wire import frames as wire
from penstock.wire.arena import Board
from penstock.wire.frames import Channel, Msg

DUMP_WAIT_S = 0.3
"""Time for a worker to dump its stack before it is killed or reported."""
STACK_BYTES = 1 << 16


@dataclass(slots=True, eq=False)
class LocalWorker:
    """A worker process of this machine (see `handles.WorkerHandle`)."""

    id: int
    pid: int
    channel: Channel
    lifeline: int
    """Write end of a pipe; closing it kills the worker."""
    crash: int
    """File for the worker's fault handler."""
    process: Any = None
    """The multiprocessing object, if the agent is the parent."""
    ask_parent: Callable[[Msg, bytes], None] | None = None
    """Asks the training process how the worker ended, if that is the parent."""
    exit_code: int | None = None
    stopping: bool = False
    selector: selectors.BaseSelector | None = None
    hear: Hear = field(init=False)
    on_end: Callable[[], None] = field(init=False)
    pidfd: int = -1
    waits: CoreWaits = field(init=False)
    layouts: set[int] = field(default_factory=set)
    """Layouts sent to the worker."""
    ended: bool = False
    hung: bool = False
    kill_at: float | None = None
    warn_at: float | None = None
    silent_s: float = 0.0
    verdict: str = ""
    """Why we killed it: how long it was silent, and where."""
    dumped: int = 0

    @property
    def name(self) -> str:
        return f"worker {self.id} (pid {self.pid})"

    def __post_init__(self) -> None:
        self.pidfd, self.waits = open_pidfd(self.pid), CoreWaits(self.pid)

    def show(self, row: memoryview) -> None:
        row[Board.PID] = self.pid

    # ---- messages

    def watch(self, selector: selectors.BaseSelector, hear: Hear, on_end: Callable[[], None]) -> None:
        self.selector, self.hear, self.on_end = selector, hear, on_end
        self.channel.sock.setblocking(False)
        selector.register(self.channel.sock, selectors.EVENT_READ, self._on_ready)
        if self.pidfd >= 0:
            selector.register(self.pidfd, selectors.EVENT_READ, lambda _: on_end())

    def post(self, kind: Msg, *chunks: bytes) -> None:
        self.channel.post(kind, *chunks)
        if self.channel.clogged and self.selector is not None:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self.selector.modify(self.channel.sock, both, self._on_ready)

    def _on_ready(self, mask: int) -> None:
        assert self.selector is not None
        if mask & selectors.EVENT_WRITE and self.channel.flush():
            self.selector.modify(self.channel.sock, selectors.EVENT_READ, self._on_ready)
        if not mask & selectors.EVENT_READ:
            return
        frames = self.channel.receive(wait=False)
        if frames is not None:
            for kind, payload in frames:
                self.hear(kind, payload)
        elif self.stopping and self.pidfd >= 0:
            # We asked it to end, which may take a while; the pidfd will tell.
            self.selector.unregister(self.channel.sock)
        else:
            self.on_end()

    def hear_out(self) -> None:
        while frames := self.channel.receive(wait=False):
            for kind, payload in frames:
                self.hear(kind, payload)
        for registered in (self.channel.sock, self.pidfd):
            with contextlib.suppress(KeyError, ValueError):
                if self.selector is not None:
                    self.selector.unregister(registered)

    # ---- what it is doing

    def waited_s(self, now_s: float) -> float:
        return self.waits.seconds(now_s)

    def private_bytes(self) -> int:
        return host.private_bytes(self.pid)

    def follow_cores(self, before: frozenset[int], cores: frozenset[int]) -> None:
        move_to_cores(self.pid, before, cores)

    def ask_stack(self, now_s: float, silent_s: float) -> None:
        self.dumped, self.silent_s = os.fstat(self.crash).st_size, silent_s
        self.warn_at = now_s + DUMP_WAIT_S
        if catches(self.pid, DUMP_SIGNAL):  # a process that has just begun would be killed by it
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, DUMP_SIGNAL)

    def condemn(self, now_s: float) -> None:
        self.hung, self.warn_at, self.kill_at = True, None, now_s + DUMP_WAIT_S

    def look_after(self, now_s: float) -> str:
        if self.kill_at is not None and now_s >= self.kill_at:
            self.kill_at = None
            self.verdict = f"was silent for {self.silent_s:.1f} s {self.where()}"
            self.kill()
        if self.warn_at is not None and now_s >= self.warn_at:
            self.warn_at = None
            return f"{self.name} has been silent for {self.silent_s:.0f} s {self.where()}"
        return ""

    def _written(self, start: int) -> str:
        size = os.fstat(self.crash).st_size
        start = max(start, size - STACK_BYTES)
        return user_frames(os.pread(self.crash, size - start, start).decode(errors="replace"))

    def where(self) -> str:
        """Return the newest stack, on its own lines, or why there is none."""
        if stack := self._written(self.dumped):
            return f"(stack below)\n{stack}"
        state = process_state(self.pid)
        return "because it is stopped (SIGSTOP?)" if state in "Tt" else f"and gives no stack (state {state})"

    # ---- its end

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        self.stopping = True
        self.post(Msg.STOP)

    def reap(self) -> bool:
        if self.ask_parent is not None:
            self.kill()
            self.ask_parent(Msg.LOST, wire.WORKER.pack(self.id, self.pid))
            return False
        self.process.join(1.0)
        if self.process.exitcode is None:
            self.kill()
            self.process.join(1.0)
        self.exit_code = self.process.exitcode
        return True

    def cause(self, *, oom: bool) -> str:
        killed = oom and self.exit_code == -signal.SIGKILL
        memory = oom_text(host.memory_limit(), host.memory_used()) if killed else ""
        return end_text(self.name, self.exit_code, oom=memory, verdict=self.verdict, stack=self._written(0))

    def end_by(self, deadline_s: float) -> None:
        left = max(0.0, deadline_s - time.monotonic())
        if self.process is not None:
            self.process.join(left)
        elif self.pidfd >= 0:
            wait_readable(self.pidfd, left)
        self.kill()
        if self.process is not None:
            self.process.join(1.0)

    def disinherit(self) -> None:
        if not self.ended:
            self._let_go()

    def _let_go(self) -> None:
        self.channel.close()
        for fd in (self.lifeline, self.crash, self.pidfd):
            if fd >= 0:
                os.close(fd)

    def close(self) -> None:
        self.kill_at = self.warn_at = None
        self._let_go()
        self.waits.close()
        if self.process is not None:
            self.process.close()


def sent_worker(adoptions: socket.socket, ask_parent: Callable[[Msg, bytes], None]) -> LocalWorker | None:
    """Receive a worker started by the training process: pid, socket, lifeline and crash file. None: no more will come."""
    data, fds, _, _ = socket.recv_fds(adoptions, 64, 3)
    if not data:
        return None
    worker, pid = wire.WORKER.unpack(data)
    channel = Channel(socket.socket(fileno=fds[0]))
    return LocalWorker(worker, pid, channel, lifeline=fds[1], crash=fds[2], ask_parent=ask_parent)
