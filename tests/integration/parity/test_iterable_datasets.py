"""Iterable datasets behave as torch's: the same samples from the same workers in the same order, with torch's seeds."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from .datasets import Counting, Noise, Sharded, Streamed, StreamedWithLength, keep
from .harness import Loader, assert_same, drain, next_draws


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


class Itself(IterableDataset[int]):
    """Its own iterator: one pass for all."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at > 7:
            raise StopIteration
        return self.at


class Ragged(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((k,), k) for k in range(1, 6))


class FirstWorkerOnly(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(9)) if info is None or info.id == 0 else iter(())


def start_at_own_id(worker_id: int) -> None:
    """The other documented way to shard: change the worker's copy of the dataset."""
    info: Any = get_worker_info()
    info.dataset.size = 2 + 3 * worker_id


DATASETS: dict[str, Callable[[], Any]] = {
    "the same in every worker": lambda: Streamed(7),
    "sharded": lambda: Sharded([6, 6]),
    "shards of unequal size": lambda: Sharded([1, 9]),
    "the later shard ends early": lambda: Sharded([9, 1]),
    "one shard is empty": lambda: Sharded([0, 5]),
    "first worker only": FirstWorkerOnly,
    "more shards than workers": lambda: Sharded([3, 1, 4, 1, 5]),
    "empty": lambda: Streamed(0),
    "one sample": lambda: Streamed(1),
    "its own iterator": Itself,
    "chain": lambda: ChainDataset([Streamed(3), Sharded([2, 3])]),
    "sum": lambda: Streamed(3) + Streamed(2),
    "counting passes": lambda: Counting(5),
    "ragged": Ragged,
}
WORKERS: dict[str, dict[str, Any]] = {
    "0": {},
    "2": {"num_workers": 2},
    "2 persistent": {"num_workers": 2, "persistent_workers": True},
    "3 persistent, prefetch 1": {"num_workers": 3, "persistent_workers": True, "prefetch_factor": 1},
}


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        (name, workers)
        for name in DATASETS
        for workers in WORKERS
        if not workers.startswith("3") or "shard" in name or "one" in name
    ],
)
def test_two_epochs_are_torchs(name: str, workers: str) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(DATASETS[name](), 2, **WORKERS[workers])
        return [drain(loader), drain(loader)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_worker_keeps_or_drops_its_own_last_batch(drop_last: bool, num_workers: int) -> None:
    assert_same(lambda L: drain(L(Sharded([4, 5]), 3, drop_last=drop_last, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_batching_samples_come_in_turn_from_the_workers(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Sharded([4, 2]), None, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_dataset_without_end_can_be_left_and_read_again(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Endless(), 3, num_workers=num_workers)
        return [list(itertools.islice(loader, 6)), list(itertools.islice(loader, 2))]

    assert_same(case)


@pytest.mark.parametrize("workers", ["0", "2", "2 persistent"])
def test_random_numbers_in_the_dataset_are_torchs(workers: str) -> None:
    """Worker seeds, and their effect on all three global generators, are torch's own."""

    def case(loader_class: Loader) -> object:
        loader = loader_class(Noise(), 2, **WORKERS[workers])
        return [drain(loader), next_draws(), drain(loader)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_worker_init_fn_can_shard_the_workers_dataset(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Streamed(5), 2, num_workers=num_workers, worker_init_fn=start_at_own_id)))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("claimed", [3, 10])
def test_a_wrong_length_is_warned_about_in_torchs_words(claimed: int, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(StreamedWithLength(5, claimed), None, num_workers=num_workers)
        return [len(loader), drain(loader)]

    assert_same(case)


def test_a_length_never_asked_for_is_never_warned_about() -> None:
    assert_same(lambda L: drain(L(StreamedWithLength(9, 2), 2, num_workers=2)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_worker_info_in_an_iterable_dataset_is_torchs(num_workers: int) -> None:
    class Informed(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = get_worker_info()
            yield info and [info.id, info.num_workers, info.seed, info.dataset is self, type(info).__name__]

    assert_same(lambda L: drain(L(Informed(), 1, collate_fn=keep, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_out_of_order_an_iterable_dataset_loses_nothing(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        batches = loader_class(Sharded([5, 4]), 2, num_workers=num_workers, in_order=False)
        return sorted(key for batch in batches for key in batch.tolist())

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [None, True])
def test_a_datapipe_is_sharded_and_shuffled_as_in_torch(shuffle: bool | None, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipe: Any = IterableWrapper(range(12)).shuffle().sharding_filter()
            loader = loader_class(pipe, 3, shuffle=shuffle, num_workers=num_workers)
        return [drain(loader), drain(loader)]

    assert_same(case)
