"""An object store to measure against: a process that counts what it serves. `Store` starts one.

It serves GET and HEAD of the files FOLDER/BUCKET/KEY at /BUCKET/KEY, with ranges and If-Match, as a web server and as S3 does (ListObjectsV2 too; any
signature is accepted, and none).

Rule 1: one thread waits for everything, so an answer that is delayed holds up no other. Bodies go by sendfile.
Rule 2: it counts bytes of bodies as they are handed to the kernel, for each object and each client's address.
Rule 3: the paths below /-/ are answered at once and not counted: count, reset, and set?latency_ms=30&mb_per_s=100&refuse=0.01&status=503. They can be
        asked through a socket in the file system as well, from other network namespaces.
Rule 4: files do not change while it runs. It ends with its stdin.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import random
import re
import select
import socket
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from _store_control import CONTROL, Totals
from _store_objects import Objects

CHUNK = 128 << 10
"""Bytes at a time, where the rate is limited."""
BURST_S = 0.02
"""What an idle moment leaves of a limited rate may be made up for so much later."""
RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)", re.IGNORECASE)
MATCH = re.compile(rb"\r\nif-match: *([^\r]+)", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
REASON = {
    200: "OK",
    206: "Partial Content",
    404: "Not Found",
    412: "Precondition Failed",
    429: "Too Many Requests",
}
REASON |= {416: "Range Not Satisfiable", 501: "Not Implemented", 503: "Slow Down"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How it answers."""

    latency_ms: float = 0.0
    mb_per_s: float = 0.0
    """Of all answers together; 0: no limit."""
    refuse: float = 0.0
    """Share of requests that get `status` instead."""
    status: int = 503


class Answer:
    """Bytes to send: a head, then a part of a file."""

    __slots__ = ("at", "end", "fd", "head", "name")

    def __init__(self, head: bytes, name: str = "", fd: int = -1, at: int = 0, end: int = 0) -> None:
        self.head, self.name, self.fd, self.at, self.end = head, name, fd, at, end


class Connection:
    """A client, and the one answer it is getting."""

    __slots__ = ("answer", "closes", "inbox", "peer", "sock", "watched")

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock, self.peer = sock, peer
        self.inbox, self.closes = b"", False
        self.answer: Answer | None = None
        self.watched = select.EPOLLIN


