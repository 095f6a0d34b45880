"""Map-style datasets: plain containers, torch's own utilities, whole-batch fetching, no batching, sizes at the edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset, random_split

from .datasets import Made, Scaled, Whole
from .harness import Loader, assert_same, drain


class Sampled(Whole):
    """Whole batches that are a tuple, not a list, and one whose attribute says there are none after all."""

    def __getitems__(self, keys: list[int]) -> Any:
        return tuple(torch.tensor([key, len(keys)]) for key in keys)


class Reluctant(Scaled):
    __getitems__ = None


class Short(Whole):
    """Returns fewer samples than it was asked for, which torch lets pass."""

    def __getitems__(self, keys: list[int]) -> Any:
        return super().__getitems__(keys)[:-1]


class Columns(Whole):
    """Returns a column per field, as table libraries do, for a collate function that knows."""

    def __getitems__(self, keys: list[int]) -> Any:
        return {"key": list(keys), "square": [key * key for key in keys]}


class ByAttribute:
    """Finds `__getitems__` by `__getattr__`, as wrappers do."""

    def __init__(self, inner: Whole) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class OldStyle:
    """A sequence without length or base class that ends by IndexError."""

    def __getitem__(self, key: int) -> int:
        if key >= 5:
            raise IndexError(key)
        return key * 10


DATASETS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1, 2, 3, 4, 5],
    "list of pairs": lambda: [(torch.tensor([k]), k) for k in range(5)],
    "tuple": lambda: ("a", "b", "c"),
    "string": lambda: "abcde",
    "range": lambda: range(7),
    "array": lambda: np.arange(10).reshape(5, 2),
    "tensor": lambda: torch.arange(10).view(5, 2),
    "dict by number": lambda: {k: k * k for k in range(5)},
    "tensor dataset": lambda: TensorDataset(torch.arange(10).view(5, 2), torch.arange(5)),
    "subset": lambda: Subset(Scaled(9), [8, 2, 2, 5]),
    "subset of whole batches": lambda: Subset(Whole(9), [8, 2, 2, 5]),
    "split": lambda: random_split(Scaled(9), [6, 3])[1],
    "split with a generator": lambda: random_split(Scaled(9), [0.5, 0.5], torch.Generator().manual_seed(1))[
        0
    ],
    "concatenation": lambda: ConcatDataset([Scaled(3), Scaled(4, 10)]),
    "sum": lambda: Scaled(3) + Scaled(2, 10),
    "stack": lambda: StackDataset(Scaled(4), [1, 2, 3, 4]),  # type: ignore[arg-type]
    "stack by name": lambda: StackDataset(a=Scaled(4), b=[1, 2, 3, 4]),  # type: ignore[arg-type]
    "whole batches": lambda: Whole(5),
    "whole batches as tuples": lambda: Sampled(5),
    "whole batches turned off": lambda: Reluctant(5),
    "whole batches, too few": lambda: Short(5),
    "whole batches by attribute": lambda: ByAttribute(Whole(5)),
    "empty": lambda: Scaled(0),
    "one sample": lambda: Scaled(1),
    "as many as a batch": lambda: Scaled(2),
}


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_of_this_kind_is_read_as_torch_reads_it(name: str, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(DATASETS[name](), 2, num_workers=num_workers)
        return [[drain(loader) for _ in range(2 if num_workers == 0 else 1)], len(loader)]

    assert_same(case)


@pytest.mark.parametrize(
    "name", ["list", "array", "tensor", "tensor dataset", "subset", "empty", "one sample"]
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_batching_samples_come_one_by_one(name: str, num_workers: int) -> None:
    assert_same(lambda L: drain(L(DATASETS[name](), None, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_batching_a_sampler_can_ask_for_whole_batches(num_workers: int) -> None:
    """The documented way to read batches from a store that has them."""

    def case(loader_class: Loader) -> object:
        data = torch.arange(10)
        return drain(loader_class(data, None, sampler=[[1, 2], [5, 6, 7]], num_workers=num_workers))  # type: ignore[arg-type]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_whole_batches_without_batching_are_not_asked_for(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Whole(3), None, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_columns_from_a_whole_batch_reach_the_collate_function_as_they_are(num_workers: int) -> None:
    assert_same(
        lambda L: drain(L(Columns(5), 2, collate_fn=lambda columns: columns, num_workers=num_workers))
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_whole_batch_is_asked_for_once_with_all_its_keys(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Whole(70), 32, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sequence_without_length_ends_by_its_index_error(num_workers: int) -> None:
    dataset: Any = OldStyle()
    assert_same(lambda L: drain(L(dataset, 2, sampler=range(7), num_workers=num_workers)))


@pytest.mark.parametrize(
    ("num_workers", "size"), [(n, size) for n in (0, 2) for size in (0, 1, 2, 7, 8)] + [(1, 7), (3, 7)]
)
@pytest.mark.parametrize("drop_last", [False, True])
def test_sizes_around_a_batch_and_a_window(size: int, num_workers: int, drop_last: bool) -> None:
    assert_same(lambda L: drain(L(Scaled(size), 2, drop_last=drop_last, num_workers=num_workers)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_larger_than_the_dataset_is_the_dataset(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Scaled(5), 1000, num_workers=num_workers)))


@pytest.mark.parametrize("prefetch_factor", [1, 2, 7])
def test_a_prefetch_factor_changes_nothing_in_the_batches(prefetch_factor: int) -> None:
    assert_same(lambda L: drain(L(Scaled(15), 2, num_workers=2, prefetch_factor=prefetch_factor)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_large_samples_arrive_whole(num_workers: int) -> None:
    def make(key: int) -> dict[str, Any]:
        return {"image": torch.arange(600_000).remainder(251).to(torch.uint8) + key, "small": key}

    def case(loader_class: Loader) -> object:
        loader = loader_class(Made(9, make), 3, num_workers=num_workers)
        return [[int(batch["image"].long().sum()), batch["image"].shape, batch["small"]] for batch in loader]

    assert_same(case)
