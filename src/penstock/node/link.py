"""The way from a training process or an agent to its job's node process."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from weakref import WeakSet

from penstock.errors import NodeUnavailable, ServiceFailed
from penstock.forks import no_forks
from penstock.measure.endings import exit_text
from penstock.measure.host import process_state
from penstock.node import interpreter
from penstock.node.config import LOST, NodeConfig
from penstock.node.job import address, job_name
from penstock.node.messages import (
    MAX_FDS,
    MAX_HELLO,
    BadMessage,
    NodeMessage,
    NodeMsg,
    close_all,
    pack_open,
    peer,
    receive,
    send,
)

NODE = "penstock.node.process:main"
ATTACH_S = 10.0
OPEN_S = 15.0
"""Longer than the node's own limit for a service (`NodeConfig.open_s`): its answer says more than our silence."""
FIRST_PAUSE_S, MOST_PAUSE_S = 0.005, 0.2


class TryAgain(Exception):
    """It did not come about, and may at the next try."""


class NodeLink:
    """A member's connection. The node lives as long as one is open. May be used by several threads."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self._sock, self.pid = sock, pid
        self._lock = threading.Lock()
        self._over = ""
        """Why it is closed."""
        _links.add(self)
        _watch_forks()

    @classmethod
    def attach(
        cls, job: str | None = None, within_s: float = ATTACH_S, *, config: NodeConfig | None = None
    ) -> NodeLink:
        """Connect to the job's node process; start it if there is none. `config` counts only for the one that starts it."""
        if sys.platform != "linux" or not hasattr(socket, "SO_PEERCRED"):
            raise NodeUnavailable(
                "a node process needs Linux: abstract unix sockets, and the user of the process at their other end"
            )
        where = address(job or job_name(), os.geteuid())
        deadline_s, pause_s = time.monotonic() + within_s, FIRST_PAUSE_S
        while True:
            try:
                found = connect(where, os.geteuid(), deadline_s)
                if found is not None:
                    return cls(*found)
                start(where, config or NodeConfig(), deadline_s)
            except TryAgain as exc:
                if time.monotonic() + pause_s >= deadline_s:
                    raise NodeUnavailable(f"no node process answered within {within_s} s: {exc}") from None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def fileno(self) -> int:
        """Becomes readable when the node is gone."""
        return self._sock.fileno()

    def alive(self) -> bool:
        """Whether the node is there, as far as the kernel knows: one that is stopped is."""
        if self._over:
            return False
        poll = select.poll()
        poll.register(self._sock, 0)
        return not poll.poll(0)

    def open(
        self,
        service: str,
        hello: bytes = b"",
        fds: Sequence[int] = (),
        *,
        within_s: float = OPEN_S,
        no_forks_until: contextlib.ExitStack | None = None,
    ) -> socket.socket:
        """Open a stream to a service of the node, which is started if need be and gets `hello` and copies of `fds`. With `no_forks_until`, other
        threads fork nothing from when the stream is there until that is closed: no other process gets a copy.

        Raises `ServiceFailed` if the service cannot be had, and `NodeUnavailable` if the node is gone or silent: then attach again.
        """
        if len(hello) > MAX_HELLO or len(fds) > MAX_FDS:
            raise ValueError(
                f"a hello may have {MAX_HELLO} bytes and {MAX_FDS} descriptors, got {len(hello)} and {len(fds)}"
            )
        deadline_s = time.monotonic() + within_s
        if self._over or not self._lock.acquire(timeout=within_s):
            raise NodeUnavailable(self._over or f"another thread has used this link for {within_s} s")
        try:
            reply = self._ask(pack_open(service, hello), fds, deadline_s, no_forks_until)
        except BaseException:
            self.close()  # a late answer must not be taken for the next one
            raise
        finally:
            self._lock.release()
        if reply.kind == NodeMsg.OPENED:
            return socket.socket(fileno=reply.fds[0])
        raise ServiceFailed(reply.payload.decode(errors="replace"))

    def _ask(
        self,
        request: bytes,
        fds: Sequence[int],
        deadline_s: float,
        no_forks_until: contextlib.ExitStack | None,
    ) -> NodeMessage:
        reply = None
        try:
            self._sock.settimeout(left(deadline_s))  # guard: open-deadline
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its last words may be there
                send(self._sock, NodeMsg.OPEN, request, fds)
            if no_forks_until is not None:  # once the answer is there: forks do not wait for the node
                with contextlib.suppress(ConnectionResetError):
                    self._sock.recv(1, socket.MSG_PEEK)
                no_forks_until.enter_context(no_forks())
            reply = receive(self._sock, fds=1)
        except TimeoutError:
            raise NodeUnavailable(silent_text(self.pid)) from None
        except (OSError, BadMessage) as exc:
            raise NodeUnavailable(f"the node process (pid {self.pid}) is gone: {exc}") from None
        expected = reply is not None and len(reply.fds) == (reply.kind == NodeMsg.OPENED)
        if reply is not None and expected and reply.kind in (NodeMsg.OPENED, NodeMsg.FAILED):
            return reply
        close_all(reply.fds if reply is not None else ())
        last = f": {reply.payload.decode(errors='replace')}" if reply is not None else ""
        raise NodeUnavailable(f"the node process (pid {self.pid}) has ended or closed this link{last}")

    def close(self) -> None:
        """End the membership. Streams that were opened stay."""
        if not self._over:
            self._over = "this link to the node process is closed"
            with contextlib.suppress(OSError):
                # A copy of the socket, in a process that C code has forked, must not count.
                self._sock.shutdown(socket.SHUT_RDWR)  # guard: link-closed
            self._sock.close()

    def disinherit(self) -> None:
        """Close the copy of a link that a forked process has got; the parent's stays as it is. Called in every such process."""
        if not self._over:
            self._over = "this link to the node process is its parent's: a forked process attaches for itself"
            self._sock.close()  # guard: link-disinherited


