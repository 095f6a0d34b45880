"""Orders that come from a sampler: what a state holds at the edges of an epoch, and when an epoch set from outside counts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, Sampler, SequentialSampler

from penstock import DataLoader

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Noisy(Dataset[Any]):
    """Samples that show which index they are and how they were augmented."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random()


def seen(batches: Any) -> list[Any]:
    return [(keys.tolist(), noise.tolist()) for keys, noise in batches]


def with_generator(workers: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(Noisy(), 3, shuffle=True, generator=generator, num_workers=workers, seed=1)


@WORKERS
@pytest.mark.parametrize("until", ["the last batch", "the end"])
def test_after_a_state_at_the_end_of_an_epoch_comes_the_next_one_of_the_samplers_generator(
    workers: int, until: str
) -> None:
    loader = with_generator(workers)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    assert until == "the last batch" or next(batches, None) is None
    state = loader.state_dict()
    following = seen(loader)
    resumed = with_generator(workers)
    resumed.load_state_dict(state)
    if until == "the last batch":
        assert seen(resumed) == []
    assert seen(resumed) == following
    assert state["epoch"] == (0 if until == "the last batch" else 1)


@WORKERS
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_batch_sampler_around_torchs_samplers_resumes_from_its_generator(
    workers: int, wrapped: bool
) -> None:
    def make() -> DataLoader[Any]:
        sampler = torch.utils.data.RandomSampler(range(10), generator=torch.Generator().manual_seed(4))
        batches: Any = BatchSampler(sampler, 3, drop_last=False)
        return DataLoader(
            Noisy(), batch_sampler=Shard(batches) if wrapped else batches, num_workers=workers, seed=1
        )

    whole = seen(make())
    loader = make()
    batches = iter(loader)
    assert seen([next(batches)]) == whole[:1]
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    if wrapped:
        with pytest.warns(UserWarning, match="exact only if the sampler repeats itself"):
            assert seen(resumed) == whole[1:]
    else:
        assert seen(resumed) == whole[1:]


class Shard(Sampler[Any]):
    """A wrapper around a batch sampler, as trainers use them."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batch_sampler)


class Stateful(SequentialSampler):
    """Knows by itself where it stands."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 10:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@WORKERS
def test_after_a_resume_from_a_samplers_own_state_a_short_last_batch_is_augmented_as_before(
    workers: int,
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Noisy(), 3, sampler=Stateful(range(10)), num_workers=workers, seed=1)

    whole = seen(make())
    loader = make()
    batches = iter(loader)
    next(batches)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert seen(resumed) == whole[1:]


def sharded(kind: str, workers: int) -> DataLoader[Any]:
    if kind == "shard":
        return DataLoader(Noisy(), 3, shuffle=True, shard=(0, 2), num_workers=workers, seed=1)
    sampler = DistributedSampler(range(10), num_replicas=2, rank=0, shuffle=True)
    return DataLoader(Noisy(), 3, sampler=sampler, num_workers=workers, seed=1)


@WORKERS
@pytest.mark.parametrize("kind", ["shard", "DistributedSampler"])
def test_an_epoch_set_between_iter_and_the_first_batch_is_the_one_that_runs(kind: str, workers: int) -> None:
    loader = sharded(kind, workers)
    epochs = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        epochs.append(seen(loader))
    assert epochs[0] != epochs[1]

    late = sharded(kind, workers)
    batches = iter(late)
    late.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert seen(batches) == epochs[1]
    assert late.stats()["epoch"] == 1


@pytest.mark.parametrize("kind", ["shard", "DistributedSampler"])
def test_an_epoch_set_after_the_first_batch_counts_for_the_next_iter(kind: str) -> None:
    loader = sharded(kind, 0)
    batches = iter(loader)
    next(batches)
    loader.sampler.set_epoch(5)  # type: ignore[attr-defined]
    list(batches)
    assert loader.stats()["epoch"] == 0
    list(loader)
    assert loader.stats()["epoch"] == 5


def test_epochs_go_on_counting_when_nobody_sets_them() -> None:
    loader = sharded("DistributedSampler", 0)
    noise = [seen(loader) for _ in range(2)]
    assert loader.stats()["epoch"] == 1
    assert [keys for keys, _ in noise[0]] == [keys for keys, _ in noise[1]], "the sampler repeats its order"
    assert noise[0] != noise[1], "but samples are augmented anew"


class FailsOnce(Sampler[int]):
    """Cannot be read the first time that it is asked after `fails` was set: a file of it is not there yet, say."""

    fails = False

    def __iter__(self) -> Iterator[int]:
        for index in range(24):
            if index == 5 and self.fails:
                self.fails = False
                raise OSError("not there yet")
            yield index

    def __len__(self) -> int:
        return 24


@pytest.mark.filterwarnings("ignore:resuming BatchSampler")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_sampler_that_fails_in_iter_uses_up_nothing(persistent: bool) -> None:
    data, sampler = list(range(24)), FailsOnce()
    settings: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "persistent_workers": persistent}
    first: Any = DataLoader(data, sampler=sampler, **settings)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    state = first.state_dict()
    del iterator
    loader: Any = DataLoader(data, sampler=sampler, **settings)
    loader.load_state_dict(state)
    sampler.fails = True
    with pytest.raises(OSError, match="not there yet"):
        iter(loader)
    assert loader.state_dict() == state
    assert [batch.tolist()[0] for batch in loader] == [12, 16, 20]
