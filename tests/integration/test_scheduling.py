"""Who works on what, and when: all workers on the batch that is due, slow samples aside, the next epoch in time.

Samples sleep instead of computing, so that two workers on a busy core still overlap. Times have generous bounds and a second
and third chance: the machine has other work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler

from penstock import ConfigError, DataLoader
from penstock.measure import host
from tests.integration.noisy import SIZE, Noisy, epoch


class Sleepy(Noisy):
    """Sample k takes `sample_s`; sample 0 takes `first_s`."""

    def __init__(self, size: int, sample_s: float, first_s: float) -> None:
        super().__init__(size)
        self.sample_s, self.first_s = sample_s, first_s

    def __getitem__(self, key: int) -> Any:
        time.sleep(self.sample_s if key else self.first_s)
        return key


def in_three_tries(measure: Callable[[], float], below: float) -> bool:
    return any(measure() < below for _ in range(3))


# ---- within a batch


class Timed(Sleepy):
    """Sample k says when it began and when it ended, by the clock that all processes share."""

    def __getitem__(self, key: int) -> Any:
        began = time.monotonic()
        super().__getitem__(key)
        return torch.tensor([began, time.monotonic()], dtype=torch.float64)


@pytest.mark.parametrize("settings", [{}, {"collate_fn": torch.stack}])
def test_two_workers_share_the_first_batch(settings: dict[str, Any]) -> None:
    def span_by_work() -> float:
        loader: DataLoader[Any] = DataLoader(Timed(64, 0.01, 0.01), 64, num_workers=2, **settings)
        times = next(iter(loader))
        span = times[:, 1].max() - times[:, 0].min()
        return float(span / (times[:, 1] - times[:, 0]).sum())

    assert in_three_tries(span_by_work, below=0.75)


def test_a_slow_sample_does_not_hold_back_the_next_batches() -> None:
    slow_s = 0.6

    def after_the_slow_batch_s() -> float:
        loader: DataLoader[Any] = DataLoader(Sleepy(32, 0.005, slow_s), 8, num_workers=2, prefetch_batches=4)
        batches = iter(loader)
        next(batches)
        began = time.monotonic()
        assert len(list(batches)) == 3
        return time.monotonic() - began

    # One worker alone prepares the other 24 samples while the slow one sleeps.
    assert in_three_tries(after_the_slow_batch_s, below=slow_s / 4)


class Held(Noisy):
    """Sample 0 waits until it is let go, and counts how often it was begun."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.begun = torch.zeros(1).share_memory_(), torch.zeros(1).share_memory_()

    def __getitem__(self, key: int) -> Any:
        if key == 0:
            self.begun += 1
            deadline = time.monotonic() + 30
            while not self.free and time.monotonic() < deadline:
                time.sleep(0.005)
        return torch.tensor([key])


@pytest.mark.parametrize("settings", [{}, {"collate_fn": torch.stack}])
def test_a_sample_that_takes_for_ever_holds_back_its_own_batch_alone(settings: dict[str, Any]) -> None:
    dataset = Held()
    loader: DataLoader[Any] = DataLoader(
        dataset, 2, num_workers=2, prefetch_batches=4, in_order=False, **settings
    )
    batches = iter(loader)
    others = [int(next(batches)[0]) for _ in range(len(loader) - 1)]
    assert sorted(others) == list(range(2, SIZE, 2))
    dataset.free.fill_(1)
    assert [int(batch[0]) for batch in batches] == [0]
    assert dataset.begun == 1, "a second worker would have been held up too"


def test_tasks_are_as_large_as_asked() -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 6, num_workers=2, task_size=2, persistent_workers=True)
    list(loader)
    assert loader.stats()["task_size"] in (1, 2)
    assert loader.stats()["tasks"] >= 3 * (SIZE // 6)


# ---- across the epoch's edge


class Counted(Noisy):
    """Counts what workers have prepared, in memory that they share."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared = torch.zeros(SIZE, dtype=torch.int64).share_memory_()

    def __getitem__(self, key: int) -> Any:
        self.prepared[key] += 1
        return super().__getitem__(key)

    def reaches(self, count: int, *, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self.prepared.sum() < count and time.monotonic() < deadline:
            time.sleep(0.01)
        return bool(self.prepared.sum() >= count)


EDGES: dict[str, tuple[dict[str, Any], bool]] = {
    "persistent": ({"persistent_workers": True}, True),
    "persistent, shuffled": ({"persistent_workers": True, "shuffle": True}, True),
    "not persistent": ({}, False),
    "persistent, a sampler": ({"persistent_workers": True, "sampler": RandomSampler(range(SIZE))}, False),
    "persistent, a generator": (
        {"persistent_workers": True, "shuffle": True, "generator": torch.Generator()},
        False,
    ),
    "persistent, out of order": ({"persistent_workers": True, "in_order": False}, False),
}


@pytest.mark.parametrize("edge", EDGES)
def test_the_next_epoch_is_begun_only_with_persistent_workers_and_our_order(edge: str) -> None:
    settings, ahead = EDGES[edge]
    dataset = Counted()
    loader: DataLoader[Any] = DataLoader(dataset, 4, num_workers=2, prefetch_batches=3, seed=1, **settings)
    for number in (1, 2):
        list(loader)
        # A task that was queued behind a slow one is taken back, and may have been begun: a few samples are made twice.
        assert dataset.reaches(number * SIZE + 3 * 4, within_s=10.0 if ahead else 0.3) == ahead


def test_nothing_is_prepared_further_ahead_than_asked() -> None:
    dataset = Counted()
    batches = iter(DataLoader(dataset, 2, num_workers=2, prefetch_batches=3, seed=1))
    next(batches)
    assert dataset.reaches(2 * (1 + 3), within_s=10.0)
    time.sleep(0.2)
    assert dataset.prepared.count_nonzero() == 2 * (1 + 3)


def test_an_epoch_that_is_set_to_another_than_the_prefetched_one_is_right() -> None:
    settings: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 1}
    loader: DataLoader[Any] = DataLoader(Noisy(), **settings, num_workers=2, persistent_workers=True)
    list(loader)
    loader.set_epoch(5)
    plain: DataLoader[Any] = DataLoader(Noisy(), **settings)
    plain.set_epoch(5)
    for _ in range(2):
        assert epoch(loader) == epoch(plain)
    assert loader.stats()["epoch"] == plain.stats()["epoch"] == 6


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_set_again_repeats_it(workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4, shuffle=True, seed=1, num_workers=workers)
    first = epoch(loader)
    assert epoch(loader) != first
    loader.set_epoch(0)
    assert epoch(loader) == first


# ---- how many workers


def test_auto_means_this_processs_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setattr(host, "cpu_quota", lambda: 9.5)
    assert DataLoader(Noisy(), num_workers="auto").num_workers == 9
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert DataLoader(Noisy(), num_workers="auto").num_workers == 2


def test_auto_runs_and_reads_back_as_a_number() -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4, num_workers="auto", seed=1)
    assert type(loader.num_workers) is int
    assert loader.num_workers >= 1
    assert epoch(loader) == epoch(DataLoader(Noisy(), 4, seed=1))


def test_other_words_for_a_number_of_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers must be a number or 'auto', got 'many'"):
        DataLoader(Noisy(), num_workers="many")
