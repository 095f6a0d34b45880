"""The cache's service and its clients in real processes that are killed or stopped at any moment. Never other bytes, never an error."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.cache.client import CacheClient
from penstock.node.config import NodeConfig
from penstock.node.link import NodeLink
from tests.cache_service import ForkedService, content, end, key, refused
from tests.fault.programs import until
from tests.forks import start
from tests.node_faults import gone, new_job, stopped

FULL = os.environ.get("PENSTOCK_FULL") == "1"


@pytest.fixture
def service() -> Iterator[ForkedService]:
    made = ForkedService()
    yield made
    made.close()


def from_source(number: int) -> bytes:
    return content(number)


def test_leases_of_a_killed_reader_end(service: ForkedService) -> None:
    assert all(service.tell("put", 0, 20))
    stream = service.stream()
    told, tells = os.pipe()

    def reader() -> None:
        client = CacheClient(stream)
        views = [client.read(key(number), refused) for number in range(20)]
        os.write(tells, b"x")
        signal.pause()
        del views

    pid = start(reader)
    stream.close()
    assert os.read(told, 1) == b"x"
    assert all(service.tell("evict", 0, 20))
    assert service.tell("stats")["leased"] == 20
    end(pid)
    until(lambda: service.tell("stats")["leased"] == 0, within_s=5.0, why="a dead reader has leases")
    stats = service.tell("stats")
    assert stats["free_bytes"] == stats["held_bytes"]
    os.close(told)
    os.close(tells)


def test_readers_that_are_killed_at_any_moment_never_read_other_bytes(service: ForkedService) -> None:
    """What is cached is replaced all the time, in less memory than all of it needs."""
    numbers = 400
    service.tell("put", 0, numbers)
    failed, fails = os.pipe()

    def reader(stream: socket.socket, seed: int) -> None:
        client, rng = CacheClient(stream, answer_s=60.0), random.Random(seed)
        held: list[tuple[int, np.ndarray]] = []  # type: ignore[type-arg]
        while True:
            some = rng.sample(range(numbers), 8)
            client.expect([key(number) for number in some])
            for number in some:
                view = client.read(key(number), lambda number=number: content(number))  # type: ignore[misc]
                held.append((number, np.frombuffer(view, np.uint8)))
            rng.shuffle(held)
            for number, array in held:
                if array.tobytes() != content(number):
                    os.write(fails, b"x")
            del held[10:], array, view

    rng = random.Random(1)
    readers: list[int] = []
    for seed in range(40 if FULL else 8):
        stream = service.stream()
        readers.append(start(lambda stream=stream, seed=seed: reader(stream, seed)))  # type: ignore[misc]
        stream.close()
        assert service.tell("churn", numbers, rng.randrange(100, 300)) > 0
        if len(readers) > 2:
            assert end(readers.pop(rng.randrange(3))) == -9, "a reader failed"
    assert [end(pid) for pid in readers] == [-9] * len(readers)
    os.close(fails)
    assert os.read(failed, 1) == b"", "other bytes were read"
    os.close(failed)
    until(lambda: service.tell("stats")["leased"] == 0, within_s=5.0, why="a dead reader has leases")
    service.tell("evict", 0, numbers)
    stats = service.tell("stats")
    assert stats["free_bytes"] == stats["held_bytes"]


def test_a_service_killed_in_the_midst_of_a_write_costs_one_warning_and_no_bytes(
    service: ForkedService, caplog: pytest.LogCaptureFixture
) -> None:
    assert all(service.tell("put", 0, 10))
    client = service.client()
    held = client.read(key(0), refused)
    assert service.tell("half_written", 50)
    assert client.read(key(50), lambda: from_source(50)) == content(50), "half of it is found"
    client.expect([key(number) for number in range(10)])
    os.kill(service.pid, signal.SIGKILL)
    until(lambda: gone_from(service.pid), within_s=5.0, why="it is not dead")
    with caplog.at_level(logging.WARNING, "penstock"):
        for number in range(60):
            assert client.read(key(number), lambda number=number: from_source(number)) == content(number)  # type: ignore[misc]
        client.flush()
        assert client.stats() == {}
    assert held == content(0)
    assert len(caplog.records) == 1
    assert "cannot be used any more" in caplog.text
    client.close()


def gone_from(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_a_stopped_service_costs_a_deadline_and_what_was_read_stays_when_it_goes_on(
    service: ForkedService, caplog: pytest.LogCaptureFixture
) -> None:
    assert all(service.tell("put", 0, 10))
    client = service.client(answer_s=0.3)
    held = client.read(key(0), refused)
    with stopped(service.pid), caplog.at_level(logging.WARNING, "penstock"):
        began = time.monotonic()
        for number in range(10):
            assert client.read(key(number), lambda number=number: from_source(number)) == content(number)  # type: ignore[misc]
        assert time.monotonic() - began < 10.0
    assert len(caplog.records) == 1
    assert "does not answer" in caplog.text
    service.tell("evict", 0, 10)
    service.tell("churn", 400, 1000)
    assert held == content(0), "its stream was closed, and its lease with it"
    assert service.tell("stats")["leased"] >= 1
    del held
    gc.collect()
    until(lambda: service.tell("stats")["leased"] == 0, within_s=5.0, why="a lease stays")


def test_a_forked_child_does_not_ask_with_its_parents_stream(service: ForkedService) -> None:
    assert all(service.tell("put", 0, 2))
    client = service.client()
    client.expect([key(0)])

    def child() -> None:
        assert not client.is_there
        assert client.read(key(0), lambda: b"mine") == b"mine"
        assert client.expect([key(1)]) == 0
        client.flush()
        client.close()

    pid = start(child)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.read(key(0), refused) == content(0)
    assert client.read(key(1), refused) == content(1)
    client.close()


def test_it_runs_as_a_service_of_the_node() -> None:
    config = NodeConfig(services={"cache": "tests.cache_service:cache"}, linger_s=0.2)
    link = NodeLink.attach(new_job(), 40.0, config=config)
    client = CacheClient(link.open("cache"))
    assert client.expect([key(number) for number in range(10)]) == 10
    views = [client.read(key(number), refused) for number in range(10)]
    os.kill(link.pid, signal.SIGKILL)
    link.close()
    gone(link.pid)
    assert views == [content(number) for number in range(10)]
    assert client.read(key(0), lambda: from_source(0)) == content(0)
    client.close()
