"""torch's private parts that we rely on: they exist in this version and do what we take them for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, _utils, get_worker_info
from torch.utils.data._utils.worker import WorkerInfo

from penstock.torch_private import (
    ExceptionWrapper,
    enter_worker,
    numpy_worker_seed,
    tree_flatten,
    tree_unflatten,
    wrap_exception,
)


class Drawn(Dataset[Any]):
    """What a worker of torch's draws first, and how it is seeded."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: int) -> Any:
        info = get_worker_info()
        assert info is not None
        return info.seed, random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.fixture
def no_worker() -> Iterator[None]:
    before = _utils.worker._worker_info
    yield
    _utils.worker._worker_info = before


def test_a_worker_is_asked_for_where_torch_looks(no_worker: None) -> None:
    assert get_worker_info() is None
    dataset = [1, 2]
    enter_worker(2, 5, 77, dataset)
    info = get_worker_info()
    assert isinstance(info, WorkerInfo)
    assert (info.id, info.num_workers, info.seed) == (2, 5, 77)
    assert info.dataset is dataset


class Asked(Drawn):
    def __getitem__(self, key: int) -> Any:
        info = get_worker_info()
        return {n: str(getattr(info, n)) for n in dir(info) if not n.startswith("_") and n != "dataset"}


def test_our_workers_say_what_torchs_say(no_worker: None) -> None:
    (theirs,) = TorchDataLoader(Asked(), batch_size=None, num_workers=1)
    enter_worker(0, 1, int(theirs["seed"]), [])
    assert Asked()[0] == theirs


def test_torchs_workers_seed_the_generators_as_we_do() -> None:
    torch.manual_seed(3)
    ((seed, of_random, of_numpy, of_torch),) = TorchDataLoader(Drawn(), batch_size=None, num_workers=1)
    torch.manual_seed(3)
    base = int(torch.empty((), dtype=torch.int64).random_().item())
    assert seed == base
    assert of_random == random.Random(base).random()
    assert of_torch == float(torch.rand((), generator=torch.Generator().manual_seed(base)))
    assert of_numpy == np.random.RandomState(numpy_worker_seed(base, 0)).random()


def test_workers_get_different_seeds_for_numpy() -> None:
    states = [tuple(numpy_worker_seed(5, worker)) for worker in range(4)]
    assert len(set(states)) == 4
    assert all(0 <= word < 2**32 for state in states for word in state)


class Picky(Exception):
    """Cannot be made from a text alone."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(code, reason)


@pytest.mark.parametrize(
    ("error", "arrives_as"),
    [
        (ValueError("bad pixel"), ValueError),
        (KeyError("bad pixel"), KeyError),
        (StopIteration("bad pixel"), StopIteration),
        (Picky(3, reason="bad pixel"), RuntimeError),
    ],
)
def test_an_exception_is_raised_again_by_torchs_rules(error: Exception, arrives_as: type[Exception]) -> None:
    try:
        raise error
    except Exception:
        wrapped = wrap_exception("in DataLoader worker process 3")
    assert type(wrapped) is ExceptionWrapper
    with pytest.raises(arrives_as, match=r"(?s)in DataLoader worker process 3.*bad pixel"):
        wrapped.reraise()
    assert wrapped.exc_type is type(error)


def test_the_loader_that_we_derive_from_has_the_parts_that_we_override() -> None:
    for name in (
        "_auto_collation",
        "_index_sampler",
        "_iterator",
        "_IterableDataset_len_called",
        "check_worker_number_rationality",
    ):
        assert hasattr(TorchDataLoader([1]), name), name


def test_a_sample_is_taken_apart_in_the_order_in_which_it_is_written() -> None:
    sample = {"b": (1, [2, None]), "a": {"x": "text"}}
    values, spec = tree_flatten(sample)
    assert values == [1, 2, None, "text"]
    assert tree_unflatten([4, 5, 6, 7], spec) == {"b": (4, [5, 6]), "a": {"x": 7}}
