"""Orders that come from a sampler: torch's are drawn again without loading anything, others too, with a warning."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from penstock import DataLoader
from tests.integration.noisy import SIZE, Noisy, epoch, frozen

BATCHES = -(-SIZE // 4)
Make = Callable[[], Any]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


class OddFirst(Sampler[int]):
    """A sampler of the user's own that repeats itself."""

    def __iter__(self) -> Iterator[int]:
        yield from range(1, SIZE, 2)
        yield from range(0, SIZE, 2)

    def __len__(self) -> int:
        return SIZE


class Stateful(OddFirst):
    """Knows by itself where it stands; another order in each epoch."""

    def __init__(self) -> None:
        self.turn, self.at = 0, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < SIZE:
            self.at += 1
            yield (self.at * (self.turn + 2)) % SIZE
        self.turn, self.at = self.turn + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"turn": self.turn, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.turn, self.at = state["turn"], state["at"]


KNOWN: dict[str, Make] = {
    "sequential": lambda: {"sampler": SequentialSampler(range(SIZE))},
    "random, its generator": lambda: {"sampler": RandomSampler(range(SIZE), generator=seeded())},
    "random, the loader's generator": lambda: {"shuffle": True, "generator": seeded()},
    "random, replacement": lambda: {
        "sampler": RandomSampler(range(SIZE), replacement=True, num_samples=SIZE, generator=seeded())
    },
    "weighted": lambda: {
        "sampler": WeightedRandomSampler(range(1, SIZE + 1), SIZE, generator=seeded())  # type: ignore[arg-type]
    },
    "subset": lambda: {"sampler": SubsetRandomSampler(range(SIZE), generator=seeded())},
    "distributed": lambda: {"sampler": DistributedSampler(range(SIZE), 1, 0, shuffle=True)},
    "a batch sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(SIZE), generator=seeded()), 4, drop_last=False)
    },
    "stateful": lambda: {"sampler": Stateful()},
}
"""Samplers whose place is found again without a warning."""


def make(settings: dict[str, Any], workers: int = 0, **more: Any) -> DataLoader[Any]:
    size = {} if "batch_sampler" in settings else {"batch_size": 4}
    return DataLoader(Noisy(), num_workers=workers, seed=5, **size, **settings, **more)


def run(loader: DataLoader[Any], epochs: int) -> list[Any]:
    """Epochs as a trainer runs them: a sampler that has epochs is told."""
    found = []
    for number in range(epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(number)
        found.append(epoch(loader))
    return found


def left_at(loader: DataLoader[Any], batches: int) -> Any:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize(
    ("kind", "batches"),
    [(kind, batches) for kind in KNOWN for batches in (0, 1, 3, BATCHES - 1, BATCHES)],
)
def test_a_sampler_goes_on_behind_the_last_delivered_batch(kind: str, batches: int) -> None:
    first, second = run(make(KNOWN[kind]()), 2)
    state = left_at(make(KNOWN[kind]()), batches)
    assert len(json.dumps(state)) < 10_000
    loader = make(KNOWN[kind]())
    loader.load_state_dict(state)
    assert epoch(loader) == first[batches:]
    if kind == "distributed":
        loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert epoch(loader) == second


def test_an_epoch_that_is_set_runs_whole_where_the_one_before_has_its_last_batch_in_hand() -> None:
    _, second = run(make(KNOWN["distributed"]()), 2)
    loader = make(KNOWN["distributed"]())
    loader.load_state_dict(left_at(make(KNOWN["distributed"]()), BATCHES))
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert epoch(loader) == second


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2)])
def test_workers_may_change_and_the_next_epoch_follows(kind: str, before: int, after: int) -> None:
    first, second = run(make(KNOWN[kind]()), 2)
    loader = make(KNOWN[kind](), after)
    loader.load_state_dict(left_at(make(KNOWN[kind](), before), 2))
    assert epoch(loader) == first[2:]
    if kind == "distributed":
        loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert epoch(loader) == second


