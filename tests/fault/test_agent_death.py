"""The agent is a process like any other: when it dies a new one goes on from the last delivered batch, exactly once."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import AgentDied, DataLoader
from tests.fault.datasets import Drawn, Harmful, Stream, count_up, expected, same
from tests.fault.programs import is_alive, state_of, until

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11, "num_workers": 2}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
@pytest.mark.parametrize("collate", [None, list], ids=["slabs", "custom collate"])
def test_the_epoch_goes_on_exactly_once_when_the_agent_dies_at_random_times(
    number: int, collate: Any
) -> None:
    options = {**OPTIONS, "collate_fn": collate}
    loader = DataLoader(Drawn(64, pause_s=0.001), **options)
    rng = random.Random(number)
    batches = []
    for at, batch in enumerate(loader):
        batches.append(batch)
        if at % 4 == 1:
            time.sleep(rng.random() * 0.02)
            os.kill(loader.stats()["agent_pid"], number)
    assert same(batches, expected(Drawn(64), **options)[0])
    assert loader.stats()["agent_restarts"] >= 1


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_workers_of_a_dead_agent_are_gone_within_a_second(context: str) -> None:
    loader = DataLoader(
        Drawn(pause_s=0.05), **{**OPTIONS, "num_workers": 1, "multiprocessing_context": context}
    )
    batches = iter(loader)
    next(batches)
    stats = loader.stats()
    os.kill(stats["agent_pid"], signal.SIGKILL)
    until(
        lambda: not any(map(is_alive, stats["worker_pids"])), within_s=1.0, why="the agent's workers are gone"
    )


def test_workers_in_the_middle_of_c_code_go_with_their_agent_too(tmp_path: Path) -> None:
    loader = DataLoader(Harmful("spin", 8, tmp_path, times=99), **{**OPTIONS, "shuffle": False})
    batches = iter(loader)
    next(batches), next(batches)
    until((tmp_path / "sample-8.1").exists, within_s=5, why="a worker has begun to spin")
    stats = loader.stats()
    os.kill(stats["agent_pid"], signal.SIGKILL)
    until(
        lambda: not any(map(is_alive, stats["worker_pids"])), within_s=1.0, why="the agent's workers are gone"
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_an_agent_killed_between_two_epochs_is_replaced_in_the_next(persistent: bool) -> None:
    options = {**OPTIONS, "persistent_workers": persistent}
    loader = DataLoader(Drawn(), **options)
    epochs = []
    for _ in range(3):
        epochs.append(list(loader))
        if pid := loader.stats()["agent_pid"]:
            os.kill(pid, signal.SIGKILL)
    assert same(epochs, expected(Drawn(), epochs=3, **options))


def test_the_very_first_batch_survives_the_death_of_the_agent() -> None:
    loader = DataLoader(Drawn(), timeout=5, **OPTIONS)
    batches = iter(loader)
    os.kill(loader.stats()["agent_pid"], signal.SIGKILL)
    assert same(list(batches), expected(Drawn(), **OPTIONS)[0])


def test_batches_handed_out_by_a_dead_agent_stay_as_they_were() -> None:
    loader = DataLoader(Drawn(), **OPTIONS)
    batches = iter(loader)
    kept = [next(batches), next(batches)]
    os.kill(loader.stats()["agent_pid"], signal.SIGKILL)
    kept += list(batches)
    assert same(kept, expected(Drawn(), **OPTIONS)[0])


def test_agents_that_die_without_ever_delivering_are_an_error_not_an_endless_loop(tmp_path: Path) -> None:
    loader = DataLoader(KillsItsAgent(tmp_path), **{**OPTIONS, "num_workers": 1})
    with pytest.raises(AgentDied, match=r"was killed by SIGKILL; it was started 6 times"):
        next(iter(loader))


class KillsItsAgent(Drawn):
    """The first ten times."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __getitem__(self, index: int) -> torch.Tensor:
        if count_up(str(self.folder), "kill") <= 10:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(3600)
        return super().__getitem__(index)


def test_a_stopped_agent_is_waited_for_and_the_epoch_goes_on_when_it_does() -> None:
    """It is alive, and whoever stopped it (a debugger, an administrator) will let it go on: it is not replaced."""
    loader = DataLoader(Drawn(), **OPTIONS)
    batches = iter(loader)
    kept = [next(batches)]
    agent = loader.stats()["agent_pid"]
    os.kill(agent, signal.SIGSTOP)
    until(lambda: state_of(agent) == "T", within_s=2, why="the agent is stopped")
    wake = threading.Timer(0.5, os.kill, (agent, signal.SIGCONT))
    wake.start()
    kept += list(batches)
    wake.join()
    assert same(kept, expected(Drawn(), **OPTIONS)[0])


def test_the_wait_for_a_stopped_agent_ends_by_timeout() -> None:
    options = {**OPTIONS, "timeout": 0.3, "prefetch_batches": 1}
    loader = DataLoader(Drawn(), **options)
    batches = iter(loader)
    kept = [next(batches)]
    agent = loader.stats()["agent_pid"]
    os.kill(agent, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match=r"timed out after 0.3 seconds"):
        kept.extend(itertools.islice(batches, 3))  # what is ready already is kept when the next one is not
    os.kill(agent, signal.SIGCONT)
    taken = len(kept)
    assert same(kept + list(batches), expected(Drawn(), **{**options, "timeout": 0})[0]), taken


def test_an_iterable_dataset_that_cannot_be_resumed_says_that_its_agent_died() -> None:
    loader = DataLoader(Stream(64, pause_s=0.01), batch_size=2, num_workers=2)
    batches = iter(loader)
    next(batches)
    os.kill(loader.stats()["agent_pid"], signal.SIGKILL)
    with pytest.raises(AgentDied, match="What they had not yielded is lost"):
        list(batches)


def test_an_agent_that_is_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never runs user code, so its silence means nothing but that it will not answer."""
    monkeypatch.setattr("penstock.client.session.SILENT_S", 1.0)
    loader = DataLoader(Drawn(64, pause_s=0.001), **OPTIONS, timeout=5)
    batches = iter(loader)
    taken = [next(batches)]
    agent = loader.stats()["agent_pid"]
    os.kill(agent, signal.SIGSTOP)
    taken += batches
    assert same(taken, expected(Drawn(64), **OPTIONS)[0])
    assert loader.stats()["agent_restarts"] == 1
    assert not is_alive(agent)
