"""The cache service of a machine: holds the datasets of a job, for all its ranks. A service of the node process (`penstock.node`).

Rule 1: one thread keeps all state. Threads that read, and those of peers, post to it.
Rule 2: a rank that is gone holds nothing: what it asked for is over. A rank that does not read its answers delays no other, and its requests wait
        until it does. A rank that sends anything but our messages is dropped.
Rule 3: ranks that want one dataset cached in different ways are refused, in one clear sentence.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from functools import partial

from penstock.cache.frames import (
    MOST_FRAME,
    READ_BYTES,
    CacheMsg,
    pack_landed,
    split_ask,
    split_over,
)
from penstock.cache.holding import HOLD_S, BatchOf, CachedDataset, as_json
from penstock.cache.join_facts import GroupPlan, JoinAnswer, JoinFacts
from penstock.cache.mailbox import Mailbox
from penstock.cache.parts import DatasetParts, opened_parts
from penstock.errors import PenstockError
from penstock.node.messages import close_all
from penstock.node.service import Opening, Openings
from penstock.sources.fetch import keep_memory
from penstock.wire.frames import Channel

log = logging.getLogger("penstock")


ALIVE_S = 0.5
"""Who waits for batches hears from us as often as that."""
MOST_WARNINGS = 50
UNUSED_S = 60.0
"""A dataset that no loader uses is kept as long at least: the next loader may want it."""


class WarningKeeper(logging.Handler):
    """Keeps this process's warnings, for those who join."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.texts) < MOST_WARNINGS:
            self.texts.append(record.getMessage())


class CacheStream:
    """One rank's stream: first its training process's, then its agent's."""

    def __init__(self, channel: Channel, rank: int) -> None:
        self.channel, self.rank = channel, rank
        self.dataset: CachedDataset | None = None
        self.open: set[int] = set()
        """Batches that are not over."""
        self.writes = False
        """Whether we wait until it reads."""


