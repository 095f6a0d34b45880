"""The agent's side of the cache: asks for the bytes of batches, tells the core when they are there, and workers where.

Rule 1: batches of which nothing is known are prepared as without a cache: workers read by themselves.
Rule 2: a cache that is gone is asked nothing more; everything it owed is for workers to read. The training process may supply another stream.
Rule 3: a stream is closed once nobody reads bytes that it told of: a service that lives uses their memory again from then on.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.cache.frames import OVER, READ_BYTES, SEQ, BadFrame, CacheMsg, split_landed
from penstock.core import events as ev
from penstock.node.messages import BadMessage, NodeMsg, receive
from penstock.wire.frames import PLACES, Channel
from penstock.wire.places import Landing, pack_places
from penstock.wire.watching import watch

SILENT_S = 3.0
"""A service that owes batches says several times a second that it is there."""
LATE_S = 90.0
"""Reads of the batch that is due take no longer, whatever their source does: they are given up before. So none is waited for without an end."""
PAUSE_S = 1.0


@dataclass(slots=True, eq=False)
class FetchedBatch:
    """A batch that the cache was asked for."""

    size: int
    memory: tuple[int, int, int]
    """Inode, process and descriptor of the file that has its bytes."""
    landings: dict[int, Landing] = field(default_factory=dict)
    told: int = 0
    """Samples that were told of, with a place or without."""
    left_by: Channel | None = None
    """The stream that holds its bytes, if it was given up."""

    def has(self, landings: list[Landing]) -> bool:
        return all(0 <= each.ordinal < self.size for each in landings)


class Fetching:
    """`supply`: where streams to the cache come from, as they are opened by the training process."""

    def __init__(self, supply: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        supply.setblocking(False)
        self._supply, self._clock = supply, clock
        self._channel: Channel | None = None
        self._memory = (0, -1, -1)
        self._selector: selectors.BaseSelector | None = None
        self._happen: Callable[[ev.Event], None] = lambda _: None
        self._tell_lost: Callable[[], None] = lambda: None
        self._heard_s = 0.0
        """When the service was heard last, or nothing was owed."""
        self._looked_s = 0.0
        self._due = (-1, 0)
        """The oldest batch, and how many of its samples were told of."""
        self._due_s = 0.0
        """When that changed."""
        self._known: dict[int, bytes] = {}
        """What the training process said of batches that are about to be fed."""
        self._batches: dict[int, FetchedBatch] = {}
        self._left: dict[int, FetchedBatch] = {}
        """Batches with bytes of streams that were given up."""

    def bind(
        self,
        selector: selectors.BaseSelector,
        happen: Callable[[ev.Event], None],
        tell_lost: Callable[[], None],
    ) -> None:
        """Serve an agent from now on."""
        self._selector, self._happen, self._tell_lost = selector, happen, tell_lost
        selector.register(self._supply, selectors.EVENT_READ, lambda _: self._on_supply())
        self._on_supply()

    def _on_supply(self) -> None:
        assert self._selector is not None
        try:
            message = receive(self._supply, fds=1)
        except (BlockingIOError, BadMessage):
            return
        if message is None or message.kind != NodeMsg.OPENED or len(message.fds) != 1:
            self._selector.unregister(self._supply)
            return
        self._lose()
        facts = json.loads(message.payload)
        self._memory = facts["inode"], facts["pid"], facts["fd"]
        sock = socket.socket(fileno=message.fds[0])
        sock.setblocking(False)
        self._channel = Channel(sock)
        self._channel.read_bytes = READ_BYTES
        self._selector.register(sock, selectors.EVENT_READ, self._on_ready)

    # ---- batches

    def note(self, payload: bytes) -> None:
        """Take what must be asked for a batch; it is fed next."""
        self._known[SEQ.unpack_from(payload)[0]] = payload

    def ask(self, seq: int, size: int) -> bool:
        """Ask for a batch; return whether its bytes will be told of."""
        payload = self._known.pop(seq, None)
        if payload is None or self._channel is None:
            return False
        self._batches[seq] = FetchedBatch(size, self._memory)
        self._post(CacheMsg.ASK, payload)
        return self._channel is not None

    def over(self, seq: int, *, used: bool) -> None:
        """A batch was delivered, or is not wanted any more."""
        if self._batches.pop(seq, None) is not None:
            self._post(CacheMsg.OVER, OVER.pack(seq, used))
        left = self._left.pop(seq, None)
        if left is not None and not any(each.left_by is left.left_by for each in self._left.values()):
            assert left.left_by is not None
            left.left_by.close()

    def abort(self) -> None:
        """No open batch is wanted."""
        self._known.clear()
        for seq in [*self._batches, *self._left]:
            self.over(seq, used=False)

    def places(self, task: int, seq: int, start: int, samples: int) -> bytes:
        """Return what a worker is told before a task, or b""."""
        batch = self._batches.get(seq) or self._left.get(seq)
        if batch is None:
            return b""
        found = [batch.landings[at] for at in range(start, start + samples) if at in batch.landings]
        return PLACES.pack(task, *batch.memory) + pack_places(found) if found else b""

    # ---- the service

    def look_after(self, now_s: float) -> None:
        """Give up a service that is silent while it owes batches, or that brings nothing for the one that is due. Time in which we did not look does not
        count."""
        silent_s, paused = now_s - self._heard_s, now_s - self._looked_s > PAUSE_S
        self._looked_s = now_s
        if self._channel is None or not self._batches or paused:
            self._heard_s = self._due_s = now_s
            return
        silent = silent_s > SILENT_S  # guard: silent-cache
        late = self._late_s(now_s) > LATE_S  # guard: late-cache
        if silent or late:
            self._lose()
            self._tell_lost()

    def _late_s(self, now_s: float) -> float:
        """Return for how long nothing has come for the batch that is due. Later ones may have to wait until it is over."""
        seq = min(self._batches)
        batch = self._batches[seq]
        if (seq, batch.told) != self._due or batch.told == batch.size:
            self._due, self._due_s = (seq, batch.told), now_s
        return now_s - self._due_s

    def _post(self, kind: CacheMsg, *chunks: bytes) -> None:
        if self._channel is not None:
            self._channel.post(kind, *chunks)
            self._watch()

    def _watch(self) -> None:
        assert self._selector is not None
        assert self._channel is not None
        watch(self._selector, self._channel)

    def _on_ready(self, mask: int) -> None:
        channel = self._channel
        if channel is None:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                channel.flush()
                self._watch()
            frames = channel.receive(wait=False) if mask & selectors.EVENT_READ else []
            self._heard_s = self._clock()
            told = [self._split(payload) for kind, payload in frames or () if kind == CacheMsg.LANDED]
        except (OSError, ValueError):  # guard: cache-talks-nonsense
            frames, told = None, []
        if frames is None:
            self._lose()
            self._tell_lost()
            return
        for seq, landings in told:
            self._landed(seq, landings)

    def _split(self, payload: bytes) -> tuple[int, list[Landing]]:
        seq, landings = split_landed(payload)
        batch = self._batches.get(seq)
        if batch is not None and not batch.has(landings):  # guard: of-the-batch
            raise BadFrame(f"samples of batch {seq} were told of that it has not")
        return seq, landings

    def _landed(self, seq: int, landings: list[Landing]) -> None:
        batch = self._batches.get(seq)
        if batch is None:
            return
        batch.told += len(landings)
        batch.landings |= {each.ordinal: each for each in landings if each.offset >= 0}
        ordinals = sorted(each.ordinal for each in landings)
        start = 0
        for at in range(1, len(ordinals) + 1):
            if at == len(ordinals) or ordinals[at] != ordinals[at - 1] + 1:
                self._happen(ev.BytesHere(seq, ordinals[start], at - start))
                start = at

    def _lose(self) -> None:
        """Have workers read what the cache still owed. Bytes that have landed stay until their batches are over."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        assert self._selector is not None
        self._selector.unregister(channel.sock)
        owed, self._batches = self._batches, {}
        for seq, batch in owed.items():
            if batch.landings:  # guard: bytes-in-use
                batch.left_by = channel
                self._left[seq] = batch
        if not any(batch.left_by is channel for batch in owed.values()):
            channel.close()
        for seq, batch in owed.items():
            self._happen(ev.BytesHere(seq, 0, batch.size))  # guard: cache-gone

    def close(self) -> None:
        """Close the descriptors, in a process that must not have them."""
        for batch in self._left.values():
            assert batch.left_by is not None
            batch.left_by.close()
        if self._channel is not None:
            self._channel.close()
        self._supply.close()
