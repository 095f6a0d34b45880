"""The constructor: torch's parameters in torch's order, its errors word for word, its warnings and its attributes."""

from __future__ import annotations

import inspect
import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data._utils.collate import default_collate, default_convert

from .datasets import Keyed, Scaled, Streamed, StreamedWithLength, keep
from .harness import Loader, assert_same, attempt, subject

ERRORS: dict[str, Callable[[Loader], object]] = {
    "no dataset": lambda L: L(),  # type: ignore[call-arg]
    "unknown keyword": lambda L: L(Scaled(4), wrokers=2),  # type: ignore[call-arg]
    "too many positional": lambda L: L(*[Scaled(4)] * 15),  # type: ignore[arg-type]
    "negative workers": lambda L: L(Scaled(4), num_workers=-1),
    "workers None": lambda L: L(Scaled(4), num_workers=None),  # type: ignore[arg-type]
    "negative timeout": lambda L: L(Scaled(4), timeout=-1),
    "prefetch without workers": lambda L: L(Scaled(4), prefetch_factor=2),
    "negative prefetch": lambda L: L(Scaled(4), num_workers=2, prefetch_factor=-1),
    "persistent without workers": lambda L: L(Scaled(4), persistent_workers=True),
    "sampler and shuffle": lambda L: L(Scaled(4), sampler=[0, 1], shuffle=True),
    "batch_sampler and batch_size": lambda L: L(Scaled(4), batch_sampler=[[0]], batch_size=2),
    "batch_sampler and batch_size None": lambda L: L(Scaled(4), batch_sampler=[[0]], batch_size=None),
    "batch_sampler and shuffle": lambda L: L(Scaled(4), batch_sampler=[[0]], shuffle=True),
    "batch_sampler and sampler": lambda L: L(Scaled(4), batch_sampler=[[0]], sampler=[0]),
    "batch_sampler and drop_last": lambda L: L(Scaled(4), batch_sampler=[[0]], drop_last=True),
    "drop_last without batches": lambda L: L(Scaled(4), batch_size=None, drop_last=True),
    "batch_size zero": lambda L: L(Scaled(4), batch_size=0),
    "batch_size negative": lambda L: L(Scaled(4), batch_size=-3),
    "batch_size float": lambda L: L(Scaled(4), batch_size=2.5),  # type: ignore[arg-type]
    "batch_size bool": lambda L: L(Scaled(4), batch_size=True),
    "batch_size str": lambda L: L(Scaled(4), batch_size="2"),  # type: ignore[arg-type]
    "drop_last None": lambda L: L(Scaled(4), drop_last=None),  # type: ignore[arg-type]
    "drop_last int": lambda L: L(Scaled(4), drop_last=1),  # type: ignore[arg-type]
    "shuffle of nothing": lambda L: L([], shuffle=True),  # type: ignore[arg-type]
    "shuffle without length": lambda L: L(Keyed(), shuffle=True),
    "iterable and shuffle": lambda L: L(Streamed(4), shuffle=True),
    "iterable and sampler": lambda L: L(Streamed(4), sampler=[0, 1]),
    "iterable and batch_sampler": lambda L: L(Streamed(4), batch_sampler=[[0, 1]]),
    "iterable and odd shuffle": lambda L: L(Streamed(4), shuffle="yes"),  # type: ignore[arg-type]
    "context without workers": lambda L: L(Scaled(4), multiprocessing_context="fork"),
    "unknown context": lambda L: L(Scaled(4), num_workers=2, multiprocessing_context="thread"),
    "context of a wrong type": lambda L: L(Scaled(4), num_workers=2, multiprocessing_context=3),
    "no errors at all": lambda L: L(Scaled(4)) and None,
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_argument_gets_torchs_error_word_for_word(name: str) -> None:
    assert_same(lambda L: attempt(lambda: ERRORS[name](L)))


ERRORS_AT_ITER: dict[str, Callable[[Loader], DataLoader[Any]]] = {
    "timeout without workers": lambda L: L(Scaled(4), timeout=3),
    "prefetch zero": lambda L: L(Scaled(4), num_workers=2, prefetch_factor=0),
    "no length": lambda L: L(Keyed(), batch_size=2),
    "no length, workers": lambda L: L(Keyed(), batch_size=2, num_workers=2),
    "sampler is not iterable": lambda L: L(Scaled(4), sampler=3),  # type: ignore[arg-type]
    "batch_sampler is not iterable": lambda L: L(Scaled(4), batch_sampler=3),  # type: ignore[arg-type]
}


# What torch's iterator says from `__del__` when its constructor raised is torch's affair.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function _MultiProcessing:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("name", ERRORS_AT_ITER)
def test_what_torch_refuses_only_when_iterated_is_refused_then(name: str) -> None:
    assert_same(lambda L: attempt(lambda: next(iter(ERRORS_AT_ITER[name](L)))), draws=False)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "batch_size": {"batch_size": 3},
    "batch_size None": {"batch_size": None},
    "shuffle": {"shuffle": True},
    "shuffle off": {"shuffle": False},
    "sampler": {"sampler": [3, 1, 2]},
    "batch_sampler": {"batch_sampler": [[1, 2], [3]]},
    "workers": {"num_workers": 2},
    "prefetch": {"num_workers": 2, "prefetch_factor": 5},
    "collate": {"collate_fn": keep},
    "pinned": {"pin_memory": True, "pin_memory_device": "cuda"},
    "drop_last": {"drop_last": True, "batch_size": 3},
    "timeout": {"timeout": 2.5, "num_workers": 1},
    "worker_init_fn": {"worker_init_fn": print},
    "context by name": {"multiprocessing_context": "fork", "num_workers": 1},
    "context": {"multiprocessing_context": multiprocessing.get_context("spawn"), "num_workers": 1},
    "generator": {"generator": torch.Generator(), "shuffle": True},
    "persistent": {"persistent_workers": True, "num_workers": 2},
    "in_order": {"in_order": False},
    "more workers than cores": {"num_workers": 513},
}
ATTRIBUTES = [
    "dataset",
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "in_order",
    "drop_last",
    "sampler",
    "batch_sampler",
    "generator",
    "collate_fn",
    "persistent_workers",
    "_dataset_kind",
    "_auto_collation",
    "_iterator",
    "_IterableDataset_len_called",
]


