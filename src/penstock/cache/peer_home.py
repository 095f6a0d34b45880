"""The asker's end: one connection to the cache of one other machine, and the thread that receives what was asked for.

Rule 1: a sample that was asked for is told of once, as come or as not come. When the connection ends, all that are open have not come.
Rule 2: bytes are received into the room where they stay, and count when the checksum that they came with is theirs.
Rule 3: asking never waits. A home that is down is asked for nothing: its samples have not come at once. This thread connects again, later and later.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

from penstock.cache.keys import sample_key
from penstock.cache.peer_dial import dialled
from penstock.cache.peer_events import (
    CHUNK,
    Came,
    NotCame,
    PeerBack,
    PeerCounters,
    PeerLost,
    PeerSetting,
    end,
    receive_all,
)
from penstock.cache.peer_frames import (
    ANSWER,
    HEAD,
    MOST_ANSWERS,
    AskedSample,
    BadPeerFrame,
    PeerAnswer,
    PeerMsg,
    answers_bytes,
    fits,
    lengths_bytes,
    pack_message,
    pack_requests,
    split_answers,
    split_key,
    split_lengths,
)
from penstock.remote.handshake import GreetingRefused
from penstock.sources.sources import ByteRange

log = logging.getLogger("penstock")

GOT_EVERY, GOT_BYTES = 64, 4 << 20
"""Samples and bytes taken until their home is told, if more are to come: it keeps their memory until then. Each telling wakes it."""
NEWS_S = 0.002
"""Time until the service is told what has come, if the next one is here already. Each telling wakes it."""
MOST_UNSENT = 8 << 20
"""Bytes of requests that a home may leave in this machine's memory."""


class PeerBanned(ConnectionError):
    """This home's bytes were wrong too often."""