class Server:
    """The loop."""

    def __init__(self, folder: Path, listeners: list[socket.socket], manner: Manner) -> None:
        self.objects, self.manner, self.totals = Objects(folder), manner, Totals()
        self._listeners = {sock.fileno(): sock for sock in listeners}
        self._connections: dict[int, Connection] = {}
        self._due: list[tuple[float, int, Connection]] = []
        """Requests whose answers are delayed."""
        self._turns: deque[Connection] = deque()
        """Those with something to send, where the rate is limited."""
        self._number, self._spare, self._filled_s = 0, 0.0, time.monotonic()
        self._draws = random.Random(0)
        self._epoll = select.epoll()

    def run(self) -> None:
        for fd in (*self._listeners, sys.stdin.fileno()):
            self._epoll.register(fd, select.EPOLLIN)
        while True:
            for fd, events in self._epoll.poll(self._patience_s()):
                if (connection := self._connections.get(fd)) is not None:
                    self._served(connection, events)
                elif fd in self._listeners:
                    self._accept(self._listeners[fd])
                elif not os.read(fd, 1 << 10):
                    return
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                self._progress(heapq.heappop(self._due)[2])
            if self._turns:
                self._spend(now)

    def _patience_s(self) -> float | None:
        ends = [max(0.0, self._due[0][0] - time.monotonic())] if self._due else []
        if self._turns:
            ends.append(max(0.001, -self._spare / (self.manner.mb_per_s * 1e6 or 1e12)))
        return min(ends, default=None)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, address = listener.accept()
                sock.setblocking(False)
                if sock.family != socket.AF_UNIX:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = Connection(sock, address[0] if address else "")
                self._connections[sock.fileno()] = connection
                self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _served(self, connection: Connection, events: int) -> None:
        try:
            if events & select.EPOLLOUT and connection.answer is not None:
                self._progress(connection)
            elif events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                if not (said := connection.sock.recv(1 << 16)):
                    raise ConnectionError
                connection.inbox += said
                if connection.answer is None:
                    self._take(connection)
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        if fd >= 0 and self._connections.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            connection.sock.close()

    def _watch(self, connection: Connection, events: int) -> None:
        if connection.watched != events:
            connection.watched = events
            self._epoll.modify(connection.sock.fileno(), events)

    # ---- a request

    def _take(self, connection: Connection) -> None:
        """Begin with the next request, if it is whole."""
        head, end, rest = connection.inbox.partition(b"\r\n\r\n")
        if not end:
            return
        connection.inbox, connection.closes = rest, CLOSE.search(head) is not None
        if head.startswith(b"GET " + CONTROL):
            connection.answer = Answer(self._controlled(head.split(b" ", 2)[1].decode()))
            self._send(connection)
            return
        self.totals.requests += 1
        connection.answer = self._answered(head)
        if not self.manner.latency_ms:
            self._progress(connection)
            return
        self._number += 1
        self.totals.most_waiting = max(self.totals.most_waiting, len(self._due) + 1)
        heapq.heappush(
            self._due, (time.monotonic() + self.manner.latency_ms / 1000, self._number, connection)
        )

    def _answered(self, head: bytes) -> Answer:
        method, target, _ = head.split(b" ", 2)
        if self.manner.refuse and self._draws.random() < self.manner.refuse:
            self.totals.refused += 1
            return failure(self.manner.status, "SlowDown", method)
        if method not in (b"GET", b"HEAD"):
            return failure(501, "NotImplemented", method)
        path, _, query = target.decode().partition("?")
        name = unquote(path).strip("/")
        if "/" not in name:
            self.totals.lists += 1
            body = self.objects.listed(name, parse_qs(query))
            return Answer(headed(200, b"Content-Type: application/xml\r\n", body, method))
        if (found := self.objects.opened(name)) is None:
            return failure(404, "NoSuchKey", method)
        if (only := MATCH.search(head)) is not None and only[1].strip() != found.tag:
            return failure(412, "PreconditionFailed", method)
        start, end, status, facts = 0, found.size, 200, found.facts
        if (asked := RANGE.search(head)) is not None:
            start = int(asked[1]) if asked[1] else max(0, end - int(asked[2]))
            if start >= end:
                return failure(416, "InvalidRange", method)
            end = min(end, int(asked[2]) + 1) if asked[1] and asked[2] else end
            status, facts = 206, facts + b"Content-Range: bytes %d-%d/%d\r\n" % (start, end - 1, found.size)
        told = lined(status, facts, end - start)
        return Answer(told) if method == b"HEAD" else Answer(told, name, found.fd, start, end)

    def _controlled(self, target: str) -> bytes:
        what, _, query = target.removeprefix(CONTROL.decode()).partition("?")
        if what == "reset":
            self.totals = Totals()
        elif what == "set":
            given: dict[str, Any] = {name: json.loads(values[0]) for name, values in parse_qs(query).items()}
            self.manner = replace(self.manner, **given)
            self._spare, self._filled_s = 0.0, time.monotonic()
        return headed(200, b"", json.dumps(self.totals.as_dict() | asdict(self.manner)).encode(), b"GET")

    # ---- an answer

    def _progress(self, connection: Connection) -> None:
        """Send what may be sent now; where the rate is limited, at this connection's turn."""
        if connection.answer is None or connection.sock.fileno() < 0:
            return  # the client has gone
        if self.manner.mb_per_s and connection.answer.fd >= 0:
            self._watch(connection, 0)
            self._turns.append(connection)
        else:
            try:
                self._send(connection)
            except OSError:
                self._close(connection)

    def _send(self, connection: Connection, most: int = 1 << 62) -> int:
        """Send what the kernel takes, at most so much of the body; return how much of it."""
        answer, sent, blocked = connection.answer, 0, False
        assert answer is not None
        try:
            if answer.head:
                more = socket.MSG_MORE if answer.at < answer.end else 0
                answer.head = answer.head[connection.sock.send(answer.head, more) :]
            while not answer.head and answer.at < answer.end and sent < most:
                left = min(answer.end - answer.at, most - sent)
                count = os.sendfile(connection.sock.fileno(), answer.fd, answer.at, left)
                if not count:
                    raise ConnectionError  # the file is shorter than it was
                answer.at, sent = answer.at + count, sent + count
        except BlockingIOError:
            blocked = True
        self.totals.sent(answer.name, connection.peer, sent)
        if answer.head or answer.at < answer.end:
            if blocked or answer.head:
                self._watch(connection, select.EPOLLOUT)
            else:
                self._turns.append(connection)
            return sent
        self.totals.finished(answer.name)
        connection.answer = None
        if connection.closes:
            self._close(connection)
        else:
            self._watch(connection, select.EPOLLIN)
            if connection.inbox:
                self._take(connection)
        return sent

    def _spend(self, now: float) -> None:
        """Give each waiting connection a turn while the limited rate allows it."""
        rate = self.manner.mb_per_s * 1e6 or 1e12
        self._spare = min(BURST_S * rate, self._spare + (now - self._filled_s) * rate)
        self._filled_s = now
        while self._turns and self._spare > 0:
            connection = self._turns.popleft()
            if connection.sock.fileno() >= 0 and connection.answer is not None:
                try:
                    self._spare -= self._send(connection, CHUNK)
                except OSError:
                    self._close(connection)


def headed(status: int, facts: bytes, body: bytes, method: bytes) -> bytes:
    return lined(status, facts, len(body)) + (b"" if method == b"HEAD" else body)


def lined(status: int, facts: bytes, length: int) -> bytes:
    return b"HTTP/1.1 %d %s\r\n%sContent-Length: %d\r\n\r\n" % (
        status,
        REASON.get(status, "?").encode(),
        facts,
        length,
    )


def failure(status: int, code: str, method: bytes) -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{REASON.get(status, code)}</Message></Error>"
    return Answer(headed(status, b"Content-Type: application/xml\r\n", body.encode(), method))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bind", default="127.0.0.1", metavar="HOST")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--control", metavar="PATH", help="answer there too, a socket in the file system")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="before each answer (0)")
    parser.add_argument("--mb-per-s", type=float, default=0.0, help="of all answers together; 0: no limit")
    parser.add_argument("--refuse", type=float, default=0.0, help="share of requests that are refused (0)")
    parser.add_argument("--status", type=int, default=503, choices=(429, 500, 503), help="how (503)")
    given = parser.parse_args()
    listener = socket.create_server((given.bind, given.port), backlog=1024)
    listeners = [listener]
    if given.control:
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[1].bind(given.control)
        listeners[1].listen()
    for each in listeners:
        each.setblocking(False)
    manner = Manner(
        latency_ms=given.latency_ms, mb_per_s=given.mb_per_s, refuse=given.refuse, status=given.status
    )
    server = Server(given.folder, listeners, manner)
    print(listener.getsockname()[1], flush=True)
    server.run()


if __name__ == "__main__":
    main()
