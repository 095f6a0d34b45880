"""A process's view of the cache: it maps the memory file once, and reads bytes in place.

Rule 1: a lease lasts as long as anything refers to the bytes: views, slices, arrays made of them. Ended leases travel with the next lookup.
Rule 2: the stream stays open while a lease lasts, also if the client was closed or the service is silent: to the service its end means that nobody reads.
Rule 3: a service that is gone or silent is asked nothing more. One warning; then bytes come from the caller's fallback.
Rule 4: a client belongs to the process that made it. A forked child has only its fallback; while it lives, so do its parent's leases.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.cache.keys import KEY_BYTES
from penstock.cache.messages import (
    MAX_REQUEST,
    READ_BYTES,
    VERSION,
    WELCOME,
    BadRequest,
    CacheMsg,
    pack_lookup,
    split_places,
)
from penstock.node.messages import NodeMsg, close_all, receive
from penstock.wire.frames import Channel

log = logging.getLogger("penstock")

ANSWER_S = 5.0
"""How long a service may take to answer."""
MOST_AT_ONCE = MAX_REQUEST // (4 * KEY_BYTES)
"""Keys, or ended leases, of one message."""


class LentBytes(weakref.ref[NDArray[np.uint8]]):
    """A lease, known to be over when the array is gone."""

    offset: int


class LeaseLink:
    """The stream, with the leases that it keeps alive. The memory's map refers to it, and so does everything that was lent."""

    def __init__(self, stream: socket.socket) -> None:
        self.channel = Channel(stream)
        self.channel.read_bytes = READ_BYTES
        self._held: dict[int, LentBytes] = {}
        self._over: list[int] = []
        self._closing = False

    def lend(self, array: NDArray[np.uint8], offset: int) -> None:
        """Keep the lease until the array is gone."""
        loan = LentBytes(array, self._end)
        loan.offset = offset
        self._held[id(loan)] = loan  # guard: lease-while-viewed

    def _end(self, loan: Any) -> None:
        # In any thread, at any moment: no lock may be taken here.
        del self._held[id(loan)]
        self._over.append(loan.offset)
        if self._closing and not self._held:
            self.channel.close()

    def over(self, offset: int) -> None:
        """End a lease that was not lent."""
        self._over.append(offset)

    def take_over(self) -> list[int]:
        """Return the leases that have ended, for the next message."""
        taken = self._over[:MOST_AT_ONCE]
        del self._over[: len(taken)]
        return taken

    def close(self) -> None:
        self._closing = True
        if not self._held:  # guard: stream-while-leased
            self.channel.close()


class LinkedMap(mmap.mmap):
    """The memory file. Whatever refers to its bytes keeps the stream open (Rule 2)."""

    link: LeaseLink