class HomeLink:
    """Asks one home. `ask`, `flush`, `check` and `close` may be called from any thread."""

    def __init__(self, node: int, address: str, setting: PeerSetting) -> None:
        self.node, self.address = node, address
        self.counters = PeerCounters()
        self._setting, self._limits = setting, setting.limits
        self._lock = threading.Lock()
        self._open: dict[bytes, tuple[Sequence[ByteRange], float]] = {}
        """Samples asked for: their ranges, and when that was."""
        self._coming: dict[bytes, Sequence[ByteRange]] = {}
        """Samples whose heads have come, and not yet all of their bytes. Only the receiving thread changes it."""
        self._sock: socket.socket | None = None
        """Connected and greeted."""
        self._making: socket.socket | None = None
        self._why_down = "it was not reached yet"
        self._unsent = bytearray()
        self._taken = 0
        """Samples that their home was not told of yet."""
        self._taken_bytes = 0
        self._news: list[Came] = []
        """The receiving thread's: what has come and was not told yet."""
        self._news_since_s = 0.0
        self._heard_s = 0.0
        self._closing = threading.Event()
        self._scratch = memoryview(bytearray(64 << 10))
        self.thread = threading.Thread(target=self._run, name=f"penstock home {node}", daemon=True)
        self.thread.start()

    # ---- asking

    def ask(self, scope: bytes, wanted: Sequence[AskedSample], step: int) -> None:
        """Ask for samples; one that is open already is not asked for twice."""
        why, left = "", list(wanted)
        with self._lock:
            if self._sock is None:
                why = self._why_down
            elif len(self._unsent) > MOST_UNSENT:
                why = "it takes no requests"
            else:
                left = self._ask(scope, left, step)
                why = "its ranges are too many for a request"
        if left:
            self._not_came(scope, [sample for sample, _ in left], why)

    def _ask(self, scope: bytes, wanted: Iterable[AskedSample], step: int) -> list[AskedSample]:
        keyed = {sample_key(scope, one[0]): one for one in wanted}
        fresh = {key: one for key, one in keyed.items() if key not in self._open and key not in self._coming}
        frames, too_long = pack_requests(scope, step, list(fresh.values()))
        now_s = time.monotonic()
        if not self._owes():
            self._heard_s = now_s
        self._open |= {key: (ranges, now_s) for key, (_, ranges) in fresh.items()}
        for sample, _ in too_long:
            del self._open[sample_key(scope, sample)]
        for frame in frames:
            self._send(frame)
        return too_long

    def _owes(self) -> int:
        """How many samples it was asked for and has not sent whole."""
        return len(self._open) + len(self._coming)

    def tell(self, frames: Iterable[bytes]) -> None:
        """Send messages that have no answer; a home that is not reached misses them."""
        with self._lock:
            if len(self._unsent) <= MOST_UNSENT:
                for frame in frames:
                    self._send(frame)

    def _send(self, data: bytes) -> None:
        """Send what can be sent without a wait; the rest is kept for `flush`. With the lock held."""
        sock, sent = self._sock, 0
        if sock is None:
            return
        if not self._unsent:
            try:
                sent = sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                pass
            except OSError:
                end(sock)  # the receiving thread tells
                return
            if sent == len(data):
                return
        self._unsent += data[sent:]
        self._setting.wake()

    def unsent(self) -> int | None:
        """Return the descriptor that requests wait for, if any do."""
        with self._lock:
            return None if self._sock is None or not self._unsent else self._sock.fileno()

    def flush(self) -> None:
        with self._lock:
            data, self._unsent = bytes(self._unsent), bytearray()
            if data:
                self._send(data)

    def check(self, now_s: float, *, paused: bool) -> None:
        """Give a silent home up, and samples that take too long. `paused`: this process was stopped itself, so silence proves nothing."""
        late: list[bytes] = []
        with self._lock:
            if self._sock is None:
                return
            if paused:  # guard: own-pause
                self._heard_s = now_s
                return
            if self._owes() and now_s - self._heard_s > self._limits.silent_s:  # guard: silent-home
                self._why_down = (
                    f"it owed {self._owes()} samples and sent nothing for {self._limits.silent_s:g} s"
                )
                end(self._sock)
            for key, (_, asked_s) in self._open.items():  # in the order of asking
                if now_s - asked_s <= self._limits.answer_s:
                    break
                late.append(key)
            for key in late:
                del self._open[key]
            self._tell_taken()
        self._not_came_all(late, f"it did not send it in {self._limits.answer_s:g} s")

    def close(self) -> None:
        """Make the thread leave."""
        self._closing.set()
        with self._lock:
            for sock in (self._sock, self._making):
                if sock is not None:
                    end(sock)

    # ---- connecting: this and all below in the thread

    def _run(self) -> None:
        least_s, most_s = self._limits.retry_s
        wait_s = least_s
        while not self._closing.is_set():
            sock, why = None, "its thread ended"
            try:
                sock = self._connected()
                self._up(sock)
                wait_s = least_s
                self._receive(sock)
            except PeerBanned:
                why = "its bytes were wrong too often: it is not asked any more"
                return
            except GreetingRefused:
                why = "what answers there does not prove that it belongs to this job"
            except OSError as exc:
                why = str(exc) or type(exc).__name__
            finally:
                self._down(why)
                if sock is not None:
                    sock.close()
            self._closing.wait(wait_s * random.uniform(0.75, 1.25))
            wait_s = min(2 * wait_s, most_s)

    def _connected(self) -> socket.socket:
        try:
            return dialled(self.address, self.node, self._setting, self._hold)
        finally:
            with self._lock:
                if self._making is not None:
                    self._making.close()
                    self._making = None

    def _hold(self, sock: socket.socket) -> None:
        """Have a handle by which `close` ends a connection that is being made."""
        with self._lock:
            self._making = sock.dup()  # TLS takes the other one over
        if self._closing.is_set():
            raise ConnectionAbortedError("the cache is being closed")

    def _up(self, sock: socket.socket) -> None:
        with self._lock:
            self._sock, self._why_down = sock, ""
            self._unsent.clear()
            self._taken = self._taken_bytes = 0
        if self._closing.is_set():
            raise ConnectionAbortedError("the cache is being closed")
        self._setting.post(PeerBack(self.node))

    def _down(self, why: str) -> None:
        """Tell that what is open does not come."""
        self._tell_news()
        with self._lock:
            if self._sock is None:
                self._why_down = why
                return
            self._sock = None
            self._why_down = why = self._why_down or why
            left = [*self._coming, *self._open]
            self._coming, self._open = {}, {}
        self.counters.lost += 1
        self._not_came_all(left, why)
        if not self._closing.is_set():
            self._setting.post(PeerLost(self.node, why))

    # ---- receiving

    def _receive(self, sock: socket.socket) -> None:
        room = memoryview(bytearray(MOST_ANSWERS * ANSWER.size))
        while True:
            answers = self._heads(sock, room)
            with self._lock:
                for answer in answers:
                    if (asked := self._open.pop(answer.key, None)) is not None:
                        self._coming[answer.key] = asked[0]
            samples = [answer for answer in answers if answer.kind == PeerMsg.SAMPLE]
            for answer in answers:
                if answer.kind == PeerMsg.SAMPLE:
                    self._take(sock, answer)
                elif answer.kind == PeerMsg.REFUSED:
                    if self._coming.pop(answer.key, None) is not None:
                        self._not_came_all([answer.key], "it was refused")
                elif answer.kind != PeerMsg.ALIVE:
                    raise BadPeerFrame(f"it sent a message of kind {answer.kind}")
            with self._lock:
                self._taken += len(samples)
                self._taken_bytes += sum([answer.nbytes for answer in samples])
                if not self._open or self._taken >= GOT_EVERY or self._taken_bytes >= GOT_BYTES:
                    self._tell_taken()

    def _heads(self, sock: socket.socket, room: memoryview) -> list[PeerAnswer]:
        """Receive the heads of some answers. `room` is for them."""
        got, head = 0, bytearray(HEAD.size)
        try:
            got = sock.recv_into(head, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._tell_news()  # a moment to do so
        if got < len(head):
            receive_all(sock, memoryview(head)[got:], self._heard)
        heads = room[: answers_bytes(head)]
        receive_all(sock, heads, self._heard)
        return split_answers(head, heads)

    def _heard(self) -> None:
        self._heard_s = time.monotonic()

    def _take(self, sock: socket.socket, answer: PeerAnswer) -> None:
        began_s = time.monotonic()
        _, ranges, key, _, nbytes = answer
        if nbytes > CHUNK:
            self._tell_news()
        lengths = (nbytes,) if ranges == 1 else self._lengths(sock, answer)
        asked, why = self._coming.get(key), ""
        if asked is None:
            self._drain(sock, nbytes)
            return
        if not fits(lengths, asked):  # guard: peer-lengths
            raise BadPeerFrame("it sent a sample of another length")
        room = self._setting.room.reserve(key, nbytes)
        if room is None:
            self._drain(sock, nbytes)
            why = "there is no room for it"
        elif not self._fill(sock, answer, room):
            why = "its bytes were damaged on their way"
        del self._coming[key]  # until now: if the connection ends, it is told of with all others
        if why:
            self._not_came_all([key], why)
            return
        counters = self.counters
        counters.samples_in += 1
        counters.bytes_in += nbytes
        counters.in_s += self._heard_s - began_s
        scope, sample = split_key(key)
        if not self._news:
            self._news_since_s = began_s
        self._news.append(Came(self.node, scope, sample, lengths))
        if self._heard_s - self._news_since_s > NEWS_S:
            self._tell_news()

    def _lengths(self, sock: socket.socket, answer: PeerAnswer) -> tuple[int, ...]:
        """Receive the lengths of several ranges."""
        more = bytearray(lengths_bytes(answer))
        receive_all(sock, memoryview(more), self._heard)
        return split_lengths(answer, more)

    def _fill(self, sock: socket.socket, answer: PeerAnswer, room: memoryview) -> bool:
        """Receive a sample's bytes; False if they are not those that were sent."""
        try:
            receive_all(sock, room, self._heard)
        except BaseException:
            self._setting.room.abandon(answer.key)
            raise
        if self._setting.room.commit(answer.key, answer.check):
            return True
        self.counters.mismatches += 1
        if self.counters.mismatches >= self._limits.mismatches:  # guard: lying-home
            log.warning(
                "cache: bytes from machine %s (%s) had a wrong checksum %s times: nothing more is read from it, its samples come from the source. "
                "Its memory or the network between damages data",
                self.node,
                self.address,
                self.counters.mismatches,
            )
            raise PeerBanned
        return False

    def _drain(self, sock: socket.socket, nbytes: int) -> None:
        while nbytes:
            part = self._scratch[: min(nbytes, len(self._scratch))]
            receive_all(sock, part, self._heard)
            nbytes -= len(part)

    def _tell_taken(self) -> None:
        """Tell the home that it may use the memory of what was taken again. With the lock held."""
        if self._taken:
            taken, self._taken, self._taken_bytes = self._taken, 0, 0
            self._send(pack_message(PeerMsg.GOT, taken))

    # ---- telling

    def _tell_news(self) -> None:
        news, self._news = self._news, []
        for event in news:
            self._setting.post(event)

    def _not_came_all(self, keys: Iterable[bytes], why: str) -> None:
        by_scope: dict[bytes, list[int]] = defaultdict(list)
        for scope, sample in map(split_key, keys):
            by_scope[scope].append(sample)
        for scope, samples in by_scope.items():
            self._not_came(scope, samples, why)

    def _not_came(self, scope: bytes, samples: Sequence[int], why: str) -> None:
        self.counters.not_in += len(samples)
        self._setting.post(NotCame(self.node, scope, samples, why))
