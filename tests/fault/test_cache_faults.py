"""The cache's service and its ranks in real processes that are killed at any moment. Never other bytes, never an error."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.node.config import NodeConfig
from penstock.node.link import NodeLink
from tests.cache_service import ForkedService, Numbers, Rank, content, end
from tests.fault.programs import until
from tests.forks import start
from tests.node_faults import gone, new_job

FULL = os.environ.get("PENSTOCK_FULL") == "1"
ROOM = 2 << 20
"""About 130 numbers."""


@pytest.fixture
def service() -> Iterator[ForkedService]:
    made = ForkedService()
    yield made
    made.close()


def test_leases_of_a_killed_reader_end(service: ForkedService, tmp_path: Path) -> None:
    data = Numbers(tmp_path, 20)
    stream, (told, tells) = service.stream(), os.pipe()

    def reader() -> None:
        rank = Rank(stream, data.facts(ROOM))
        rank.ask(0, range(20), data)
        os.write(tells, b"%d" % len(rank.placed(0, data)))
        signal.pause()

    pid = start(reader)
    stream.close()
    os.close(tells)
    assert os.read(told, 2) == b"20"
    assert service.stats()["leased"] == 20
    end(pid)
    until(lambda: service.stats()["leased"] == 0, within_s=5.0, why="a dead reader has leases")
    os.close(told)


def test_readers_that_are_killed_at_any_moment_never_read_other_bytes(
    service: ForkedService, tmp_path: Path
) -> None:
    """What is cached is replaced all the time, in less memory than all of it needs."""
    data = Numbers(tmp_path, 400)
    failed, fails = os.pipe()
    worked, works = os.pipe()

    def reader(stream: socket.socket, seed: int) -> None:
        rank, rng = Rank(stream, data.facts(ROOM)), random.Random(seed)
        seq = 0
        while True:
            for ahead in range(3):
                rank.ask(seq + ahead, rng.sample(range(data.count), 8), data)
            for ahead in range(3):
                for number in rank.placed(seq + ahead, data):
                    if rank.read(number, data) != content(number):
                        os.write(fails, b"x")
                    os.write(works, b"x")
                rank.over(seq + ahead, used=rng.random() < 0.8)
            seq += 3

    rng = random.Random(1)
    readers: list[int] = []
    for seed in range(40 if FULL else 8):
        stream = service.stream()
        readers.append(start(lambda stream=stream, seed=seed: reader(stream, seed)))  # type: ignore[misc]
        stream.close()
        for _ in range(rng.randrange(200, 600)):
            assert select.select([worked], [], [], 60.0)[0], "nobody reads any more"
            os.read(worked, 1)
        if len(readers) > 2:
            assert end(readers.pop(rng.randrange(3))) == -9, "a reader failed"
    assert [end(pid) for pid in readers] == [-9] * len(readers)
    os.close(fails)
    assert os.read(failed, 1) == b"", "other bytes were read"
    for fd in (failed, worked, works):
        os.close(fd)
    until(lambda: service.stats()["leased"] == 0, within_s=5.0, why="a dead reader has leases")
    until(lambda: service.stats()["reserved"] == 0, within_s=5.0, why="a read does not end")


def test_what_has_landed_stays_when_the_service_is_killed_and_the_rest_is_read_from_its_source(
    service: ForkedService, tmp_path: Path
) -> None:
    data = Numbers(tmp_path, 20)
    rank, late = Rank(service.stream(), data.facts(ROOM)), Rank(service.stream(), data.facts(ROOM))
    for each in (rank, late):
        each.ask(0, range(10), data)
    assert sorted(rank.placed(0, data)) == sorted(late.placed(0, data)) == list(range(10))
    assert rank.read(0, data) == content(0)  # its descriptor is open from here on
    late.close()
    where = late.joined
    end_of(service)
    for number in range(20):
        os.truncate(tmp_path / str(number), 0)  # so that it shows who reads the source
    assert [rank.read(number, data) for number in range(20)] == [*map(content, range(10)), *[b""] * 10]
    assert not os.path.exists(f"/proc/{where.pid}/fd/{where.fd}")
    rank.close()


def end_of(service: ForkedService) -> None:
    os.kill(service.pid, signal.SIGKILL)
    os.waitid(os.P_PID, service.pid, os.WEXITED | os.WNOWAIT)


def test_it_runs_as_a_service_of_the_node(tmp_path: Path) -> None:
    data = Numbers(tmp_path, 10)
    link = NodeLink.attach(new_job(), 40.0, config=NodeConfig(linger_s=0.2))
    rank = Rank(link.open("cache"), data.facts(ROOM))
    rank.ask(0, range(10), data)
    assert sorted(rank.placed(0, data)) == list(range(10))
    os.kill(link.pid, signal.SIGKILL)
    link.close()
    gone(link.pid, rank.joined.pid)
    assert [rank.read(number, data) for number in range(10)] == [content(number) for number in range(10)]
    rank.close()