def public_view(value: object) -> object:
    """Samplers by type and settings, everything else as it is."""
    if isinstance(value, BatchSampler):
        return ["batches of", public_view(value.sampler), value.batch_size, value.drop_last]
    if isinstance(value, RandomSampler):
        return ["random", value.replacement, value.num_samples, value.generator]
    if isinstance(value, SequentialSampler):
        return ["sequential", len(value)]
    return value


@pytest.mark.parametrize("name", ARGUMENTS)
def test_attributes_and_warnings_are_torchs(name: str) -> None:
    dataset = Scaled(7)

    def case(loader_class: Loader) -> object:
        loader = loader_class(dataset, **ARGUMENTS[name])
        assert loader.dataset is dataset
        return {"length": len(loader), **{a: public_view(getattr(loader, a)) for a in ATTRIBUTES}}

    assert_same(case)


def test_torchs_own_collate_functions_are_the_defaults() -> None:
    assert subject()(Scaled(4)).collate_fn is default_collate
    assert subject()(Scaled(4), batch_size=None).collate_fn is default_convert


def test_the_first_seventeen_parameters_are_torchs_and_ours_are_keywords() -> None:
    def parameters(loader_class: Loader) -> list[tuple[str, object, object]]:
        found = inspect.signature(loader_class).parameters.values()
        return [(p.name, p.kind, p.default) for p in found]

    torchs = parameters(DataLoader)
    assert len(torchs) == 17
    assert parameters(subject())[:17] == torchs
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind, _ in parameters(subject())[17:])


def test_positional_arguments_mean_what_they_mean_to_torch() -> None:
    generator = torch.Generator()

    def case(loader_class: Loader) -> object:
        positional = (Scaled(6), 2, True, None, None, 1, keep, False, True, 9.0, print, "fork", generator)
        loader = loader_class(*positional)
        return {a: public_view(getattr(loader, a)) for a in ATTRIBUTES}

    assert_same(case)


def test_our_loader_is_a_subclass_that_can_be_subscripted() -> None:
    assert issubclass(subject(), DataLoader)
    assert subject()[int] is not None  # type: ignore[index]


@pytest.mark.parametrize(
    "make",
    [
        lambda L: L(Scaled(7), batch_size=3),
        lambda L: L(Scaled(7), batch_size=3, drop_last=True),
        lambda L: L(Scaled(7), batch_size=None),
        lambda L: L(Scaled(0), batch_size=3),
        lambda L: L(Scaled(7), sampler=range(5), batch_size=2),
        lambda L: L(Scaled(7), sampler=(i for i in range(3))),
        lambda L: L(Scaled(7), batch_sampler=[[1], [2]]),
        lambda L: L(Scaled(7), batch_sampler=iter([[1], [2]])),
        lambda L: L(Keyed(), batch_size=2),
        lambda L: L(Streamed(7), batch_size=2),
        lambda L: L(StreamedWithLength(7, 7), batch_size=2),
        lambda L: L(StreamedWithLength(7, 7), batch_size=2, drop_last=True),
        lambda L: L(StreamedWithLength(7, 7), batch_size=None),
    ],
)
def test_len_is_torchs_or_its_error(make: Callable[[Loader], DataLoader[Any]]) -> None:
    assert_same(lambda L: attempt(lambda: len(make(L))))
    assert_same(lambda L: attempt(lambda: len(iter(make(L)))), draws=False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinning_without_an_accelerator_warns_as_torch_does(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        return list(loader_class(Scaled(4), batch_size=2, pin_memory=True, num_workers=num_workers))

    assert_same(case)


def test_a_pinning_device_is_deprecated_in_torchs_words() -> None:
    assert_same(lambda L: list(L(Scaled(4), batch_size=2, pin_memory=True, pin_memory_device="cuda")))
