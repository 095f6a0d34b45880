"""The loader as an object: what may be set after construction, copies and pickles, and subclasses of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from .datasets import Made, OutOfOrder, Scaled, keep
from .harness import Loader, assert_same, attempt, drain


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_torch_forbids_to_set_after_construction_is_forbidden(name: str) -> None:
    assert_same(lambda L: attempt(lambda: setattr(L(Scaled(4)), name, None)))


SETTABLE: dict[str, Any] = {
    "num_workers": 1,
    "collate_fn": keep,
    "timeout": 3.0,
    "worker_init_fn": print,
    "generator": None,
    "prefetch_factor": 4,
    "pin_memory": False,
    "in_order": False,
    "multiprocessing_context": "fork",
    "a_users_own": 5,
}


# From 0 workers torch's loader cannot go to others afterwards: its prefetch factor is None then.
@pytest.mark.parametrize(
    ("num_workers", "name"), [(n, name) for n in (0, 2) for name in SETTABLE if n or name != "num_workers"]
)
def test_what_torch_allows_to_set_after_construction_takes_effect(name: str, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(6), batch_size=2, num_workers=num_workers)
        outcome = attempt(lambda: setattr(loader, name, SETTABLE[name]))
        return [outcome, getattr(loader, name), drain(loader)] if name != "in_order" else outcome

    assert_same(case, draws=name != "timeout")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_size_changed_on_the_batch_sampler_is_followed(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader: Any = loader_class(Scaled(6), batch_size=2, num_workers=num_workers)
        loader.batch_sampler.batch_size = 4
        return [drain(loader), len(loader)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_put_into_the_batch_sampler_is_followed(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader: Any = loader_class(Scaled(6), batch_size=2, num_workers=num_workers)
        loader.batch_sampler.sampler = OutOfOrder([5, 0, 3])
        return [drain(loader), len(loader)]

    assert_same(case)


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_copy_of_a_loader_loads_the_same(how: str, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(6, 3), batch_size=2, num_workers=num_workers, collate_fn=keep)
        drain(loader)
        again = COPIES[how](loader)
        return [type(again) is loader_class, drain(again), attempt(lambda: setattr(again, "batch_size", 3))]

    assert_same(case)


def test_a_loader_that_cannot_be_pickled_says_so_as_torchs_does() -> None:
    def case(loader_class: Loader) -> object:
        outcome = attempt(lambda: pickle.dumps(loader_class(Made(4, lambda k: k))))
        return type(outcome).__name__

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_refuses_to_be_pickled_as_torchs_does(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        iterator = iter(loader_class(Scaled(4), num_workers=num_workers))
        outcome: Any = attempt(lambda: pickle.dumps(iterator))
        return outcome.type

    assert_same(case, draws=False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_subclass_with_a_constructor_and_iter_of_its_own_works(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        class Mine(loader_class):  # type: ignore[valid-type, misc]
            def __init__(self, size: int, **kwargs: Any) -> None:
                self.set_before = "too early for torch's restrictions"
                super().__init__(Scaled(size), **kwargs)

            def __iter__(self) -> Any:
                for batch in super().__iter__():
                    yield batch * 2

        return drain(Mine(6, batch_size=2, num_workers=num_workers))

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_rebuilt_from_another_ones_attributes_loads_the_same(num_workers: int) -> None:
    """As trainers do: every parameter is read back from the attribute of its name."""

    def case(loader_class: Loader) -> object:
        first: DataLoader[Any] = loader_class(
            Scaled(7), batch_size=2, num_workers=num_workers, generator=torch.Generator().manual_seed(3)
        )
        names = [
            "dataset",
            "batch_sampler",
            "num_workers",
            "collate_fn",
            "pin_memory",
            "timeout",
            "worker_init_fn",
            "generator",
        ]
        return drain(loader_class(**{name: getattr(first, name) for name in names}))

    assert_same(case)


def test_default_samplers_are_torchs_kinds() -> None:
    def case(loader_class: Loader) -> object:
        plain, shuffled = loader_class(Scaled(4)), loader_class(Scaled(4), shuffle=True)
        return [isinstance(plain.sampler, SequentialSampler), isinstance(shuffled.sampler, RandomSampler)]

    assert_same(case)
