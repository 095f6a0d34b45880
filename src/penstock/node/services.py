"""Services as the node keeps them: start each when it is first asked for, hand it streams one by one, notice its end."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.measure.endings import exit_text, open_pidfd
from penstock.measure.host import process_state
from penstock.node import interpreter
from penstock.node.messages import BadMessage, NodeMsg, close_all, pack_text, receive, send
from penstock.policy.restarts import early_ends, restart_wait_s

SERVICE = "penstock.node.service:main"
OUTPUT_BYTES = 4 << 10
"""Kept of what a service wrote last, to say why it ended."""
END_S = 1.0
"""Time for a service that was asked to end, or seems to have, before it is killed."""

Answer = Callable[[NodeMsg, bytes, Sequence[int]], None]
"""Answers whoever asked, if still there."""


@dataclass(slots=True, eq=False)
class NodeRequest:
    """Somebody's wish for a stream to a service."""

    hello: bytes
    fds: list[int]
    deadline_s: float
    answer: Answer
    answered: bool = False
    """Nobody waits for it any more."""
    end: socket.socket | None = None
    """The caller's end, once the other was sent to the service."""

    def resolve(self, kind: NodeMsg, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        if not self.answered:
            self.answered = True
            self.answer(kind, payload, fds)

    def let_go(self) -> None:
        close_all(self.fds)
        self.fds = []
        if self.end is not None:
            self.end.close()


@dataclass(slots=True, eq=False)
class ServiceProcess:
    """One process of a service."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    output: int
    """Read end of the pipe that is its standard error."""
    started_s: float
    pidfd: int = -1
    tail: bytearray = field(default_factory=bytearray)

    def listen(self) -> bool:
        """Read what it wrote; False if there is no more."""
        try:
            chunk = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return False
        self.tail += chunk
        del self.tail[:-OUTPUT_BYTES]
        return bool(chunk)

    def end(self, patience_s: float) -> int | None:
        """Wait for its end, kill it if need be; return its exit code if known."""
        self.control.close()
        try:
            return self.process.wait(max(0.0, patience_s))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.kill()
                self.process.wait(END_S)
            return -signal.SIGKILL

    def close(self) -> None:
        close_all(fd for fd in (self.output, self.pidfd) if fd >= 0)


class NodeService:
    """A service by its name; at most one process runs it."""

    def __init__(
        self, name: str, run: str, selector: selectors.BaseSelector, clock: Callable[[], float]
    ) -> None:
        self.name, self._run, self._selector, self._clock = name, run, selector, clock
        self._queue: deque[NodeRequest] = deque()
        self._running: ServiceProcess | None = None
        self._early, self._ended_s, self._cause = 0, -math.inf, ""

    def ask(self, request: NodeRequest) -> None:
        """Serve a request now or later; start a process if there is none."""
        if self._running is None:
            wait_s = restart_wait_s(self._early, since_s=self._clock() - self._ended_s)
            if wait_s > 0:  # guard: restart-pause
                self._refuse(
                    request,
                    f"ended {self._early} times in a row soon after its start and is not started again for "
                    f"{wait_s:.1f} s; the last time, {self._cause}",
                )
                return
            try:
                self._start()
            except OSError as exc:
                self._refuse(request, f"cannot be started: {exc}")
                return
        self._queue.append(request)
        self._advance()

    def _refuse(self, request: NodeRequest, why: str) -> None:
        request.resolve(NodeMsg.FAILED, pack_text(f"service '{self.name}' {why}"))
        request.let_go()

    # ---- its process

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, write = -1, -1
        try:
            output, write = os.pipe()
            facts = {"name": self.name, "run": self._run, "control": theirs.fileno(), "parent": os.getpid()}
            process = interpreter.start(SERVICE, facts, fds=(theirs.fileno(),), output=write)
        except OSError:
            ours.close()
            close_all(fd for fd in (output,) if fd >= 0)
            raise
        finally:
            theirs.close()
            close_all(fd for fd in (write,) if fd >= 0)
        ours.setblocking(False)
        os.set_blocking(output, False)
        running = ServiceProcess(process, ours, output, self._clock(), open_pidfd(process.pid))
        self._running = running
        read = selectors.EVENT_READ
        self._selector.register(ours, read, lambda: self._on_control(running))
        self._selector.register(output, read, lambda: self._on_output(running))
        if running.pidfd >= 0:
            self._selector.register(running.pidfd, read, lambda: self._on_end(running))

    def _on_output(self, running: ServiceProcess) -> None:
        if running is self._running and not running.listen():
            self._unwatch(running.output)

    def _on_control(self, running: ServiceProcess) -> None:
        if running is not self._running:
            return
        try:
            message = receive(running.control, fds=0)
        except BlockingIOError:
            return
        except (BadMessage, OSError):
            message = None
        if message is None or not self._queue or self._queue[0].end is None:
            self._on_end(running)
            return
        request = self._queue.popleft()
        assert request.end is not None
        request.resolve(NodeMsg.OPENED, fds=[request.end.fileno()])
        request.let_go()
        self._advance()

    def _on_end(self, running: ServiceProcess) -> None:
        if running is not self._running:
            return
        self._running, self._ended_s = None, self._clock()
        self._early = early_ends(self._early, lived_s=self._ended_s - running.started_s)
        for registered in (running.control, running.output, running.pidfd):
            self._unwatch(registered)
        code = running.end(END_S)
        for _ in range(16):  # a process of its own may go on writing
            running.listen()
        running.close()
        said = running.tail.decode(errors="replace").strip()
        self._cause = f"its process (pid {running.process.pid}) {exit_text(code)}" + (said and f":\n{said}")
        waiting, self._queue = self._queue, deque()
        for request in waiting:
            self._refuse(request, f"does not run: {self._cause}")

    def _unwatch(self, registered: socket.socket | int) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(registered)

    # ---- streams

    def _advance(self) -> None:
        """Send the first request to the process, if none is on its way: one at a time never fills the socket."""
        while self._queue and self._queue[0].end is None and self._running is not None:
            request = self._queue[0]
            try:
                request.end, theirs = socket.socketpair()
                with theirs:
                    send(
                        self._running.control,
                        NodeMsg.TAKE,
                        request.hello,
                        [theirs.fileno(), *request.fds],
                    )
                close_all(request.fds)
                request.fds = []
            except (BrokenPipeError, ConnectionResetError):
                return  # it has ended, which will be noticed in a moment
            except OSError as exc:
                self._refuse(self._queue.popleft(), f"cannot be given a stream: {exc}")

    def expire(self, now_s: float) -> None:
        """Answer requests that waited too long."""
        for request in self._queue:
            if not request.answered and now_s >= request.deadline_s:  # guard: request-deadline
                request.resolve(NodeMsg.FAILED, pack_text(self._silent_text()))
        # guard: answered-requests
        for request in [request for request in self._queue if request.answered and request.end is None]:
            self._queue.remove(request)
            request.let_go()

    def _silent_text(self) -> str:
        pid = self._running.process.pid if self._running is not None else 0
        state = process_state(pid)
        why = "it is stopped (SIGSTOP?)" if state in "Tt" else f"state {state}"
        return f"service '{self.name}' took no stream in time: its process (pid {pid}) is there, {why}"

    def next_deadline_s(self) -> float:
        return min((request.deadline_s for request in self._queue if not request.answered), default=math.inf)

    # ---- the node's end

    def stop(self) -> None:
        """Ask the process to end."""
        if self._running is not None:
            self._unwatch(self._running.control)
            self._running.control.close()

    def close(self, patience_s: float) -> None:
        """Wait for its end, then kill it."""
        running, self._running = self._running, None
        if running is not None:
            for registered in (running.output, running.pidfd):
                self._unwatch(registered)
            running.end(patience_s)
            running.close()
        for request in self._queue:
            request.let_go()
        self._queue.clear()
