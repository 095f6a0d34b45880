"""What arrives from a remote worker: frames, and behind some of them raw bytes that go straight to their place.

Nothing here trusts the other side: frames are bounded, and raw bytes are read only into memory that the ferry chose for them.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

from penstock.remote.frames import HEAD, LARGEST

READ = 1 << 12
"""Bytes read where a frame may begin: few, since raw bytes read with it are copied once more."""
MOST_BYTES = 1 << 30
"""Most raw bytes behind a frame."""


class Hostile(ConnectionError):
    """The other side broke the protocol."""


class Inlet:
    """Reads a non-blocking socket. `on_frame` may call `fill` to place the raw bytes behind a frame."""

    def __init__(self, sock: socket.socket, on_frame: Callable[[int, bytes], None]) -> None:
        self._sock, self._on_frame = sock, on_frame
        self._data = bytearray()
        self._parts: deque[memoryview] = deque()
        self._then: Callable[[], None] | None = None
        self.nbytes = 0
        """Bytes received so far."""

    def fill(self, parts: list[memoryview], then: Callable[[], None]) -> None:
        """Read the next raw bytes into `parts`, then call `then`."""
        self._parts.extend(part for part in parts if len(part))
        self._then = then

    def read(self) -> bool:
        """Take what has arrived, up to a bound, so that other workers get their turn; False if the other side is gone."""
        for _ in range(16):
            try:
                if self._parts and not self._data:
                    wanted = len(self._parts[0])
                    got = self._sock.recv_into(self._parts[0])
                    self._placed(got)
                else:
                    wanted = READ
                    chunk = self._sock.recv(wanted)
                    got = len(chunk)
                    self._data += chunk
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not got:
                return False
            self.nbytes += got
            self._digest()
            if got < wanted:  # nothing is left: asking would cost as much as the next wakening
                return True
        return True

    def _placed(self, got: int) -> None:
        part = self._parts[0]
        if got < len(part):
            self._parts[0] = part[got:]
        else:
            self._parts.popleft()

    def _digest(self) -> None:
        """Pass on whole frames; copy bytes read together with a frame to where they belong."""
        while True:
            while self._parts and self._data:
                part = self._parts[0]
                count = min(len(part), len(self._data))
                part[:count] = self._data[:count]
                del self._data[:count]
                self._placed(count)
            if self._parts:
                return
            if self._then is not None:
                then, self._then = self._then, None
                then()
                continue
            if len(self._data) < HEAD.size:
                return
            size, kind = HEAD.unpack_from(self._data)
            if size > LARGEST:  # guard: remote-frame-size
                raise Hostile(f"it sent a frame of {size:,} bytes")
            if len(self._data) < HEAD.size + size:
                return
            payload = bytes(self._data[HEAD.size : HEAD.size + size])
            del self._data[: HEAD.size + size]
            self._on_frame(kind, payload)
