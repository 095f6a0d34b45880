"""The home's end: one connection from another machine that asks, a thread that reads its requests and one that sends.

Rule 1: bytes go from the memory file to the network without a copy (`sendfile`). So the network holds the pages themselves, on one machine even the
        asker's socket does: `done` is called when the asker has said that it took the bytes, or when the connection is gone. Until then they must stay.
Rule 2: what one asker may have waiting is bounded, in samples and bytes; the rest is refused at once.
Rule 3: while it owes answers, a home sends something every `alive_s`. An asker that takes nothing for `silent_s` is dropped.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.cache.keys import sample_key
from penstock.cache.peer_events import (
    CHUNK,
    PeerCounters,
    PeerHolds,
    PeerSetting,
    PeerWants,
    end,
    receive_all,
)
from penstock.cache.peer_frames import (
    HEAD,
    BadPeerFrame,
    PeerMsg,
    pack_answer,
    pack_answers,
    pack_lengths,
    payload_bytes,
    split_holds,
    split_message,
    split_request,
)

MORE = getattr(socket, "MSG_MORE", 0)
"""Heads travel with the first bytes."""
AT_ONCE, BYTES_AT_ONCE = 16, 2 << 20
"""Answers of a message: no more once they are so many, or have so many bytes."""


class QueuedAnswer(NamedTuple):
    """An answer that waits to be sent, and its bytes in a file."""

    head: bytes
    lengths: bytes = b""
    """Sent before the bytes."""
    fd: int = -1
    offset: int = 0
    nbytes: int = 0
    done: Callable[[], None] | None = None
    """None: it is no sample."""


ALIVE = QueuedAnswer(pack_answer(PeerMsg.ALIVE))


class PeerLink:
    """Answers one asker. `give` and `refuse` may be called from any thread; they never wait."""

    def __init__(self, node: int, sock: socket.socket, setting: PeerSetting, counters: PeerCounters) -> None:
        self.node, self.counters = node, counters
        self._sock, self._setting, self._limits = sock, setting, setting.limits
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._owed: set[bytes] = set()
        """Samples asked for that were neither given nor refused."""
        self._queue: deque[QueuedAnswer] = deque()
        self._untaken: deque[QueuedAnswer] = deque()
        """Sent, or being sent; the asker has not said that it took them."""
        self._bytes = 0
        """Of the queue and of what is untaken."""
        self._gone = False
        self._sending_since_s = 0.0
        """When the last bytes went, while there are some to send; 0: there are none."""

    # ---- answering

    def give(
        self,
        scope: bytes,
        sample: int,
        lengths: Sequence[int],
        crc: int,
        fd: int,
        offset: int,
        done: Callable[[], None],
    ) -> None:
        """Send a sample's bytes, which lie at `offset` of a file. They and the file must stay until `done` is called, once, from any thread, even before
        this returns. `crc`: their crc32, made where they came from the source. A sample that is not owed any more is not sent."""
        key, nbytes = sample_key(scope, sample), sum(lengths)
        with self._lock:
            wanted = key in self._owed and not self._gone
            if wanted and (
                not self._bytes or self._bytes + nbytes <= self._limits.link_bytes
            ):  # guard: peer-bytes-bounded
                self._owed.discard(key)
                self._bytes += nbytes
                head = pack_answer(PeerMsg.SAMPLE, key, crc, lengths)
                self._answer(QueuedAnswer(head, pack_lengths(lengths), fd, offset, nbytes, done))
                return
        if wanted:
            self.refuse(scope, sample)
        done()

    def refuse(self, scope: bytes, sample: int) -> None:
        """Say that this machine does not bring a sample: the asker reads it from the source."""
        key = sample_key(scope, sample)
        with self._changed:
            if key in self._owed and not self._gone:
                self._owed.discard(key)
                self._refuse(key)

    def _refuse(self, key: bytes) -> None:
        self.counters.refused += 1
        self._answer(QueuedAnswer(pack_answer(PeerMsg.REFUSED, key)))

    def _answer(self, answer: QueuedAnswer) -> None:
        self._queue.append(answer)
        if len(self._queue) == 1:  # the sending thread waits for nothing else
            self._changed.notify()

    def check(self, now_s: float, *, paused: bool) -> None:
        """Drop an asker that takes nothing. `paused`: this process was stopped itself, so that proves nothing."""
        since_s = self._sending_since_s
        if not since_s:
            return
        if paused:
            self._sending_since_s = now_s
        elif now_s - since_s > self._limits.silent_s:  # guard: silent-asker
            self.end()

    def end(self) -> None:
        """Make its threads leave."""
        end(self._sock)

    # ---- the reading thread

    def run(self) -> None:
        """Serve the asker until one side ends it. ConnectionError says why."""
        sender = threading.Thread(target=self._send_all, name=f"penstock to {self.node}", daemon=True)
        sender.start()
        try:
            self._read_all()
        finally:
            with self._changed:
                self._gone = True
                self._changed.notify()
            self.end()
            sender.join()
            with self._changed:
                left = [*self._untaken, *self._queue]
                self._untaken.clear()
                self._queue.clear()
                self._owed.clear()
            _all_done(left)

    def _read_all(self) -> None:
        while True:
            kind, size, payload = read_message(self._sock)
            if kind == PeerMsg.ASK:
                self._asked(payload)
            elif kind == PeerMsg.GOT:
                self._got(size)
            elif kind == PeerMsg.HOLDS:
                self._setting.post(PeerHolds(self.node, *split_holds(payload)))
            else:
                raise BadPeerFrame(f"it sent a message of kind {kind}")

    def _asked(self, payload: bytes) -> None:
        scope, step, wanted = split_request(payload)
        taken = []
        with self._lock:
            if len(self._queue) > 4 * self._limits.link_samples:  # guard: peer-queue-bounded
                raise BadPeerFrame("it asks without end and takes no answers")
            for sample, ranges in wanted:
                key = sample_key(scope, sample)
                if key in self._owed:
                    continue  # asked for again: one answer will do
                waiting = len(self._owed) + len(self._queue)
                if (
                    waiting >= self._limits.link_samples or self._bytes >= self._limits.link_bytes
                ):  # guard: peer-samples-bounded
                    self._refuse(key)
                else:
                    self._owed.add(key)
                    taken.append((sample, ranges))
            self._changed.notify()  # from now on it must hear something
        if taken:
            self._setting.post(PeerWants(self, scope, step, taken))

    def _got(self, count: int) -> None:
        with self._lock:
            if count > len(self._untaken):
                raise BadPeerFrame("it took more samples than it was sent")
            taken = [self._untaken.popleft() for _ in range(count)]
            self._bytes -= sum(each.nbytes for each in taken)
        _all_done(taken)

    # ---- the sending thread

    def _send_all(self) -> None:
        try:
            while some := self._next():
                self._send(some)
        except OSError:
            self.end()  # the reading thread tells

    def _next(self) -> list[QueuedAnswer]:
        """Wait for answers, and return some; none when there will be none."""
        with self._changed:
            while not self._queue and not self._gone:
                self._sending_since_s = 0.0
                idle = not self._changed.wait(self._limits.alive_s if self._owed else None)
                if idle and self._owed:  # guard: alive-frames
                    self._queue.append(ALIVE)
            if self._gone:
                return []
            some: list[QueuedAnswer] = []
            nbytes = 0
            while self._queue and len(some) < AT_ONCE and nbytes < BYTES_AT_ONCE:
                some.append(self._queue.popleft())
                nbytes += some[-1].nbytes
            self._untaken += [given for given in some if given.done is not None]  # guard: kept-until-taken
            self._sending_since_s = time.monotonic()
        return some

    def _send(self, some: Sequence[QueuedAnswer]) -> None:
        """Send the heads of all, then the bytes of each."""
        nbytes = sum([each.nbytes for each in some])
        self._sock.sendall(pack_answers([each.head for each in some]), MORE if nbytes else 0)
        to, began_s, samples = self._sock.fileno(), self._sending_since_s, 0
        for _, lengths, fd, offset, size, done in some:
            samples += done is not None
            if lengths:
                self._sock.sendall(lengths, MORE if size else 0)
            at, left = offset, size
            while left:
                sent = os.sendfile(to, fd, at, min(left, CHUNK))
                if not sent:
                    raise OSError("the memory file ends before its bytes")
                at, left = at + sent, left - sent
                self._sending_since_s = time.monotonic()
        counters = self.counters
        counters.samples_out += samples
        counters.bytes_out += nbytes
        counters.out_s += self._sending_since_s - began_s


def read_message(sock: socket.socket) -> tuple[int, int, bytes]:
    """Return kind, size and payload of an asker's next message."""
    head = bytearray(HEAD.size)
    receive_all(sock, memoryview(head), _nothing)
    payload = bytearray(payload_bytes(head))
    receive_all(sock, memoryview(payload), _nothing)
    data = bytes(payload)
    return *split_message(head, data), data


def _nothing() -> None:
    pass


def _all_done(answers: Sequence[QueuedAnswer]) -> None:
    for each in answers:
        if each.done is not None:
            each.done()
