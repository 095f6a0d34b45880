"""Workers and agents are killed while the number of workers changes."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from penstock import DataLoader
from tests.integration.test_set_workers import settled


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return torch.rand(4), index


def lists(batches: list[Any]) -> list[Any]:
    return [[value.tolist() for value in batch] for batch in batches]


def loader(workers: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(), 8, shuffle=True, num_workers=workers, seed=11, **options)


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    return lists(list(loader(4)))


def kill(pids: list[int], rng: random.Random) -> None:
    if pids:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(pids), signal.SIGKILL)


@pytest.mark.parametrize(("method", "seed"), [("fork", 0), ("fork", 1), ("fork", 2), ("spawn", 3)])
def test_workers_killed_as_their_number_changes_cost_no_sample(
    method: str, seed: int, whole: list[Any]
) -> None:
    rng, taken = random.Random(seed), []
    often = 7 if method == "fork" else 18  # those that are spawned take seconds to begin
    changing = loader(2, multiprocessing_context=method)
    for at, batch in enumerate(changing):
        taken.append(batch)
        if at % often == 3:
            changing.set_workers(rng.randrange(1, 5))
            time.sleep(rng.random() * 0.08)
            kill(changing.stats()["worker_pids"], rng)
    assert lists(taken) == whole


def test_a_new_agent_has_as_many_workers_as_were_asked_for_last(whole: list[Any]) -> None:
    taken = []
    changing = loader(1)
    for at, batch in enumerate(changing):
        taken.append(batch)
        if at == 3:
            changing.set_workers(3)
            os.kill(changing.stats()["agent_pid"], signal.SIGKILL)
        if at == 30:
            assert len(settled(changing, 3)) == changing.stats()["workers"]
    assert lists(taken) == whole
    assert changing.stats()["agent_restarts"] == 1


def test_a_killed_worker_is_replaced_only_if_there_is_still_room_for_it(whole: list[Any]) -> None:
    taken = []
    changing = loader(3)
    for at, batch in enumerate(changing):
        taken.append(batch)
        if at == 3:
            changing.set_workers(1)
        if at == 15:
            (left,) = settled(changing, 1)
            os.kill(left, signal.SIGKILL)
        if at == 35:
            assert settled(changing, 1) != [left]
    assert lists(taken) == whole
    assert changing.stats()["restarts"] == 1
