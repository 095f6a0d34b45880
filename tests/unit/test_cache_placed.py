"""Where the cache has a batch's samples, as agents and workers are told: what is not so is read from the source."""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from penstock.agent.fetching import LATE_S, Fetching
from penstock.cache.frames import CacheMsg, pack_ask, pack_landed
from penstock.cache.memory import MemoryTier
from penstock.core import events as ev
from penstock.node.messages import NodeMsg, send
from penstock.sources.sources import WholeFiles
from penstock.wire.places import Landing, pack_places, split_places
from penstock.worker.placed import MemoryFile, PlacedBytes
from tests.cache_service import JOINED, content, framed, key, put

LANDINGS = [Landing(0, 1 << 40, (5, 0)), Landing(3, -1), Landing(1, 0, ())]


# ---- the agent


class AgentHere:
    """`Fetching` as an agent drives it, and the service's end of its stream."""

    def __init__(self) -> None:
        self._supply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.service, stream = socket.socketpair()
        self.happened: list[ev.Event] = []
        self.lost = 0
        self._selector = selectors.DefaultSelector()
        self.now_s = 1000.0
        self.fetching = Fetching(theirs, lambda: self.now_s)
        with stream:
            send(self._supply, NodeMsg.OPENED, json.dumps(asdict(JOINED)).encode(), [stream.fileno()])
        self.fetching.bind(self._selector, self.happened.append, self._tell_lost)

    def _tell_lost(self) -> None:
        self.lost += 1

    def ask(self, seq: int, size: int) -> None:
        self.fetching.note(pack_ask(seq, 0, 0, [*range(size)], [[] for _ in range(size)]))
        assert self.fetching.ask(seq, size)

    def hears(self, data: bytes) -> None:
        self.service.sendall(data)
        for ready, mask in self._selector.select(5):
            ready.data(mask)

    def waits(self, seconds: float) -> None:
        """Look after the service, which says that it is there, several times a second."""
        for _ in range(round(2 * seconds)):
            self.now_s += 0.5
            self.hears(framed(CacheMsg.ALIVE, b""))
            self.fetching.look_after(self.now_s)
            if self.lost:
                return

    def close(self) -> None:
        self.fetching.close()
        self._supply.close()
        self.service.close()
        self._selector.close()


@pytest.fixture
def agent() -> Iterator[AgentHere]:
    made = AgentHere()
    made.ask(7, 4)
    yield made
    made.close()


def test_an_agent_tells_its_workers_where_samples_are(agent: AgentHere) -> None:
    agent.hears(framed(CacheMsg.LANDED, pack_landed(7, LANDINGS)) + framed(CacheMsg.ALIVE, b""))
    assert agent.happened == [ev.BytesHere(7, 0, 2), ev.BytesHere(7, 3, 1)]
    assert list(split_places(agent.fetching.places(9, 7, 0, 4)[24:])) == [LANDINGS[0], LANDINGS[2]]
    agent.hears(framed(CacheMsg.LANDED, pack_landed(8, LANDINGS)))
    assert (len(agent.happened), agent.lost) == (2, 0), "it is of a batch that is over"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff" * 64,
        framed(CacheMsg.LANDED, b"hello"),
        framed(CacheMsg.LANDED, bytes(16)),
        framed(CacheMsg.LANDED, pack_landed(7, [Landing(4, 0, (1,))])),
        framed(CacheMsg.LANDED, pack_landed(7, [Landing(-1, 0, (1,))])),
    ],
    ids=["length", "landed", "places", "behind the batch", "before the batch"],
)
def test_an_agent_that_hears_nonsense_has_its_workers_read(agent: AgentHere, nonsense: bytes) -> None:
    agent.hears(nonsense)
    assert agent.happened == [ev.BytesHere(7, 0, 4)]
    assert agent.lost == 1
    assert agent.fetching.places(9, 7, 0, 4) == b""
    assert agent.service.recv(1 << 16) != b"", "what it had asked for"
    assert agent.service.recv(1 << 16) == b"", "it has left"


