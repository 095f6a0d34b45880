"""A worker that says nothing: replaced once past `hang_timeout`, then an error with its stack; merely reported without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import DataLoader, WorkerDied, WorkerHung
from penstock.measure.host import RunDelay
from penstock.policy.retry import RetryLimits
from penstock.sources.retries import Fleeting, persistently
from tests.fault.datasets import Drawn, Harmful, counted, expected, same
from tests.fault.programs import fair, state_of, until

OPTIONS: dict[str, Any] = {"batch_size": 4, "seed": 11, "num_workers": 2, "hang_timeout": 0.5}
HANGS = ("SIGSTOP", "spin", "sleep")


@pytest.mark.parametrize("harm", HANGS)
def test_a_worker_that_hangs_once_is_replaced_and_leaves_no_trace_in_the_batches(
    harm: str, tmp_path: Path
) -> None:
    loader = DataLoader(Harmful(harm, 9, tmp_path), **OPTIONS)
    assert same(list(loader), expected(Drawn(), **OPTIONS)[0])
    assert loader.stats()["restarts"] == 1
    assert counted(tmp_path, "sample-9") == 2


@pytest.mark.parametrize(
    ("harm", "where"),
    [
        ("SIGSTOP", "stopped"),
        ("spin", "in spin_with_the_interpreter_lock"),
        ("sleep", "datasets.py"),
    ],
)
def test_a_sample_that_hangs_twice_is_an_error_that_says_where(harm: str, where: str, tmp_path: Path) -> None:
    loader = DataLoader(Harmful(harm, 9, tmp_path, times=99), **OPTIONS)
    batches = iter(loader)
    next(batches), next(batches)
    before = time.monotonic()
    with pytest.raises(WorkerHung, match="sample 9 ") as caught:
        next(batches)
    assert where in str(caught.value)
    assert time.monotonic() - before < fair(2 * (OPTIONS["hang_timeout"] + 2.0))
    assert same(list(batches), expected(Drawn(), **OPTIONS)[0][3:])
    assert counted(tmp_path, "sample-9") == 2


def test_torchs_timeout_serves_as_the_hang_timeout_where_that_is_not_given(tmp_path: Path) -> None:
    loader = DataLoader(Harmful("sleep", 9, tmp_path, times=99), batch_size=4, num_workers=2, timeout=0.7)
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0.7 seconds|silent for longer"):
        next(batches)


def test_a_worker_stopped_between_tasks_is_not_mistaken_for_one_that_hangs() -> None:
    loader = DataLoader(
        Drawn(), **{**OPTIONS, "persistent_workers": True, "shuffle": False, "prefetch_batches": 1}
    )
    first = list(loader)
    (pid, *_) = loader.stats()["worker_pids"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state_of(pid) == "T", within_s=2, why="the worker is stopped")
    time.sleep(0.8)
    os.kill(pid, signal.SIGCONT)
    assert same([first, list(loader)], expected(Drawn(), epochs=2, **OPTIONS))
    assert loader.stats()["restarts"] <= 1  # the batch that is prepared ahead may be at the stopped worker


def test_slow_samples_are_not_mistaken_for_hangs() -> None:
    loader = DataLoader(Drawn(12, pause_s=0.3), **OPTIONS)
    assert same(list(loader), expected(Drawn(12), **OPTIONS)[0])
    assert loader.stats()["restarts"] == 0


class Busy(Drawn):
    """Each sample is a tenth of a second of computing, on whatever share of a core there is."""

    def __getitem__(self, index: int) -> torch.Tensor:
        until_s = time.thread_time() + 0.1
        while time.thread_time() < until_s:
            pass
        return super().__getitem__(index)


def to_the_first_core(_: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.skipif(RunDelay().read() == 0, reason="the kernel does not count waits")
def test_workers_that_are_not_given_a_core_are_not_mistaken_for_hung_ones() -> None:
    """Ten others want the workers' only core: a sample takes more than a second, ten times less than which is the worker's own."""
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) for _ in range(10)]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()  # it has begun
        loader = DataLoader(Busy(6), **OPTIONS, worker_init_fn=to_the_first_core)
        began_s = time.monotonic()
        assert same(list(loader), expected(Drawn(6), **OPTIONS)[0])
        assert time.monotonic() - began_s > 3 * OPTIONS["hang_timeout"], "they were short of time"
        assert loader.stats()["restarts"] == 0
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_a_consumer_that_takes_its_time_makes_no_worker_look_hung() -> None:
    loader = DataLoader(Drawn(), **OPTIONS)
    batches = iter(loader)
    kept = [next(batches)]
    time.sleep(1.2)
    assert same(kept + list(batches), expected(Drawn(), **OPTIONS)[0])
    assert loader.stats()["restarts"] == 0


def sleep_for_ever(_: int) -> None:
    time.sleep(1000)


def test_a_worker_that_hangs_while_it_starts_is_an_error_that_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.core.core.START_S", 0.5)
    loader = DataLoader(Drawn(), **OPTIONS, worker_init_fn=sleep_for_ever)
    with pytest.raises(WorkerDied, match="lost 2 times in a row") as caught:
        next(iter(loader))
    assert "in sleep_for_ever" in str(caught.value)


class FromBusyServer:
    """One sample comes from a server that asks to be left alone for longer than a worker may be silent."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        answers = iter([self.refused] if index == 2 else [])

        def read() -> int:
            for refuse in answers:
                refuse()
            return index

        return persistently(read, "a file", RetryLimits())

    @staticmethod
    def refused() -> None:
        busy = Fleeting("503")
        busy.asked_s = 4.0
        raise busy


def test_a_pause_that_a_server_asks_for_is_not_mistaken_for_a_hang() -> None:
    loader: DataLoader[Any] = DataLoader(FromBusyServer(), 1, num_workers=1, hang_timeout=1.5)  # type: ignore[arg-type]
    assert [int(batch) for batch in loader] == [0, 1, 2, 3]
    assert (loader.stats()["restarts"], loader.stats()["source_retries"]) == (0, 1)
