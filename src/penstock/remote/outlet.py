"""A remote worker's socket: frames in as they come, frames out through a thread, so that the worker prepares while it sends."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock.remote.frames import Net, framed
from penstock.wire.frames import Channel

QUEUED_BYTES = 32 << 20
"""Unsent bytes above which the worker waits: the link is the bottleneck then."""
BEAT_S = 0.25
"""A worker shows at least so often that it lives."""


class Outlet(Channel):
    """A channel whose `send` does not wait for the network, until too much is unsent."""

    def __init__(self, sock: socket.socket, row: Callable[[], bytes]) -> None:
        super().__init__(sock)
        self._row = row
        self._held: list[tuple[int, bytes]] = []
        self.on_bytes: Callable[[bytes], None] = lambda _: None
        """Takes the bytes that the worker has asked for."""
        self._settings = b""
        self._unsent = 0
        self._changed = threading.Condition()
        self._queue: queue.SimpleQueue[tuple[Sequence[Any], Callable[[], None] | None] | None] = (
            queue.SimpleQueue()
        )
        self.broken = False
        self._sender = threading.Thread(target=self._send_all, name="penstock sender", daemon=True)
        self._sender.start()

    def send(self, kind: int, *chunks: bytes) -> None:
        self.send_with(framed(kind, *chunks))

    def send_with(
        self, head: bytes, tail: Sequence[Any] = (), then: Callable[[], None] | None = None
    ) -> None:
        """Send a frame and what follows it; call `then` when that memory is free again."""
        size = len(head) + sum(len(part) for part in tail)
        with self._changed:
            self._changed.wait_for(lambda: self.broken or self._unsent < QUEUED_BYTES)
            if self.broken:
                raise BrokenPipeError
            self._unsent += size
        self._queue.put(((head, *tail), then))

    def receive(self, *, wait: bool = True) -> list[tuple[int, bytes]] | None:
        """Return the frames that have arrived; None if the ferry is gone, or if settings have come: then the present work is over."""
        if self._settings:
            return None
        frames, self._held = self._held or self._arrived(wait), []
        for at, (kind, payload) in enumerate(frames or ()):
            if kind == Net.SPEC:
                assert frames is not None
                self._settings, self._held = payload, frames[at + 1 :]
                return None
        return frames

    def wait(self) -> bool:
        """Wait until more has arrived. Frames that are no bytes stay for `receive`; False: the ferry is gone."""
        frames = self._arrived(wait=True)
        self._held += frames or ()
        return frames is not None

    def _arrived(self, wait: bool) -> list[tuple[int, bytes]] | None:
        try:
            frames = super().receive(wait=wait)
        except OSError:  # the link is dead: keepalive, or no route
            return None
        if frames is None:
            return None
        for kind, payload in frames:
            if kind == Net.BYTES:
                self.on_bytes(payload)
        return [frame for frame in frames if frame[0] != Net.BYTES]

    def next_settings(self) -> bytes | None:
        """Wait for settings; None if the ferry is gone."""
        while not self._settings:
            if self.receive() is None and not self._settings:
                return None
        settings, self._settings = self._settings, b""
        return settings

    def _send_all(self) -> None:
        beat_s = 0.0
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    item = self._queue.get(timeout=BEAT_S)
                    if item is None:
                        return
                    self._send_one(*item)
                now_s = time.monotonic()
                if now_s - beat_s >= BEAT_S:
                    beat_s = now_s
                    self.sock.sendall(framed(Net.BEAT, self._row()))
        except OSError:
            with self._changed:
                self.broken = True
                self._changed.notify_all()

    def _send_one(self, parts: Sequence[Any], then: Callable[[], None] | None) -> None:
        send_parts(self.sock, parts)
        if then is not None:
            then()
        with self._changed:
            self._unsent -= sum(len(part) for part in parts)
            self._changed.notify_all()

    def drain(self, within_s: float) -> None:
        """Send what is left."""
        self._queue.put(None)
        self._sender.join(within_s)


def send_parts(sock: socket.socket, parts: Sequence[Any]) -> None:
    """Send all parts in order, with few calls."""
    left = [memoryview(part).cast("B") for part in parts if len(part)]
    while left:
        sent = sock.sendmsg(left[:64])
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if left and sent:
            left[0] = left[0][sent:]


def steady(sock: socket.socket) -> None:
    """Set a TCP socket up to notice a dead link in about 3 s, and to carry large results."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 1),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 3000),
    ):
        if hasattr(socket, name):  # Linux
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