def test_a_service_that_works_and_brings_nothing_is_given_up_some_time(agent: AgentHere) -> None:
    agent.ask(8, 4)
    agent.waits(LATE_S - 5)
    agent.hears(framed(CacheMsg.LANDED, pack_landed(7, [Landing(0, 0, (1,))])))
    agent.waits(LATE_S - 5)
    assert agent.lost == 0, "something has come"
    agent.waits(10)
    assert agent.lost == 1
    assert agent.happened == [ev.BytesHere(7, 0, 1), ev.BytesHere(7, 0, 4), ev.BytesHere(8, 0, 4)]


def test_a_service_that_is_given_up_keeps_bytes_until_their_batches_are_over(agent: AgentHere) -> None:
    """It may live: memory that it is not asked to keep any more holds other samples a moment later."""
    agent.hears(framed(CacheMsg.LANDED, pack_landed(7, LANDINGS)))
    agent.hears(b"\xff" * 64)
    assert agent.lost == 1
    assert list(split_places(agent.fetching.places(9, 7, 0, 4)[24:])) == [LANDINGS[0], LANDINGS[2]]
    agent.service.setblocking(False)
    assert agent.service.recv(1 << 16) != b"", "what it had asked for"
    with pytest.raises(BlockingIOError):
        agent.service.recv(1)
    agent.fetching.over(7, used=True)
    assert agent.service.recv(1) == b"", "it has left"


def test_a_training_that_stands_still_has_time(agent: AgentHere) -> None:
    """Later batches wait for room until the one that is due is over."""
    agent.ask(8, 4)
    agent.hears(framed(CacheMsg.LANDED, pack_landed(7, [Landing(at, -1) for at in range(4)])))
    agent.waits(2 * LATE_S)
    assert agent.lost == 0


# ---- workers


@pytest.fixture
def tier() -> Iterator[MemoryTier]:
    made = MemoryTier(1 << 20)
    assert put(made, 1)
    yield made
    made.close()


def of(tier: MemoryTier, *, inode: int = 0) -> MemoryFile:
    return MemoryFile(os.fstat(tier.fd).st_ino + inode, os.getpid(), tier.fd)


def test_bytes_are_read_where_they_were_placed(tier: MemoryTier) -> None:
    (place,) = tier.lookup([key(1)], "reader")
    assert place is not None
    half, whole = place.size // 2, content(1)
    placed = PlacedBytes(WholeFiles())
    ranges = [("a", 0, half), ("a", half, None), ("b", 0, 0)]
    landing = Landing(0, place.offset, (half, place.size - half, 0))
    placed.place(of(tier), [landing], lambda _: ranges)
    assert placed.read_many(ranges) == [whole[:half], whole[half:], b""]
    placed.clear()
    with pytest.raises(FileNotFoundError):
        placed.read("a", 0, half)
    placed.close()


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (-5, 2),
        (1 << 20, 1),
        ((1 << 20) - 1, 2),
        (1 << 62, 1 << 62),
        (5, -1),
        (0, 1 << 62),
        (0, (1 << 63) - 1),
    ],
    ids=["before", "behind", "across", "far", "negative", "huge", "largest"],
)
def test_places_outside_of_the_memory_are_read_from_the_source(
    tier: MemoryTier, tmp_path: Path, offset: int, length: int
) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"from the source")
    placed = PlacedBytes(WholeFiles())
    (landing,) = split_places(pack_places([Landing(0, offset, (length,))]))
    placed.place(of(tier), [landing], lambda _: [(str(file), 0, None)])
    assert placed.read(str(file)) == b"from the source"
    placed.close()


def test_another_file_of_that_process_is_not_taken_for_the_memory(tier: MemoryTier, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"from the source")
    placed = PlacedBytes(WholeFiles())
    for memory in (of(tier, inode=1), of(tier)._replace(fd=1 << 20), of(tier)._replace(pid=-1)):
        placed.place(memory, [Landing(0, 0, (5,))], lambda _: [(str(file), 0, None)])
        assert placed.read(str(file)) == b"from the source"
    placed.close()
