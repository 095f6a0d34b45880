"""Spawned workers are children of the training process: whoever dies while one is started, training goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from penstock import DataLoader
from penstock.agent.spawned import SpawnedWorkers
from tests.fault.datasets import Drawn, expected, same
from tests.fault.programs import is_alive, until

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11, "num_workers": 1}


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid), within_s=5.0, why="it does not die")


def test_an_agent_that_dies_while_a_worker_is_started_for_it_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader: DataLoader[Any] = DataLoader(Drawn(), multiprocessing_context="spawn", **OPTIONS)
    batches = iter(loader)
    found = [next(batches)]
    launch: Callable[[Any], None] = SpawnedWorkers._launch

    def launched(process: Any) -> None:
        monkeypatch.setattr(SpawnedWorkers, "_launch", staticmethod(launch))
        launch(process)
        killed(loader.stats()["agent_pid"])

    monkeypatch.setattr(SpawnedWorkers, "_launch", staticmethod(launched))
    killed(loader.stats()["worker_pids"][0])
    found += list(batches)
    assert same(found, expected(Drawn(), **OPTIONS)[0])
    assert loader.stats()["agent_restarts"] == 1
