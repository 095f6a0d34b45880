"""Order: a sampler, batch sampler or generator given by the user is followed exactly as torch does."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from .datasets import EagerlyRandom, Endless, Keyed, Made, OutOfOrder, Scaled, keep
from .harness import SUBJECT_IS_TORCH, Loader, Unordered, assert_same, drain, subject

SIZE = 11


class Backwards(SequentialSampler):
    """A subclass of a known sampler that is not what its parent is."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source) - 1, -1, -1))


class EvenOnly(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return (key for key in super().__iter__() if key % 2 == 0)


class Doubling(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return (batch * 2 for batch in super().__iter__())


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(77)


def patched() -> SequentialSampler:
    sampler: Any = SequentialSampler(range(SIZE))
    sampler.data_source = range(4)
    return sampler  # type: ignore[no-any-return]


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(range(SIZE)),
    "sequential over less": patched,
    "sequential subclass": lambda: Backwards(range(SIZE)),
    "random": lambda: RandomSampler(range(SIZE)),
    "random subclass": lambda: EvenOnly(range(SIZE)),
    "random, own generator": lambda: RandomSampler(range(SIZE), generator=seeded()),
    "random, replacement": lambda: RandomSampler(range(SIZE), replacement=True),
    "random, replacement, many": lambda: RandomSampler(range(SIZE), replacement=True, num_samples=70),
    "random, replacement, own generator": lambda: RandomSampler(
        range(SIZE), replacement=True, num_samples=70, generator=seeded()
    ),
    "random, fewer": lambda: RandomSampler(range(SIZE), num_samples=5),
    "random, more": lambda: RandomSampler(range(SIZE), num_samples=25, generator=seeded()),
    "subset": lambda: SubsetRandomSampler([2, 3, 5, 7]),
    "subset, own generator": lambda: SubsetRandomSampler([2, 3, 5, 7], generator=seeded()),
    "weighted": lambda: WeightedRandomSampler([0.1] * 5 + [0.9] * 6, 13),
    "weighted, no replacement": lambda: WeightedRandomSampler([0.1] * 5 + [0.9] * 6, 7, replacement=False),
    "weighted, own generator": lambda: WeightedRandomSampler([0.1] * 5 + [0.9] * 6, 13, generator=seeded()),
    "distributed": lambda: DistributedSampler(range(SIZE), num_replicas=2, rank=1),  # type: ignore[arg-type]
    "distributed, in order, dropping": lambda: DistributedSampler(
        range(SIZE),  # type: ignore[arg-type]
        num_replicas=3,
        rank=0,
        shuffle=False,
        drop_last=True,
    ),
    "list": lambda: [4, 4, 0, 10],
    "range": lambda: range(9, 1, -2),
    "array": lambda: np.array([3, 1, 2]),
    "tensor": lambda: torch.tensor([3, 1, 2]),
    "generator object": lambda: (key for key in (5, 6, 7)),
    "custom": lambda: OutOfOrder([6, 0, 6, 1]),
    "custom, draws at once": lambda: EagerlyRandom(SIZE),
    "negative keys": lambda: [-1, -2],
    "empty": list,
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_follow_the_sampler(name: str, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        dataset = [f"sample {k}" for k in range(SIZE)]
        loader: Any = loader_class(dataset, 3, sampler=SAMPLERS[name](), num_workers=num_workers)  # type: ignore[arg-type]
        epochs = 2 if num_workers == 0 or "random" in name or "generator" in name else 1
        return [drain(loader) for _ in range(epochs)]

    assert_same(case)


BATCH_SAMPLERS: dict[str, Callable[[], Any]] = {
    "torch's": lambda: BatchSampler(SequentialSampler(range(SIZE)), 4, drop_last=False),
    "torch's, dropping": lambda: BatchSampler(RandomSampler(range(SIZE)), 4, drop_last=True),
    "torch's over a list": lambda: BatchSampler([5, 2, 9], 2, drop_last=False),
    "subclass": lambda: Doubling(SequentialSampler(range(SIZE)), 4, drop_last=False),
    "list of lists": lambda: [[1, 2], [0], [5, 5, 5]],
    "tuples": lambda: [(1, 2), (3,)],
    "arrays": lambda: np.array([[1, 2], [3, 4]]),
    "tensors": lambda: torch.tensor([[1, 2], [3, 4]]),
    "generator object": lambda: ([k, k + 1] for k in range(4)),
    "distributed inside": lambda: BatchSampler(
        DistributedSampler(range(SIZE), num_replicas=2, rank=0, shuffle=False),  # type: ignore[arg-type]
        2,
        drop_last=False,
    ),
    "empty": list,
    "an empty batch": lambda: [[1], [], [2]],
}


@pytest.mark.parametrize("name", BATCH_SAMPLERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_follow_the_batch_sampler(name: str, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Keyed(), batch_sampler=BATCH_SAMPLERS[name](), num_workers=num_workers)
        return [drain(loader) for _ in range(2 if num_workers == 0 else 1)]

    assert_same(case)


KEYS: list[Any] = [
    7,
    True,
    None,
    2.5,
    2**70,
    -3,
    "a key",
    b"bytes",
    ("a", 1),
    ("nested", ("b", [2])),
    np.int64(5),
    np.int32(6),
    np.str_("numpy's"),
    torch.tensor(8),
    frozenset({1}),
    slice(1, 2),
    {"a": 1},
]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_the_dataset_receives_keys_of_every_type_as_the_sampler_gave_them(
    batch_size: int | None, num_workers: int
) -> None:
    assert_same(
        lambda L: drain(
            L(Keyed(), batch_size, sampler=OutOfOrder(KEYS), num_workers=num_workers, collate_fn=keep)
        )
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_tensor_of_many_keys_can_be_the_sampler(num_workers: int) -> None:
    keys = torch.randperm(300, generator=seeded())
    assert_same(lambda L: drain(L(Scaled(300), 10, sampler=keys, num_workers=num_workers)))


@pytest.mark.skipif(SUBJECT_IS_TORCH, reason="torch's loader does not survive the loss of a worker")
def test_keys_of_every_type_outlive_the_worker_that_had_them(tmp_path: Path) -> None:
    once = tmp_path / "died"

    def dies_once(key: object) -> str:
        if not once.exists():
            once.touch()
            os._exit(1)
        return str(key)

    keys = [torch.tensor(k) for k in range(8)] + [np.int64(9), ("a", torch.tensor(1)), "text"]
    loader = subject()(Made(0, dies_once), 4, sampler=OutOfOrder(keys), num_workers=2, collate_fn=keep)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [text for batch in loader for text in batch] == [str(key) for key in keys]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dict_can_be_a_dataset_of_named_samples(num_workers: int) -> None:
    named = {"cat": 1, "dog": 2, ("cat", "dog"): 3}

    def case(loader_class: Loader) -> object:
        return drain(loader_class(named, 2, sampler=list(named), num_workers=num_workers))  # type: ignore[arg-type]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_empty_batch_is_the_collate_functions_to_handle(num_workers: int) -> None:
    batches = [[1], [], [2, 3]]
    assert_same(
        lambda L: drain(L(Scaled(4), batch_sampler=batches, collate_fn=keep, num_workers=num_workers))
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_sampler_without_end_can_be_left(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(7), batch_sampler=Endless(), num_workers=num_workers)
        return [list(itertools.islice(loader, 5)) for _ in range(2)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_set_on_a_distributed_sampler_changes_the_order_as_in_torch(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        sampler: DistributedSampler[Any] = DistributedSampler(Scaled(SIZE), num_replicas=2, rank=0)
        loader = loader_class(Scaled(SIZE), 2, sampler=sampler, num_workers=num_workers)
        epochs = []
        for epoch in (0, 3):
            sampler.set_epoch(epoch)
            epochs.append(drain(loader))
        return epochs

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_changed_between_epochs_is_followed(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        sampler = OutOfOrder([3, 2])
        loader = loader_class(Scaled(SIZE), 2, sampler=sampler, num_workers=num_workers)
        first = drain(loader)
        sampler.keys = [9, 8, 7]
        return [first, drain(loader), len(loader)]

    assert_same(case)


def flat_epoch(loader: DataLoader[Any]) -> list[object]:
    batches = [batch.tolist() for batch in loader]
    return [[len(batch) for batch in batches], Unordered([key for batch in batches for key in batch])]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_plain_shuffle_gives_every_sample_once_in_batches_of_torchs_sizes(
    num_workers: int, drop_last: bool
) -> None:
    def case(loader_class: Loader) -> object:
        size = 12 if drop_last else 14  # what a shuffle drops is not torch's to say
        loader: Any = loader_class(range(size), 4, shuffle=True, num_workers=num_workers, drop_last=drop_last)  # type: ignore[arg-type]
        return [flat_epoch(loader), flat_epoch(loader)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shuffle_with_a_generator_is_torchs_order(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader: Any = loader_class(range(14), 4, shuffle=True, generator=seeded(), num_workers=num_workers)  # type: ignore[arg-type]
        return [drain(loader), drain(loader)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_shuffle_follows_a_dataset_that_grows(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        dataset = Made(6, int)
        loader = loader_class(dataset, 4, shuffle=True, num_workers=num_workers)
        first = flat_epoch(loader)
        dataset.size = 9
        return [first, flat_epoch(loader), len(loader)]

    assert_same(case)