class CacheService:
    def __init__(self) -> None:
        self._warnings = WarningKeeper()
        log.addHandler(self._warnings)
        self._selector = selectors.DefaultSelector()
        self._mailbox = Mailbox()
        self._datasets: dict[str, CachedDataset] = {}
        self._coming: dict[str, list[tuple[CacheStream, JoinFacts]]] = {}
        """Datasets whose samples are being measured, with those who wait for it."""
        self._streams: set[CacheStream] = set()
        self._ranks = 0
        self._next_beat_s = 0.0
        self._over = False

    def run(self, openings: Openings) -> None:
        """Serve until the node is gone."""
        self._selector.register(self._mailbox, selectors.EVENT_READ, lambda _: self._mailbox.open())
        self._selector.register(openings, selectors.EVENT_READ, lambda _: self._take(openings))
        while not self._over:
            for key, mask in self._selector.select(self._patience_s()):
                key.data(mask)
            self._tell()
            self._beat(time.monotonic())

    def _beat(self, now_s: float) -> None:
        """Show those who wait for batches that we are there."""
        if now_s >= self._next_beat_s:
            self._next_beat_s = now_s + ALIVE_S
            for stream in list(self._streams):
                if stream.open and not stream.channel.clogged:
                    stream.channel.post(CacheMsg.ALIVE)
                    self._watch(stream)

    def _take(self, openings: Openings) -> None:
        opening = openings.take()
        if opening is None:
            self._over = True
        else:
            self._welcome(opening)

    def _welcome(self, opening: Opening) -> None:
        close_all(opening.fds)
        opening.stream.setblocking(False)
        channel = Channel(opening.stream, MOST_FRAME)
        channel.read_bytes = READ_BYTES
        stream = CacheStream(channel, self._ranks)
        self._ranks += 1
        self._streams.add(stream)
        self._selector.register(channel, selectors.EVENT_READ, partial(self._serve, stream))

    def _serve(self, stream: CacheStream, _: int) -> None:
        try:
            if stream.channel.flush():  # guard: deaf-ranks-wait
                frames = stream.channel.receive(wait=False)
                if frames is None:
                    self._drop(stream)
                    return
                for kind, payload in frames:
                    self._answer(stream, kind, payload)
        except (OSError, ValueError, MemoryError, PenstockError) as exc:  # guard: cache-nonsense
            log.warning("cache: a rank is dropped: %s", exc)
            self._drop(stream)
            return
        self._watch(stream)

    def _watch(self, stream: CacheStream) -> None:
        """Wait until a stream can be written, if there is something to write: what it asks for then waits, too."""
        if stream in self._streams and stream.channel.clogged != stream.writes:
            stream.writes = stream.channel.clogged
            wanted = (
                selectors.EVENT_WRITE if stream.writes else selectors.EVENT_READ
            )  # guard: deaf-ranks-unheard
            self._selector.modify(stream.channel, wanted, partial(self._serve, stream))

    def _answer(self, stream: CacheStream, kind: int, payload: bytes) -> None:
        if kind == CacheMsg.JOIN:
            self._join(stream, JoinFacts.unpack(payload))
            return
        if kind == CacheMsg.STATS:
            dataset = self._datasets.get(payload.decode())
            stream.channel.post(
                CacheMsg.STATED,
                as_json({} if dataset is None else dataset.stats() | {"warnings": self._warnings.texts}),
            )
            return
        if stream.dataset is None:
            raise ValueError(f"a message of kind {kind} came before it had joined")
        if kind == CacheMsg.PLAN:
            stream.dataset.follow(GroupPlan.unpack(payload), partial(self._planned, stream))
        elif kind == CacheMsg.ASK:
            asked = split_ask(payload)
            if asked.seq in stream.open:  # guard: asked-once
                raise ValueError(f"batch {asked.seq} was asked for twice")
            stream.open.add(asked.seq)
            stream.dataset.ask(stream, asked, stream.rank)
        elif kind == CacheMsg.OVER:
            seq, used = split_over(payload)
            stream.open.discard(seq)
            stream.dataset.over(stream, seq, used=used)
        else:
            raise ValueError(f"a message has kind {kind}")

    # ---- joining

    def _join(self, stream: CacheStream, facts: JoinFacts) -> None:
        unused = self._take_unused(facts)
        if facts.scope in self._datasets:
            self._admit(stream, facts)
        elif facts.scope in self._coming:
            self._coming[facts.scope].append((stream, facts))
        else:
            self._coming[facts.scope] = [(stream, facts)]
            look = partial(self._look, facts, unused)
            threading.Thread(target=look, name="penstock cache look", daemon=True).start()
            return
        if unused:
            threading.Thread(target=close_datasets, args=(unused,), daemon=True).start()

    def _take_unused(self, facts: JoinFacts) -> list[CachedDataset]:
        """Make room: end datasets that no loader has used for some time, and this one if nobody wants it any more as it was. A thread must close them."""
        found: list[CachedDataset] = []
        used, now_s = {id(stream.dataset) for stream in self._streams}, time.monotonic()
        for scope, dataset in list(self._datasets.items()):
            if id(dataset) in used:
                continue
            other = scope == facts.scope and dataset.facts.differs(facts)
            if other or (scope != facts.scope and now_s - dataset.left_s > UNUSED_S):
                del self._datasets[scope]
                dataset.end()
                found.append(dataset)
        return found

    def _look(self, facts: JoinFacts, unused: list[CachedDataset]) -> None:
        """Open what a dataset needs, in a thread, once there is room."""
        parts, trouble = None, ""
        close_datasets(unused)
        try:
            parts = opened_parts(facts)
        except Exception as exc:  # noqa: BLE001 - whoever joins is told
            trouble = f"{type(exc).__name__}: {exc}"
        self._mailbox.post(partial(self._found, facts, parts, trouble))

    def _found(self, facts: JoinFacts, parts: DatasetParts | None, trouble: str) -> None:
        """What a dataset needs was opened, or could not be."""
        waiting = self._coming.pop(facts.scope)
        if parts is not None:
            try:
                self._datasets[facts.scope] = CachedDataset(facts, parts, self._mailbox.post)
            except (OSError, PenstockError) as exc:
                trouble = f"{type(exc).__name__}: {exc}"
                parts.close()
        for stream, theirs in waiting:
            if stream not in self._streams:
                continue
            if trouble:
                stream.channel.post(CacheMsg.FAILED, trouble.encode(errors="replace"))
            else:
                self._admit(stream, theirs)
            self._watch(stream)

    def _admit(self, stream: CacheStream, facts: JoinFacts) -> None:
        dataset = self._datasets[facts.scope]
        if apart := dataset.facts.differs(facts):  # guard: same-cache
            stream.channel.post(CacheMsg.REFUSED, f"ranks of one job have different cache=: {apart}".encode())
            return
        stream.dataset = dataset
        joined = JoinAnswer(
            pid=os.getpid(),
            fd=dataset.fd,
            inode=os.fstat(dataset.fd).st_ino,
            sample_bytes=dataset.sample_bytes,
            address=dataset.peers.address,
            room_bytes=dataset.room_bytes,
            warnings=self._warnings.texts,
        )
        stream.channel.post(CacheMsg.JOINED, joined.pack())

    def _planned(self, stream: CacheStream, begun: bool) -> None:
        if stream in self._streams and not begun:
            self._drop(stream)
        elif stream in self._streams:
            stream.channel.post(CacheMsg.PLANNED)
            self._watch(stream)

    # ---- telling

    def _tell(self) -> None:
        """Tell agents what has landed since."""
        now_s = time.monotonic()
        for dataset in self._datasets.values():
            for batch, landings in dataset.to_tell(now_s, self._is_due):
                stream = batch.stream
                if stream in self._streams:
                    assert isinstance(stream, CacheStream)
                    stream.channel.post(CacheMsg.LANDED, pack_landed(batch.seq, landings))
                    self._watch(stream)

    def _is_due(self, batch: BatchOf) -> bool:
        """Whether a batch is the oldest that its rank waits for."""
        stream = batch.stream
        assert isinstance(stream, CacheStream)
        return batch.seq == min(stream.open, default=batch.seq)

    def _patience_s(self) -> float | None:
        """Return how long to wait for something to happen."""
        if any(dataset.landed for dataset in self._datasets.values()):
            return HOLD_S
        return ALIVE_S if any(each.open for each in self._streams) else None

    def _drop(self, stream: CacheStream) -> None:
        self._streams.discard(stream)
        self._selector.unregister(stream.channel)
        stream.channel.close()
        if stream.dataset is not None:
            stream.dataset.left_s = time.monotonic()
            for seq in list(stream.open):  # guard: leases-of-the-dead
                stream.dataset.over(stream, seq, used=False)

    def close(self) -> None:
        for dataset in self._datasets.values():
            dataset.close()
        for stream in list(self._streams):
            self._drop(stream)
        self._mailbox.close()
        self._selector.close()
        log.removeHandler(self._warnings)


def close_datasets(datasets: list[CachedDataset]) -> None:
    for dataset in datasets:
        try:
            dataset.close()
        except Exception:
            log.exception("cache: a dataset could not be closed")


def main(openings: Openings) -> None:
    """Serve until the node process ends."""
    keep_memory()
    service = CacheService()
    try:
        service.run(openings)
    finally:
        service.close()
        os._exit(0)  # threads may wait in a read, and a normal exit would wait for them