_links: WeakSet[NodeLink] = WeakSet()


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_disinherit_all)


def _disinherit_all() -> None:
    for link in list(_links):
        link.disinherit()


def left(deadline_s: float) -> float:
    return max(0.001, deadline_s - time.monotonic())


def silent_text(pid: int) -> str:
    state = process_state(pid)
    why = "it is stopped (SIGSTOP?)" if state in "Tt" else f"its state is {state}"
    return (
        f"the node process (pid {pid}) does not answer: {why}. Continue or kill it; a new one is then started"
    )


def connect(where: str, uid: int, deadline_s: float) -> tuple[socket.socket, int] | None:
    """Return a connection to the node and its pid; None if there is no node."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(left(deadline_s))
        sock.connect(where)
        pid, owner = peer(sock)
        if owner != uid:  # guard: node-uid
            raise NodeUnavailable(
                f"process {pid} of user {owner} holds the address of this job's node process"
            )
        return sock, welcomed(sock, pid)
    except ConnectionRefusedError:
        sock.close()
        return None
    except BlockingIOError:
        sock.close()
        raise TryAgain("too many processes wait for it to accept them") from None
    except BaseException:
        sock.close()
        raise


def welcomed(sock: socket.socket, pid: int) -> int:
    """Wait until the node has made us a member; return its pid as it sees it."""
    message = None
    try:
        message = receive(sock, fds=0)
    except TimeoutError:
        raise NodeUnavailable(silent_text(pid)) from None
    except ConnectionResetError:
        pass
    if message is None:
        raise TryAgain("it was about to end")  # guard: node-about-to-end
    if message.kind != NodeMsg.WELCOME:
        raise NodeUnavailable(f"the node process refuses us: {message.payload.decode(errors='replace')}")
    return int(message.payload)


def start(where: str, config: NodeConfig, deadline_s: float) -> None:
    """Start a node process, and wait until it listens."""
    facts = {"address": where, "config": config.as_json()}
    with interpreter.start(NODE, facts, output=subprocess.PIPE) as process:
        try:
            _, said = process.communicate(timeout=left(deadline_s))  # guard: start-deadline
        except subprocess.TimeoutExpired:
            process.kill()
            raise NodeUnavailable(f"the node process (pid {process.pid}) did not start in time") from None
        except BaseException:
            process.kill()
            raise
    code = process.returncode
    if code == LOST:
        raise TryAgain("another process is about to be the node")
    text = f"it {exit_text(code)} while it started: {said.decode(errors='replace').strip()}"
    if code < 0:
        raise TryAgain(text)
    if code > 0:
        raise NodeUnavailable(f"the node process cannot be started: {text}")
