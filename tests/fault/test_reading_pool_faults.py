"""Processes that read for the byte cache: they write where they were told, and one that ends or is silent costs nothing but its reads."""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock import accel
from penstock.cache.memory import MemoryTier
from penstock.cache.read_jobs import NoRoom, ReadJob
from penstock.cache.readers import Outcome
from penstock.cache.reading_frames import ReadFailed
from penstock.cache.reading_pool import COUNT_SETTING, ReadingPool
from tests.cache_jobs import images, loader, named, own_node, reference, taken  # noqa: F401 - a fixture
from tests.fault.kill_schedules import digest
from tests.fault.programs import until

SAMPLES = 40
WITHIN_S = 30.0


def key(sample: int) -> bytes:
    return sample.to_bytes(16, "little")


class DatasetHere:
    """A dataset, as reading processes know it."""

    def __init__(self) -> None:
        self.pools: list[ReadingPool] = []
        self.tier = MemoryTier(4 << 20, writers=self._start)
        self.pool.serve(self)
        self.said: queue.Queue[tuple[int, Outcome]] = queue.Queue()
        self.outcomes: dict[int, Outcome] = {}
        self.room = SAMPLES

    def _start(self, fd: int, nbytes: int) -> None:
        facts = {"settings": {}, "cwd": "/", "stamps": {}, "checks": True}
        self.pools.append(ReadingPool(2, fd, nbytes, facts))

    @property
    def pool(self) -> ReadingPool:
        return self.pools[0]

    def lend(self, sample: int, nbytes: int) -> int | None:
        return self.tier.lend(key(sample), nbytes) if sample < self.room else None

    def was_read(
        self, sample: Any, outcome: Outcome, check: int | None = None, lent_at: int | None = None
    ) -> None:
        if isinstance(outcome, tuple):
            assert self.tier.commit(key(sample), made=check)
        else:
            self.tier.abandon(key(sample), lent_at)
        self.said.put((sample, outcome))

    def released(self, sample: Any, lent_at: int | None = None) -> None:
        self.tier.abandon(key(sample), lent_at)

    def wait(self, count: int) -> dict[int, Outcome]:
        until_s = time.monotonic() + WITHIN_S
        for _ in range(count):
            sample, outcome = self.said.get(timeout=max(0.01, until_s - time.monotonic()))
            assert sample not in self.outcomes, "told twice"
            self.outcomes[sample] = outcome
        return self.outcomes

    def bytes(self, sample: int) -> bytes:
        with self.tier.reading(key(sample)) as data:
            assert data is not None
            return bytes(data)


@pytest.fixture
def dataset() -> Iterator[DatasetHere]:
    made = DatasetHere()
    yield made
    made.pool.close()
    made.tier.close()
    vars(made).clear()  # pytest keeps it for longer than its memory may be there
    assert not named("penstock reads"), "they end with their pool"


@dataclass(slots=True)
class Files:
    folder: Path

    def job(self, sample: int) -> ReadJob:
        return ReadJob(sample, 0, ((sample, ((str(self.folder / f"{sample}"), 0, None),)),))

    def content(self, sample: int) -> bytes:
        return bytes([sample]) * (1000 + 700 * sample)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    found = Files(tmp_path)
    for sample in range(SAMPLES):
        (tmp_path / f"{sample}").write_bytes(found.content(sample))
    return found


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/data"


def waiting(url: str, sample: int) -> ReadJob:
    return ReadJob(sample, 0, ((sample, ((url, 0, 10),)),))


def test_processes_write_into_memory_that_nobody_else_can_write(dataset: DatasetHere, files: Files) -> None:
    assert len(named("penstock reads")) == 2
    assert dataset.pool.submit_many(files.job(sample) for sample in range(SAMPLES)) == []
    found = dataset.wait(SAMPLES)
    for sample in range(SAMPLES):
        content = files.content(sample)
        assert found[sample] == (len(content),)
        assert dataset.bytes(sample) == content
        assert dataset.tier.check_of(key(sample)) == accel.crc32(content)
    with pytest.raises(PermissionError):
        mmap.mmap(dataset.tier.fd, dataset.tier.max_bytes)


def test_what_cannot_be_read_or_has_no_room_is_said(dataset: DatasetHere, files: Files) -> None:
    dataset.room = 1
    (files.folder / "0").unlink()
    dataset.pool.submit_many([files.job(0), files.job(1)])
    found = dataset.wait(2)
    assert isinstance(found[0], ReadFailed)
    assert "FileNotFoundError" in str(found[0])
    assert isinstance(found[1], NoRoom)
    (files.folder / "2").chmod(0o600)
    dataset.room = SAMPLES
    dataset.pool.submit_many([files.job(2)])
    assert dataset.wait(1)[2] == (len(files.content(2)),)


def test_a_process_that_is_killed_loses_its_own_reads_alone(dataset: DatasetHere, files: Files) -> None:
    with silent_server() as url:
        dataset.pool.submit_many(waiting(url, sample) for sample in range(4))
        victim = named("penstock reads")[0]
        victim.kill()
        lost = dataset.wait(2)
        assert all(isinstance(outcome, ReadFailed) for outcome in lost.values())
    assert dataset.pool.submit_many(files.job(sample) for sample in range(4, 20)) == []
    dataset.wait(16)
    assert all(dataset.outcomes[sample] == (len(files.content(sample)),) for sample in range(4, 20))
    named("penstock reads")[0].kill()
    until(lambda: not named("penstock reads"), within_s=WITHIN_S, why="it lives")
    until(
        lambda: dataset.pool.submit_many([files.job(30)]) == [files.job(30)],
        within_s=WITHIN_S,
        why="a dead process takes jobs",
    )


def test_processes_that_are_stopped_with_reads_to_do_are_killed(dataset: DatasetHere) -> None:
    with silent_server() as url:
        dataset.pool.submit_many(waiting(url, sample) for sample in range(2))
        stopped = named("penstock reads")
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        for outcome in dataset.wait(2).values():
            assert isinstance(outcome, ReadFailed)
            assert "silent" in str(outcome)
        assert not any(psutil.pid_exists(process.pid) for process in stopped)


def test_a_pool_ends_while_its_processes_read(dataset: DatasetHere) -> None:
    with silent_server() as url:
        dataset.pool.submit_many(waiting(url, sample) for sample in range(20))
        dataset.pool.close()
        assert not named("penstock reads")
    assert all(isinstance(outcome, ReadFailed) for outcome in dataset.wait(20).values())


@pytest.mark.usefixtures("own_node")
@pytest.mark.parametrize("harm", ["none", "kill one", "kill all", "stop one"])
def test_batches_are_the_same_whatever_happens_to_reading_processes(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COUNT_SETTING, "2")
    dataset = images(tmp_path)
    cached = loader(dataset)
    found: list[list[str]] = [[], []]
    for epoch, batches in enumerate(found):
        for number, batch in enumerate(cached):
            batches.append(digest(batch))
            if (epoch, number) == (0, 1):
                reading = named("penstock reads")
                assert len(reading) == 2
                for process in reading[: 2 if harm == "kill all" else 1]:
                    if harm != "none":
                        os.kill(process.pid, signal.SIGSTOP if harm == "stop one" else signal.SIGKILL)
    assert found == reference(dataset)
    if harm == "none":
        readers = cached.stats()["cache"]["readers"]
        assert readers["failures"] == 0
    if harm == "stop one":
        for process in named("penstock reads"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
    assert taken(cached, 1)[0]