@pytest.mark.parametrize("kind", ["random, its generator", "weighted", "stateful"])
def test_an_epoch_of_a_sampler_may_be_interrupted_twice(kind: str) -> None:
    (whole,) = run(make(KNOWN[kind]()), 1)
    second = make(KNOWN[kind](), 2)
    second.load_state_dict(left_at(make(KNOWN[kind](), 2), 2))
    state = left_at(second, 2)
    third = make(KNOWN[kind](), 2)
    third.load_state_dict(state)
    assert epoch(third) == whole[4:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("what", [RandomSampler, SubsetRandomSampler])
def test_a_sampler_that_draws_from_the_global_generator_resumes_without_disturbing_it(
    workers: int, what: Any
) -> None:
    def fresh() -> DataLoader[Any]:
        return make({"sampler": what(range(SIZE))}, workers)

    torch.manual_seed(1)
    whole = epoch(fresh())
    torch.manual_seed(1)
    state = left_at(fresh(), 2)
    loader = fresh()
    loader.load_state_dict(state)

    torch.manual_seed(8)
    rest = epoch(loader)
    drawn_after = torch.rand(3)
    torch.manual_seed(8)
    torch.empty((), dtype=torch.int64).random_()  # the base seed, as torch's loader draws it; nothing else
    assert rest == whole[2:]
    assert frozen(drawn_after) == frozen(torch.rand(3))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_the_users_own_is_drawn_again_with_a_warning(workers: int) -> None:
    whole = epoch(make({"sampler": OddFirst()}))
    loader = make({"sampler": OddFirst()}, workers)
    loader.load_state_dict(left_at(make({"sampler": OddFirst()}, workers), 2))
    with pytest.warns(UserWarning, match=r"the 2 delivered batches are drawn again .* give it state_dict"):
        rest = epoch(loader)
    assert rest == whole[2:]


def test_a_stateful_samplers_own_word_is_in_the_state() -> None:
    state = left_at(make({"sampler": Stateful()}, 2, prefetch_batches=5), 2)
    assert state["sampler"] == {"turn": 0, "at": 8}, "not as far as it was read ahead"


@pytest.mark.parametrize("batch_size", [4, 1], ids=["short last batch", "even"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_sampler_whose_last_batch_is_in_hand_has_none_left_and_then_its_next_epoch(
    workers: int, batch_size: int
) -> None:
    def fresh() -> DataLoader[Any]:
        return DataLoader(Noisy(), batch_size, num_workers=workers, seed=5, sampler=Stateful())

    straight = fresh()
    _, second = epoch(straight), epoch(straight)
    loader = fresh()
    loader.load_state_dict(left_at(fresh(), len(loader)))
    assert epoch(loader) == []
    assert epoch(loader) == second


@pytest.mark.parametrize("kind", [kind for kind in KNOWN if kind != "stateful"])
def test_torchs_samplers_give_no_warning(kind: str) -> None:
    loader = make(KNOWN[kind]())
    loader.load_state_dict(left_at(make(KNOWN[kind]()), 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


def test_without_batches_a_samplers_order_resumes_by_samples() -> None:
    def fresh() -> DataLoader[Any]:
        return DataLoader(
            Noisy(), batch_size=None, sampler=RandomSampler(range(SIZE), generator=seeded()), seed=5
        )

    loader = fresh()
    loader.load_state_dict(left_at(fresh(), 6))
    assert epoch(loader) == epoch(fresh())[6:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_resumes_with_in_order_off(workers: int) -> None:
    whole = epoch(make(KNOWN["weighted"]()))
    first = make(KNOWN["weighted"](), workers, in_order=False)
    iterator = iter(first)
    head = [frozen(next(iterator)) for _ in range(2)]
    second = make(KNOWN["weighted"](), 2, in_order=False)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert sorted(head + epoch(second)) == sorted(whole)
