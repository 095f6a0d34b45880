"""The node process: serves the training processes of one machine, user and job, and ends with the last of them.

Rule 1: whoever binds the job's address is its node; whoever comes too late exits at once.
Rule 2: nobody can make it wait. Sockets do not block; who does not read, or sends nonsense, is dropped; a request has a deadline.
Rule 3: it lives as long as a member's connection, and a moment longer. Its services end with it, also when it is killed.
Rule 4: only processes of its own user are members.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.measure.host import name_process
from penstock.node.config import LOST, NodeConfig
from penstock.node.messages import (
    MAX_FDS,
    BadMessage,
    NodeMsg,
    close_all,
    pack_text,
    peer,
    receive,
    send,
    split_open,
)
from penstock.node.services import END_S, NodeRequest, NodeService

MAX_MEMBERS = 1024
BACKLOG = 128
MOST_FDS = 1 << 16
DEAF_S = 0.1
"""Pause when no connection can be accepted, for want of descriptors."""
NOT_FOR_US = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals to a whole job: training processes answer them, and the node ends with these."""


@dataclass(slots=True, eq=False)
class NodeMember:
    """One connection of a training process or an agent."""

    sock: socket.socket
    request: NodeRequest | None = None


class NodeProcess:
    """The event loop. Single-threaded."""

    def __init__(
        self,
        listener: socket.socket,
        config: NodeConfig,
        *,
        uid: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener, self._config, self._uid, self._clock = listener, config, uid, clock
        self._selector = selectors.DefaultSelector()
        self._services = {
            name: NodeService(name, run, self._selector, clock) for name, run in config.services.items()
        }
        self._members: set[NodeMember] = set()
        self._end_s = clock() + config.first_s
        """When to end, unless there is a member."""
        self._deaf_s = math.inf
        """Until when no connections are accepted."""

    def run(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        try:
            while not self._is_over():
                for key, _ in self._selector.select(self._pause_s()):
                    key.data()
                self._look_at_clock()
        except BaseException:
            for member in list(self._members):
                self._drop(member, f"it failed:\n{traceback.format_exc()}")
            raise
        finally:
            self._close()

    def _is_over(self) -> bool:
        if self._members or self._clock() < self._end_s:
            return False
        self._accept()  # who came at the last moment
        return not self._members  # guard: node-ends

    def _pause_s(self) -> float:
        next_s = min(self._deaf_s, math.inf if self._members else self._end_s)
        next_s = min(next_s, *(service.next_deadline_s() for service in self._services.values()), math.inf)
        return min(60.0, max(0.0, next_s - self._clock()))

    def _look_at_clock(self) -> None:
        now_s = self._clock()
        for service in self._services.values():
            service.expire(now_s)
        if now_s >= self._deaf_s:
            self._deaf_s = math.inf
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _close(self) -> None:
        self._listener.close()
        for member in list(self._members):
            self._drop(member)
        deadline_s = self._clock() + END_S
        for service in self._services.values():
            service.stop()
        for service in self._services.values():
            service.close(deadline_s - self._clock())
        self._selector.close()

    # ---- members

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno == errno.ECONNABORTED:
                    continue
                if self._deaf_s == math.inf:  # guard: no-descriptors
                    self._selector.unregister(self._listener)
                    self._deaf_s = self._clock() + DEAF_S
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # guard: member-blocks-nobody
        if peer(sock)[1] != self._uid:  # guard: member-uid
            sock.close()
            return
        member = NodeMember(sock)
        self._members.add(member)
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._hear(member))
        if len(self._members) > MAX_MEMBERS:
            self._drop(member, f"it has {MAX_MEMBERS} members, which is the limit")
        else:
            self._tell(member, NodeMsg.WELCOME, str(os.getpid()).encode())

    def _tell(self, member: NodeMember, kind: NodeMsg, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        try:
            send(member.sock, kind, payload, fds)
        except OSError:  # gone; or it does not read what it is told
            self._drop(member)

    def _drop(self, member: NodeMember, why: str = "") -> None:
        if member not in self._members:
            return
        self._members.remove(member)
        self._selector.unregister(member.sock)
        if why:
            with contextlib.suppress(OSError):
                send(member.sock, NodeMsg.GOODBYE, pack_text(why))
        member.sock.close()
        if member.request is not None:
            member.request.answered = True
        if not self._members:
            self._end_s = self._clock() + self._config.linger_s

    def _hear(self, member: NodeMember) -> None:
        if member not in self._members:
            return  # dropped a moment ago
        try:
            message = receive(member.sock, fds=MAX_FDS)
        except BlockingIOError:
            return
        except BadMessage as exc:
            self._drop(member, str(exc))
            return
        except OSError:
            message = None
        if message is None:
            self._drop(member)
            return
        try:
            if message.kind != NodeMsg.OPEN or member.request is not None:  # guard: one-request
                raise BadMessage(f"a message of kind {message.kind} is not expected now")
            service, hello = split_open(message.payload)
        except BadMessage as exc:
            close_all(message.fds)
            self._drop(member, str(exc))
            return
        self._open(member, service, hello, message.fds)

    def _open(self, member: NodeMember, service: str, hello: bytes, fds: list[int]) -> None:
        if service not in self._services:
            close_all(fds)
            known = ", ".join(sorted(self._services)) or "none"
            self._tell(
                member, NodeMsg.FAILED, pack_text(f"there is no service '{service}'; there is: {known}")
            )
            return

        def answer(kind: NodeMsg, payload: bytes, ends: Sequence[int]) -> None:
            member.request = None
            if member in self._members:
                self._tell(member, kind, payload, ends)

        member.request = NodeRequest(hello, fds, self._clock() + self._config.open_s, answer)
        self._services[service].ask(member.request)


def bound(address: str) -> socket.socket | None:
    """Listen at an address; None if another process does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        if exc.errno == errno.EADDRINUSE:  # guard: one-node
            return None
        raise
    return sock


def leave_parent() -> None:
    """Go on as a child of nobody: whoever started us need not wait for our end, nor does it take us along."""
    if os.fork():
        os._exit(0)
    os.setpgrp()  # guard: own-group
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)


def main() -> None:
    """Be the node process, if there is none; the one argument says of what."""
    facts = json.loads(sys.argv[1])
    listener = bound(facts["address"])
    if listener is None:
        sys.exit(LOST)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    leave_parent()
    listener.listen(BACKLOG)  # again: from now on this pid is the one that members see
    name_process("penstock node")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most if 0 <= most < MOST_FDS else MOST_FDS, most))
    NodeProcess(listener, NodeConfig(**facts["config"]), uid=os.geteuid()).run()
