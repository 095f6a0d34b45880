"""Datasets with a place of their own: iterable ones go on from their `state_dict`, or are iterated again; others are carried along."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from penstock import DataLoader, StateError
from tests.integration.noisy import SIZE, Noisy, epoch, frozen, order_of


class Counting(IterableDataset[int]):
    """Worker w of n yields w, w + n, w + 2n, …"""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(info.id if info else 0, self.size, info.num_workers if info else 1)


class Stateful(Counting):
    """Knows where it stands."""

    def __init__(self, size: int = SIZE) -> None:
        super().__init__(size)
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        while first + self.at * step < self.size:
            self.at += 1
            yield first + (self.at - 1) * step
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def left_at(loader: DataLoader[Any], batches: int) -> Any:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


def make(dataset: Any, workers: int, **settings: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"batch_size": 3, "num_workers": workers, "seed": 2, **settings})


WORKERS = pytest.mark.parametrize("workers", [0, 1, 3])


@WORKERS
@pytest.mark.parametrize("batches", [1, 2, 5, 7])
def test_a_stateful_stream_goes_on_from_its_own_state(workers: int, batches: int) -> None:
    whole = epoch(make(Stateful(), workers))
    loader = make(Stateful(), workers)
    loader.load_state_dict(left_at(make(Stateful(), workers), batches))
    assert epoch(loader) == whole[batches:]
    assert epoch(loader) == whole, "and the next epoch begins at the start"


@WORKERS
def test_an_epoch_of_a_stateful_stream_may_be_interrupted_twice(workers: int) -> None:
    whole = epoch(make(Stateful(), workers))
    second = make(Stateful(), workers)
    second.load_state_dict(left_at(make(Stateful(), workers), 2))
    third = make(Stateful(), workers)
    third.load_state_dict(left_at(second, 2))
    assert epoch(third) == whole[4:]


def test_a_stateful_stream_resumes_with_persistent_workers_and_one_by_one() -> None:
    whole = [int(sample) for sample in make(Stateful(), 2, batch_size=None)]
    loader = make(Stateful(), 2, batch_size=None, persistent_workers=True)
    loader.load_state_dict(left_at(make(Stateful(), 2, batch_size=None, persistent_workers=True), 7))
    assert [int(sample) for sample in loader] == whole[7:]
    assert [int(sample) for sample in loader] == whole


def test_what_was_read_ahead_of_a_stream_does_not_count() -> None:
    state = left_at(make(Stateful(), 2, prefetch_factor=3), 1)
    assert state["workers"]["0"] == {"batches": 1, "ended": False, "since": 0, "dataset": {"at": 3}}


def test_the_place_of_a_stream_in_more_workers_than_there_are_is_refused() -> None:
    state = left_at(make(Stateful(), 3), 4)
    loader = make(Stateful(), 1)
    loader.load_state_dict(state)
    with pytest.raises(StateError, match="give it as many workers"):
        iter(loader)


@WORKERS
@pytest.mark.parametrize("batches", [0, 1, 4])
def test_a_stream_without_state_is_iterated_again_with_a_warning(workers: int, batches: int) -> None:
    whole = epoch(make(Counting(), workers))
    loader = make(Counting(), workers)
    loader.load_state_dict(left_at(make(Counting(), workers), batches))
    if not batches:
        assert epoch(loader) == whole
        return
    with pytest.warns(UserWarning, match=rf"{batches} batches are prepared again and thrown away"):
        assert epoch(loader) == whole[batches:]


@WORKERS
@pytest.mark.parametrize("dataset", [Counting, Stateful])
def test_an_exhausted_stream_starts_over(workers: int, dataset: Any) -> None:
    loader = make(dataset(), workers)
    whole = epoch(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = make(dataset(), workers)
    resumed.load_state_dict(state)
    assert epoch(resumed) == whole


class Curriculum(Noisy):
    """A map-style dataset with something of its own to remember."""

    level = 0

    def state_dict(self) -> dict[str, int]:
        return {"level": self.level}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.level = state["level"]

    def __getitem__(self, key: int) -> Any:
        return super().__getitem__(key) + self.level


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_a_map_style_dataset_is_carried_along(workers: int) -> None:
    dataset = Curriculum()
    dataset.level = 3
    loader = make(dataset, workers)
    whole = epoch(loader)
    again = make(dataset, workers)
    state = left_at(again, 2)
    assert state["dataset"] == {"level": 3}
    fresh = Curriculum()
    resumed = make(fresh, workers)
    resumed.load_state_dict(state)
    assert fresh.level == 3, "before iter(), so that workers get it"
    assert epoch(resumed) == whole[2:]


def test_a_state_without_a_datasets_word_leaves_the_dataset_alone() -> None:
    state = left_at(make(Noisy(), 0), 2)
    dataset = Curriculum()
    dataset.level = 5
    loader = make(dataset, 0)
    loader.load_state_dict(state)
    assert dataset.level == 5
    assert frozen(order_of(loader)) == frozen([key + 5 for key in range(6, SIZE)])
