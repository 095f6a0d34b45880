"""TLS behind a plain socket: a thread moves bytes between a TLS connection and one end of a pair of sockets.

Two threads must not use one SSL object, and a non-blocking one may have to write in order to read. Here one thread does all of that;
whoever has the other end of the pair knows nothing of TLS.

Rule 1: each direction holds one block at most. While a side does not take it, nothing more is read for it, as with TCP.
Rule 2: when either side ends, what it had sent is delivered, then both are closed. When one breaks, both are closed at once. Once the
        plain end is closed, the network has `LAST_S` to take the rest.
Rule 3: the thread ends with the connection, and holds up no process that ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time

BLOCK = 1 << 18
LAST_S = 2.0


def tunnelled(tls: ssl.SSLSocket) -> socket.socket:
    """Take over a TLS connection; return a plain socket that stands for it."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=_Pump(tls, theirs).run, name="penstock tls", daemon=True).start()
    return ours


class _Flow:
    """One direction: a block is filled, then emptied. So it waits for one side at a time."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._source, self._sink = source, sink
        self._block = memoryview(bytearray(BLOCK))
        self._full = self._block[:0]
        self._ended = False
        self.waits: tuple[socket.socket, int] = source, select.POLLIN
        """What it waits for after `move` returned False."""

    @property
    def over(self) -> bool:
        """All that its source sent has been delivered."""
        return self._ended and not self._full

    def move(self) -> bool:
        """Move a block, or what there is of one; False if that must wait."""
        if self.over:
            return False
        side, event = self._source, select.POLLIN
        try:
            if not self._full:
                self._fill()
            side, event = self._sink, select.POLLOUT
            while self._full:
                self._full = self._full[self._sink.send(self._full) :]
        except ssl.SSLWantReadError:
            self.waits = side, select.POLLIN
        except ssl.SSLWantWriteError:
            self.waits = side, select.POLLOUT
        except BlockingIOError:
            self.waits = side, event
        else:
            return True
        return False

    def _fill(self) -> None:
        """Read as much as there is: TLS gives one record at a time, and keeps further ones where no poll sees them."""
        filled = 0
        try:
            while filled < BLOCK and not self._ended:
                got = self._source.recv_into(self._block[filled:])
                filled, self._ended = filled + got, not got
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            if not filled:
                raise
        self._full = self._block[:filled]


class _Pump:
    """Both directions, in one thread."""

    def __init__(self, tls: ssl.SSLSocket, plain: socket.socket) -> None:
        self._tls, self._plain = tls, plain
        self._inward, self._outward = _Flow(tls, plain), _Flow(plain, tls)
        self._until_s: float | None = None
        """Set when the plain end is closed."""
        tls.setblocking(False)
        plain.setblocking(False)

    def run(self) -> None:
        with self._plain, self._tls, contextlib.suppress(OSError):  # a side that breaks has ended
            while not self._inward.over and not self._outward.over:
                # Once the plain end is closed, nobody takes what arrives.
                inward = self._until_s is None and self._inward.move()
                if not self._outward.move() and not inward and not self._wait():
                    break
            self._tls.unwrap()  # says goodbye, and raises since there is no answer yet

    def _wait(self) -> bool:
        """Wait until a flow may move; False if the time to deliver the rest is over."""
        poll, events = select.poll(), {self._plain: 0, self._tls: 0}
        if self._until_s is not None:
            poll.register(*self._outward.waits)
            return bool(poll.poll(max(0.0, 1000 * (self._until_s - time.monotonic()))))
        for flow in (self._inward, self._outward):
            side, event = flow.waits
            events[side] |= event
        # The plain end's hanging up is seen whatever is waited for.
        poll.register(self._plain, events[self._plain])
        if events[self._tls]:
            poll.register(self._tls, events[self._tls])
        for fd, event in poll.poll():
            if fd == self._plain.fileno() and event & select.POLLHUP:  # guard: tunnel-hangup
                self._until_s = time.monotonic() + LAST_S
        return True
