"""A program's later random numbers: what `iter()`, the first `next()` and an epoch draw, and how far samplers are read.

Torch's loader draws a base seed at `iter()` and begins the sampler there when it has workers, at the first `next()` when it
has none. Ours must leave torch's global generator and a generator that was passed in exactly the same state at each step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from .datasets import EagerlyRandom, Made, Recorded, Scaled, Streamed
from .harness import Loader, assert_same, next_draws

SIZE = 40
Settings = dict[str, Any]
WORKERS: dict[str, Settings] = {
    "no workers": {},
    "2 workers": {"num_workers": 2},
    "2 persistent workers": {"num_workers": 2, "persistent_workers": True},
    "3 workers, long prefetch": {"num_workers": 3, "prefetch_factor": 4},
}
ORDERS: dict[str, Callable[[torch.Generator], Settings]] = {
    "in order": lambda g: {},
    "in order, generator": lambda g: {"generator": g},
    "shuffle": lambda g: {"shuffle": True},
    "shuffle, generator": lambda g: {"shuffle": True, "generator": g},
    "random": lambda g: {"sampler": RandomSampler(range(SIZE))},
    "random, generator": lambda g: {"sampler": RandomSampler(range(SIZE), generator=g)},
    "replacement": lambda g: {"sampler": RandomSampler(range(SIZE), replacement=True, num_samples=90)},
    "replacement, generator": lambda g: {
        "sampler": RandomSampler(range(SIZE), replacement=True, num_samples=90, generator=g)
    },
    "one generator for both": lambda g: {"sampler": RandomSampler(range(SIZE), generator=g), "generator": g},
    "subset": lambda g: {"sampler": SubsetRandomSampler(range(SIZE))},
    "weighted, generator": lambda g: {"sampler": WeightedRandomSampler([1.0] * SIZE, SIZE, generator=g)},
    "drawn at once": lambda g: {"sampler": EagerlyRandom(SIZE)},
}


def draws_of_two_epochs(
    loader_class: Loader, dataset: Any, settings: Callable[[torch.Generator], Settings]
) -> object:
    """The next draws after every step of two whole epochs and one that is left early."""
    given = torch.Generator().manual_seed(5)
    loader = loader_class(dataset, 4, **settings(given))
    seen = {"constructed": next_draws(given)}
    for epoch in ("first", "second", "left early"):
        iterator = iter(loader)
        seen[f"{epoch}: iter"] = next_draws(given)
        next(iterator)
        seen[f"{epoch}: first next"] = next_draws(given)
        if epoch != "left early":
            for _ in iterator:
                pass
            seen[f"{epoch}: end"] = next_draws(given)
    return seen


@pytest.mark.parametrize(
    ("order", "workers"),
    [
        (order, workers)
        for order in ORDERS
        for workers in WORKERS
        if not workers.startswith("3") or order in {"shuffle", "replacement, generator"}
    ],
)
def test_generators_are_where_torchs_loader_leaves_them_at_every_step(order: str, workers: str) -> None:
    assert_same(
        lambda L: draws_of_two_epochs(L, Scaled(SIZE), lambda g: {**ORDERS[order](g), **WORKERS[workers]})
    )


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("with_generator", [False, True])
def test_an_iterable_dataset_draws_what_it_draws_in_torchs_loader(with_generator: bool, workers: str) -> None:
    assert_same(
        lambda L: draws_of_two_epochs(
            L, Streamed(9), lambda g: {**WORKERS[workers], **({"generator": g} if with_generator else {})}
        )
    )


@pytest.mark.parametrize("workers", WORKERS)
def test_an_empty_epoch_draws_what_torchs_loader_draws(workers: str) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(0), 4, **WORKERS[workers])
        return [list(loader), next_draws(), list(loader), next_draws()]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_seeded_program_gets_torchs_order_and_torchs_later_numbers(num_workers: int) -> None:
    """The common script: one seed at the top, a random sampler, and numbers drawn while it trains."""

    def case(loader_class: Loader) -> object:
        torch.manual_seed(0)
        loader = loader_class(Scaled(10), 3, sampler=RandomSampler(range(10)), num_workers=num_workers)
        return [[batch, torch.rand(2)] for _ in range(2) for batch in loader]

    assert_same(case)


def pulls(loader_class: Loader, settings: Settings) -> tuple[list[list[int]], list[int]]:
    """How often the sampler was begun and read: at the first steps and the last, and in between."""
    sampler = Recorded(60)
    loader = loader_class(Scaled(60), 2, sampler=sampler, **settings)
    edges, between = [[sampler.begun, sampler.taken]], []
    iterator = iter(loader)
    edges.append([sampler.begun, sampler.taken])
    next(iterator)
    edges.append([sampler.begun, sampler.taken])
    for _ in iterator:
        between.append(sampler.taken)
    edges.append([sampler.begun, sampler.taken])
    assert sampler.pids == {os.getpid()}, "samplers are read in the training process"
    return edges, between


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sampler_is_not_read_before_iter_and_then_as_far_as_torch_reads_it(workers: str) -> None:
    assert_same(lambda L: pulls(L, WORKERS[workers])[0])


@pytest.mark.parametrize("workers", WORKERS)
def test_a_sampler_is_never_read_further_ahead_than_torch_reads_it(workers: str) -> None:
    expected: list[list[int]] = []

    def case(loader_class: Loader) -> object:
        between = pulls(loader_class, WORKERS[workers])[1]
        expected.append(between)  # torch's comes first
        return [taken <= limit for taken, limit in zip(between, expected[0], strict=True)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_sampler_is_read_batch_by_batch(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        taken = []

        def batches() -> Iterator[list[int]]:
            for start in range(0, 40, 2):
                taken.append(start)
                yield [start, start + 1]

        iterator = iter(loader_class(Scaled(40), batch_sampler=batches(), num_workers=num_workers))
        counts = [len(taken)]
        next(iterator)
        return [*counts, len(taken)]

    assert_same(case)


def test_drawing_in_the_dataset_of_a_worker_does_not_touch_the_training_process() -> None:
    assert_same(
        lambda L: [len(list(L(Made(6, lambda k: float(torch.rand(()))), 2, num_workers=2))), next_draws()]
    )