class CacheClient:
    """Reads cached bytes. Thread-safe."""

    def __init__(self, stream: socket.socket, *, answer_s: float = ANSWER_S) -> None:
        """`stream`: of the cache's service; the client closes it."""
        stream.settimeout(answer_s)
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._link: LeaseLink | None = (link := LeaseLink(stream))
        self._leased: dict[bytes, tuple[int, int]] = {}
        """Expected, and not read yet."""
        self._memory: NDArray[np.uint8] = np.zeros(0, np.uint8)
        try:
            self._memory = mapped(stream, link)
        except (OSError, ValueError) as exc:
            self._lose(exc)

    @property
    def is_there(self) -> bool:
        """Whether the service is asked at all."""
        return self._link is not None and self._pid == os.getpid()  # guard: cache-of-the-parent

    def expect(self, keys: Sequence[bytes]) -> int:
        """Announce the next reads: one question for all of them. Return how many are there."""
        if not self.is_there:
            return 0
        with self._lock:
            if self._link is not None:
                for offset, _ in self._leased.values():
                    self._link.over(offset)
                self._leased = {}
            self._ask(list(dict.fromkeys(keys)))
            return len(self._leased)

    def read(self, key: bytes, fallback: Callable[[], bytes]) -> memoryview:
        """Return the bytes of a key, read-only and in place; those of the fallback if they are not cached."""
        found = self._read(key) if self.is_there else None
        return memoryview(fallback()) if found is None else found

    def _read(self, key: bytes) -> memoryview | None:
        with self._lock:
            if key not in self._leased:
                self._ask([key])
            place = self._leased.pop(key, None)
            if place is None or self._link is None:
                return None
            offset, size = place
            array = self._memory[offset : offset + size]
            self._link.lend(array, offset)
            return array.data

    def _ask(self, keys: list[bytes]) -> None:
        for at in range(0, len(keys), MOST_AT_ONCE):
            some = keys[at : at + MOST_AT_ONCE]
            answer = self._asked(CacheMsg.LOOKUP, CacheMsg.FOUND, some)
            if answer is None:
                return
            try:
                places = split_places(answer, len(some), len(self._memory))
            except BadRequest as exc:
                self._lose(exc)
                return
            self._leased |= {key: place for key, place in zip(some, places, strict=True) if place is not None}

    def _asked(self, kind: CacheMsg, answer: CacheMsg, keys: list[bytes]) -> bytes | None:
        """Return the service's answer; None if there is none."""
        link = self._link
        if link is None:
            return None
        try:
            link.channel.send(kind, pack_lookup(link.take_over(), keys))
            frames = link.channel.receive()
        except (OSError, ValueError) as exc:
            self._lose(exc)
            return None
        if frames is None or len(frames) != 1 or frames[0][0] != answer:
            self._lose(
                ConnectionResetError("it has ended" if frames is None else "it does not answer as asked")
            )
            return None
        return frames[0][1]

    def flush(self) -> None:
        """Tell the service which leases have ended, before a pause."""
        if not self.is_there:
            return
        with self._lock:
            while self._link is not None and (over := self._link.take_over()):
                try:
                    self._link.channel.send(CacheMsg.RELEASE, pack_lookup(over, []))
                except OSError as exc:
                    self._lose(exc)

    def stats(self) -> dict[str, int]:
        """Return the statistics of the memory tier; empty if the service is gone."""
        if not self.is_there:
            return {}
        with self._lock:
            answer = self._asked(CacheMsg.STATS, CacheMsg.STATED, [])
            return {} if answer is None else dict(json.loads(answer))

    def _lose(self, exc: Exception) -> None:
        """Ask no more (Rule 3)."""
        # Not the exception itself: it refers to frames, and those to views.
        why = "it does not answer" if isinstance(exc, TimeoutError) else str(exc)
        log.warning(
            "cache: its service cannot be used any more (%s): process %d reads by itself", why, os.getpid()
        )
        self._let_go()

    def _let_go(self) -> None:
        link, self._link, self._leased = self._link, None, {}
        self._memory = np.zeros(0, np.uint8)
        if link is not None:
            link.close()

    def close(self) -> None:
        """Leave the service. Bytes already read stay valid."""
        if self.is_there:
            with self._lock:
                self._let_go()


def mapped(stream: socket.socket, link: LeaseLink) -> NDArray[np.uint8]:
    """Wait for the service's welcome and map its memory. OSError, BadRequest if there is none."""
    message = receive(stream, fds=1)
    if message is None:
        raise ConnectionResetError("it has ended")
    try:
        if message.kind != NodeMsg.WELCOME or len(message.payload) != WELCOME.size or len(message.fds) != 1:
            raise BadRequest("it is no service of a cache")
        version, size = WELCOME.unpack(message.payload)
        if version != VERSION:
            raise BadRequest(f"it is of version {version}, not {VERSION}")
        if size > os.fstat(message.fds[0]).st_size:
            raise BadRequest("its memory is cut off")
        memory = LinkedMap(message.fds[0], size, prot=mmap.PROT_READ)
        memory.link = link
        return np.frombuffer(memory, np.uint8)
    finally:
        close_all(message.fds)
