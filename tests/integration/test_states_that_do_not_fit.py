"""A state of another order or another data set is refused, with both values and a way to go on; older states are taken as they are."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from torch.utils.data import RandomSampler, SequentialSampler

from penstock import ConfigError, DataLoader, StateError
from tests.contract.streams import InDataset, Itself, Shares, State
from tests.integration.noisy import Noisy, epoch, order_of


def make(size: int = 20, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Noisy(size), **{"batch_size": 4, "seed": 7, **settings})


def left_at(loader: DataLoader[Any], batches: int) -> State:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state: State = loader.state_dict()
    return state


MISFITS: dict[str, tuple[State, State, str]] = {
    "shuffled": ({}, {"shuffle": True}, "order was sequential, this one's is shuffled"),
    "sequential": ({"shuffle": True}, {}, "order was shuffled, this one's is sequential"),
    "larger": ({}, {"size": 30}, "dataset of 20 samples, this one has 30"),
    "smaller": ({}, {"size": 10}, "dataset of 20 samples, this one has 10"),
    "shuffled and larger": (
        {"shuffle": True},
        {"shuffle": True, "size": 30},
        "of 20 samples, this one has 30",
    ),
    "another sampler": (
        {"sampler": RandomSampler(range(20))},
        {"sampler": SequentialSampler(range(20))},
        "order was RandomSampler, this one's is SequentialSampler",
    ),
    "a sampler": ({}, {"sampler": RandomSampler(range(20))}, "sequential there, RandomSampler here"),
}


@pytest.mark.parametrize("batches", [2, 0])
@pytest.mark.parametrize("misfit", MISFITS)
def test_a_state_of_another_order_or_dataset_is_refused_when_it_is_loaded(misfit: str, batches: int) -> None:
    before, after, said = MISFITS[misfit]
    state = left_at(make(**before), batches)
    loader = make(**after)
    with pytest.raises(StateError, match=said) as caught:
        loader.load_state_dict(state)
    assert "load_state_dict(state, strict=False)" in str(caught.value)
    assert len(order_of(loader)) == after.get("size", 20), "the loader is as it was"


@pytest.mark.parametrize("misfit", [name for name in MISFITS if name not in ("larger", "smaller")])
def test_on_purpose_the_epoch_starts_over_with_the_seed_of_the_state(misfit: str) -> None:
    before, after, _ = MISFITS[misfit]
    first = make(**before, seed=3)
    epoch(first)
    state = left_at(first, 2)
    loader = make(**after, seed=None)
    loader.load_state_dict(state, strict=False)
    assert sorted(order_of(loader)) == list(range(after.get("size", 20)))
    assert (loader.stats()["epoch"], loader.state_dict()["seed"]) == (1, 3)


@pytest.mark.parametrize(("size", "rest"), [(30, range(8, 30)), (10, range(8, 10)), (6, range(0))])
def test_on_purpose_a_sequential_order_goes_on_at_its_position(size: int, rest: range) -> None:
    loader = make(size)
    loader.load_state_dict(left_at(make(), 2), strict=False)
    assert order_of(loader) == list(rest)
    assert order_of(loader) == list(range(size))


def test_a_map_style_state_does_not_fit_an_iterable_dataset() -> None:
    loader = DataLoader(Shares(9), batch_size=4, seed=7)
    with pytest.raises(
        StateError, match=r"planned, this one's is streamed \(sequential there, iterable here\)"
    ):
        loader.load_state_dict(left_at(make(), 2))
    loader.load_state_dict(left_at(make(), 2), strict=False)
    assert [number for batch in loader for number in batch.tolist()] == list(range(9))


@pytest.mark.parametrize("change", [{"batch_size": 5}, {"num_workers": 2}, {"shard": (1, 2)}], ids=str)
def test_other_batches_workers_and_ranks_fit(change: State) -> None:
    loader = make(**change)
    loader.load_state_dict(left_at(make(), 2))
    assert order_of(loader) == (list(range(9, 20, 2)) if "shard" in change else list(range(8, 20)))


def test_the_seed_of_the_state_wins_and_a_warning_says_so() -> None:
    whole = epoch(make(shuffle=True, seed=3))
    state = left_at(make(shuffle=True, seed=3), 2)
    loader = make(shuffle=True)
    with pytest.warns(
        UserWarning, match="saved with seed 3, this loader was given seed 7: 3 is used"
    ) as caught:
        loader.load_state_dict(state)
    assert caught[0].filename == __file__
    assert epoch(loader) == whole[2:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in (None, 3):
            loader = make(shuffle=True, seed=seed)
            loader.load_state_dict(state)
            assert epoch(loader) == whole[2:]


@pytest.mark.parametrize("every", [-1, 1.5, "2", True])
def test_an_interval_of_snapshots_that_is_no_number_is_refused(every: Any) -> None:
    with pytest.raises(ConfigError, match="snapshot_every_n_steps must be"):
        make(snapshot_every_n_steps=every)


def test_a_dataset_that_lost_its_state_dict_is_named() -> None:
    state = left_at(DataLoader(Itself(9), batch_size=2), 2)
    loader = DataLoader(Shares(9), batch_size=2)
    loader.load_state_dict(state)
    with pytest.raises(StateError, match=r"the dataset's own state, but Shares has no state_dict\(\)"):
        list(loader)


class Secretive(InDataset):
    def state_dict(self) -> State:
        return {"at": self.at, "how": lambda: self.at}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_cannot_be_pickled_is_an_error_of_who_asks_for_it(workers: int) -> None:
    loader = DataLoader(Secretive(6), batch_size=2, num_workers=workers)
    iterator = iter(loader)
    assert len(list(iterator)) == 3
    next(iter(loader))
    with pytest.raises(StateError, match="cannot be pickled"):
        loader.state_dict()


# ---- older states

HEAD: State = {"version": 1, "epoch": 0, "beyond": []}
STREAMED: State = {**HEAD, "order": "streamed", "seed": 2, "batches": 2}


def test_an_older_state_of_our_own_order_goes_on_and_is_not_asked_what_it_does_not_say() -> None:
    state = {**HEAD, "order": "planned", "seed": 7, "batches": 2, "position": 8, "cut": [4, 1]}
    loader = make(shuffle=True)
    loader.load_state_dict(state)
    assert epoch(loader) == epoch(make(shuffle=True))[2:]


def test_an_older_state_of_a_sampler_goes_on() -> None:
    loader = make(sampler=SequentialSampler(range(20)))
    loader.load_state_dict({**HEAD, "order": "sampled", "seed": 7, "batches": 2})
    assert epoch(loader) == epoch(make(sampler=SequentialSampler(range(20))))[2:]


@pytest.mark.parametrize("kind", [InDataset, Itself])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_older_state_of_a_stateful_stream_goes_on(workers: int, kind: Any) -> None:
    entry = {"at": 3, "left": [3, 4, 5, 6, 7, 8]}
    states = {"0": {"dataset": entry, "ended": False}}
    loader = DataLoader(kind(9, 9), batch_size=3, num_workers=workers)
    if workers:
        states["1"] = {"dataset": {"at": 3, "left": [1003, 1004, 1005, 1006, 1007, 1008]}, "ended": False}
    whole = epoch(DataLoader(kind(9, 9), batch_size=3, num_workers=workers))
    last = max(0, workers - 1)
    loader.load_state_dict({**STREAMED, "batches": last + 1, "workers": states, "last_worker": last})
    assert epoch(loader) == whole[last + 1 :]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_older_state_of_another_stream_is_iterated_again(workers: int) -> None:
    def fresh() -> DataLoader[Any]:
        return DataLoader(Shares(9, 4), batch_size=3, num_workers=workers)

    loader = fresh()
    loader.load_state_dict(STREAMED)
    with pytest.warns(UserWarning, match="2 batches are prepared again") as caught:
        iterator = iter(loader)
    assert caught[0].filename == __file__
    rest = epoch(iterator)
    assert rest == epoch(fresh())[2:]
