"""Our own order: a loaded state goes on exactly behind the last delivered batch, at once, whatever else has changed.

Every test compares with the run that was never interrupted. States travel through JSON, as in a checkpoint.
"""

from __future__ import annotations

import functools
import json
import time
from typing import Any

import pytest
import torch

from penstock import DataLoader, StateError
from tests.integration.noisy import SIZE, Captioned, Noisy, epoch, frozen, order_of

SIZE_LIMIT = 10_000
"""Bytes of a state."""
BATCHES = -(-SIZE // 4)
State = dict[str, Any]


def make(workers: int = 0, **settings: Any) -> DataLoader[Any]:
    settings = {"dataset": Captioned(), "batch_size": 4, "shuffle": True, "seed": 7, **settings}
    return DataLoader(num_workers=workers, **settings)


@functools.cache
def whole_run() -> list[list[Any]]:
    loader = make()
    return [epoch(loader) for _ in range(4)]


def saved(loader: DataLoader[Any]) -> State:
    text = json.dumps(loader.state_dict())
    assert len(text) < SIZE_LIMIT
    state: State = json.loads(text)
    return state


def resumed(state: State, workers: int = 0, **settings: Any) -> DataLoader[Any]:
    loader = make(workers, **settings)
    loader.load_state_dict(state)
    return loader


def taken(loader: DataLoader[Any], batches: int) -> list[Any]:
    iterator = iter(loader)
    return [frozen(next(iterator)) for _ in range(batches)]


def state_after(epochs: int, batches: int, workers: int = 0, **settings: Any) -> State:
    """The state of a run that was left in its `epochs`-th epoch."""
    loader = make(workers, **settings)
    for _ in range(epochs):
        list(loader)
    if batches:
        iterator = iter(loader)
        for _ in range(batches):
            next(iterator)
    return saved(loader)


PLACES = {
    "before the first batch": (0, 0),
    "after the first": (0, 1),
    "in the middle": (0, 3),
    "before the last": (0, BATCHES - 1),
    "between epochs": (1, 0),
    "several epochs on": (2, 2),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("workers_before", "workers_after"), [(0, 0), (0, 3), (1, 0), (3, 1)])
def test_a_resumed_run_equals_the_uninterrupted_one(
    place: str, workers_before: int, workers_after: int
) -> None:
    at, batches = PLACES[place]
    loader = resumed(state_after(at, batches, workers_before), workers_after)
    assert epoch(loader) == whole_run()[at][batches:]
    assert epoch(loader) == whole_run()[at + 1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("until", ["the last batch", "the end"])
def test_the_last_batch_does_not_end_an_epoch_but_asking_for_one_more_does(workers: int, until: str) -> None:
    loader = make(workers)
    iterator = iter(loader)
    for _ in range(BATCHES):
        next(iterator)
    if until == "the end":
        assert next(iterator, None) is None
    again = resumed(saved(loader), workers)
    if until == "the last batch":
        assert epoch(again) == []
    assert epoch(again) == whole_run()[1]
    assert epoch(again) == whole_run()[2]


SETTINGS: dict[str, State] = {
    "persistent workers": {"workers": 2, "persistent_workers": True},
    "persistent workers, far ahead": {"workers": 2, "persistent_workers": True, "prefetch_batches": 20},
    "one batch ahead": {"workers": 2, "prefetch_batches": 1},
    "tasks of one": {"workers": 2, "task_size": 1},
    "a device": {"workers": 2, "device": "cpu"},
}


@pytest.mark.parametrize("before", SETTINGS)
@pytest.mark.parametrize("after", ["persistent workers, far ahead", "a device"])
def test_settings_may_change_and_what_was_prefetched_does_not_count(before: str, after: str) -> None:
    state = state_after(1, 2, **SETTINGS[before])
    loader = resumed(state, **SETTINGS[after])
    assert epoch(loader) == whole_run()[1][2:]
    assert epoch(loader) == whole_run()[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_may_be_interrupted_twice(workers: int) -> None:
    second = resumed(state_after(0, 2, workers), workers)
    assert taken(second, 2) == whole_run()[0][2:4]
    third = resumed(saved(second), workers)
    assert taken(third, 1) == whole_run()[0][4:5]
    assert epoch(resumed(saved(third), workers)) == whole_run()[0][5:]


def test_a_state_that_was_loaded_and_not_used_is_given_out_again() -> None:
    state = state_after(0, 2)
    loader = resumed(state)
    assert saved(loader) == state


def test_a_loader_goes_back_to_a_state_of_its_own() -> None:
    loader = make(2, persistent_workers=True)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = saved(loader)
    list(iterator)
    loader.load_state_dict(state)
    assert epoch(loader) == whole_run()[0][2:]
    assert epoch(loader) == whole_run()[1]


def test_saving_does_not_change_the_run() -> None:
    loader, batches = make(2), []
    for batch in loader:
        batches.append(frozen(batch))
        saved(loader)
    assert batches == whole_run()[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_without_batches_each_sample_counts(workers: int, shuffle: bool) -> None:
    settings = {"dataset": Noisy(), "batch_size": None, "shuffle": shuffle, "seed": 3}
    whole = epoch(make(**settings))
    state = state_after(0, 5, workers, **settings)
    assert epoch(resumed(state, workers, **settings)) == whole[5:]


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_rest_of_an_epoch_may_be_cut_into_batches_of_another_size(drop_last: bool) -> None:
    state = state_after(0, 2, dataset=Noisy(), drop_last=drop_last)
    whole = torch.cat(list(make(dataset=Noisy())))
    rest = list(resumed(state, 2, dataset=Noisy(), batch_size=6, drop_last=drop_last))
    assert [len(batch) for batch in rest] == [6, 6] + [3] * (not drop_last)
    assert frozen(torch.cat(rest)) == frozen(whole[8 : 8 + sum(map(len, rest))])


def test_a_seed_drawn_from_torch_is_part_of_the_state() -> None:
    torch.manual_seed(1)
    first = make(seed=None)
    head = taken(first, 2)
    torch.manual_seed(2)
    tail = epoch(resumed(saved(first), seed=None))
    torch.manual_seed(1)
    assert head + tail == epoch(make(seed=None))


# ---- what a resume costs


class Counted(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def __getitem__(self, key: int) -> Any:
        self.asked.append(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("sampler", [None, range(SIZE)])
def test_delivered_samples_are_not_loaded_again(sampler: Any) -> None:
    settings = {"sampler": sampler, "shuffle": None} if sampler is not None else {}
    state = state_after(0, 3, dataset=Noisy(), **settings)
    dataset = Counted()
    if sampler is None:
        rest = order_of(resumed(state, dataset=dataset))
    else:
        with pytest.warns(UserWarning, match="exact only if the sampler repeats itself"):
            rest = order_of(resumed(state, dataset=dataset, **settings))
    assert dataset.asked == rest
    assert len(rest) == SIZE - 3 * 4


# ---- in_order=False


class Held(Noisy):
    """One sample holds its batch back until it is let go."""

    def __init__(self, held: int) -> None:
        super().__init__()
        self.held, self.free = held, torch.zeros(1).share_memory_()

    def __getitem__(self, key: int) -> Any:
        deadline = time.monotonic() + 30
        while key == self.held and not self.free and time.monotonic() < deadline:
            time.sleep(0.01)
        return super().__getitem__(key)


@pytest.mark.parametrize("workers_after", [0, 2])
@pytest.mark.parametrize("late", [0, 1])
def test_batches_delivered_out_of_order_are_delivered_exactly_once(late: int, workers_after: int) -> None:
    settings: State = {
        "batch_size": 4,
        "seed": 7,
        "in_order": False,
        "shuffle": True,
    }
    whole = epoch(make(dataset=Noisy(), **{**settings, "in_order": True}))
    dataset = Held(order_of(make(dataset=Noisy(), **settings))[4 * late])
    loader = make(2, dataset=dataset, **settings)
    batches = iter(loader)
    head = [frozen(next(batches)) for _ in range(3)]
    state = saved(loader)
    dataset.free.fill_(1)
    assert (state["batches"], bool(state["beyond"])) == (late, True), "there is a gap before the newest"
    rest = epoch(resumed(state, workers_after, dataset=Noisy(), **settings))
    assert sorted(head + rest) == sorted(whole)


# ---- states that do not fit


def test_a_state_of_a_later_version_says_to_upgrade() -> None:
    with pytest.raises(StateError, match=r"version 99; this penstock reads up to 1: upgrade it"):
        resumed({**state_after(0, 1), "version": 99})


@pytest.mark.parametrize("state", [{}, {"_sampler_iter_yielded": 3}])
def test_something_else_is_not_a_state(state: State) -> None:
    with pytest.raises(StateError, match="not a state of penstock's DataLoader"):
        resumed(state)


def test_a_state_of_another_kind_of_order_is_refused() -> None:
    with pytest.raises(StateError, match="order was planned, this one's is sampled"):
        resumed(state_after(0, 1), shuffle=None, sampler=list(range(SIZE)))


@pytest.mark.parametrize("change", [{"shard": (0, 2)}, {"batch_size": 5}])
def test_batches_out_of_order_cannot_be_cut_anew(change: State) -> None:
    state = {**state_after(0, 1), "beyond": [2]}
    loader = resumed(state, **change)
    for _ in range(2):
        with pytest.raises(StateError, match="it can only be resumed with the same"):
            iter(loader)
        assert loader.state_dict() == state, (
            "nothing is lost: the second iter() does not skip the rest of the epoch"
        )


@pytest.mark.parametrize("seed", [7, 8])
def test_workers_that_stay_draw_by_the_state_that_was_loaded(seed: int) -> None:
    """Also where they have begun with another seed."""
    other = make(seed=seed)
    epoch(other)
    state, rest = saved(other), epoch(other)
    loader = make(2, persistent_workers=True)
    epoch(loader)
    if seed == loader.seed:
        loader.load_state_dict(state)
    else:
        with pytest.warns(UserWarning, match="saved with seed 8, this loader was given seed 7: 8 is used"):
            loader.load_state_dict(state)
    assert epoch(loader) == rest
