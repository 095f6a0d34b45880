"""What torchdata's `StatefulDataLoader` promises, held by both loaders: ours takes its place.

`tests/property/test_states_at_every_batch.py` holds more of ours: live states, datasets that start over at their end, killed workers.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.contract.loaders import each_loader, each_workers, kinds_of, left_at, resumed, seen, stored
from tests.contract.streams import (
    KINDS,
    Counting,
    Endless,
    InBoth,
    InDataset,
    InIterator,
    Itself,
    Shares,
    SlowToBegin,
    State,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:resuming an iterable dataset without state_dict"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata's constructor
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torchdata says in its log that it fast-forwards; logging turned into an error is no part of the contract."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


# ---- iterable datasets


@each_loader
@each_workers
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_goes_on_behind_the_batch_in_hand(kind: str, workers: int, loader_class: Any) -> None:
    make = kinds_of(loader_class, lambda: KINDS[kind](10, 4), num_workers=workers)
    whole = seen(make())
    # At its end this dataset starts over, and torchdata asks it nevertheless.
    starts_over = kind == "InDataset" and loader_class is StatefulDataLoader
    for batches in (1, 2, len(whole) - 1)[: 1 if starts_over else 3]:
        assert seen(resumed(make, left_at(make(), batches))) == whole[batches:]


@each_loader
@each_workers
def test_an_epoch_may_be_interrupted_again_and_again(workers: int, loader_class: Any) -> None:
    make = kinds_of(loader_class, lambda: InIterator(10, 7), num_workers=workers)
    whole, got = seen(make()), []
    state = left_at(make(), 0)
    for _ in range(len(whole)):
        loader = resumed(make, state)
        got += seen([next(iter(loader))])
        state = stored(loader.state_dict())
    assert got == whole
    assert seen(resumed(make, state)) == []


@each_loader
@each_workers
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_batch_in_hand_leaves_none_and_then_comes_the_next_epoch(
    kind: str, workers: int, loader_class: Any
) -> None:
    make = kinds_of(loader_class, lambda: KINDS[kind](9, 6), num_workers=workers)
    straight = make()
    first, second = seen(straight), seen(straight)
    loader = resumed(make, left_at(make(), len(first)))
    assert [seen(loader), seen(loader)] == [[], second]


@each_loader
@each_workers
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_taken_after_the_end_begins_the_next_epoch(
    kind: str, workers: int, loader_class: Any
) -> None:
    make = kinds_of(loader_class, lambda: KINDS[kind](9, 6), num_workers=workers)
    straight = make()
    _, second = seen(straight), seen(straight)
    loader = make()
    seen(loader)
    assert seen(resumed(make, stored(loader.state_dict()))) == second


@each_loader
@pytest.mark.parametrize("settings", [{}, {"num_workers": 2, "persistent_workers": True}], ids=["0", "2"])
def test_what_a_dataset_carries_from_epoch_to_epoch_is_in_the_state(
    settings: State, loader_class: Any
) -> None:
    make = kinds_of(loader_class, lambda: Counting(6, 6), **settings)
    straight = make()
    epochs = [seen(straight) for _ in range(4)]
    assert epochs[1] != epochs[0]
    loader = make()
    seen(loader)
    between = stored(loader.state_dict())
    within = left_at(loader, 1)
    assert seen(resumed(make, between)) == epochs[1]
    late = resumed(make, within)
    assert [seen(late), seen(late)] == [epochs[1][1:], epochs[2]]


@each_loader
def test_what_a_dataset_carries_is_in_a_state_taken_before_all_workers_have_begun(loader_class: Any) -> None:
    make = kinds_of(loader_class, lambda: SlowToBegin(6, 6), num_workers=2, persistent_workers=True)
    straight = make()
    epochs = [seen(straight) for _ in range(2)]
    loader = make()
    seen(loader)
    assert seen(resumed(make, left_at(loader, 1))) == epochs[1][1:]


@each_loader
@each_workers
@pytest.mark.parametrize("when", ["before iter", "after iter"])
def test_a_state_taken_before_the_first_batch_resumes_into_the_whole_epoch(
    when: str, workers: int, loader_class: Any
) -> None:
    make = kinds_of(loader_class, lambda: InBoth(5, 5), num_workers=workers)
    loader = make()
    batches = iter(loader) if when == "after iter" else loader
    state = stored(loader.state_dict())
    assert seen(resumed(make, state)) == seen(batches) == seen(make())


@each_loader
@each_workers
@pytest.mark.parametrize("kind", [InBoth, InDataset])
def test_a_state_taken_before_the_first_batch_holds_the_dataset(
    kind: Any, workers: int, loader_class: Any
) -> None:
    def advanced() -> Any:
        dataset = kind(8, 8)
        dataset.load_state_dict({"level": 2, "at": 3})
        return dataset

    loader = kinds_of(loader_class, advanced, num_workers=workers)()
    iterator = iter(loader)
    state = stored(loader.state_dict())
    plain = kinds_of(loader_class, lambda: kind(8, 8), num_workers=workers)
    assert seen(resumed(plain, state)) == seen(iterator)


@each_loader
@each_workers
@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("kind", [InDataset, InIterator])
def test_snapshots_may_be_taken_less_often(kind: Any, every: int, workers: int, loader_class: Any) -> None:
    make = kinds_of(
        loader_class, lambda: kind(11, 11), num_workers=workers, snapshot_every_n_steps=every, batch_size=2
    )
    whole = seen(make())
    for batches in (1, 2, 5):
        assert seen(resumed(make, left_at(make(), batches))) == whole[batches:]


@each_loader
@each_workers
@pytest.mark.parametrize(
    "settings",
    [{"drop_last": True}, {"batch_size": None}, {"collate_fn": list}, {"batch_size": 1}, {"batch_size": 50}],
    ids=str,
)
def test_batches_may_be_of_any_kind(settings: State, workers: int, loader_class: Any) -> None:
    make = kinds_of(loader_class, lambda: InIterator(7, 5), num_workers=workers, **settings)
    whole = seen(make())
    batches = min(2, len(whole))
    assert seen(resumed(make, left_at(make(), batches))) == whole[batches:]


@each_loader
@each_workers
def test_a_stream_without_end_goes_on(workers: int, loader_class: Any) -> None:
    make = kinds_of(loader_class, lambda: Endless(1, 1), num_workers=workers)
    straight, loader = iter(make()), iter(resumed(make, left_at(make(), 5)))
    expected = seen(next(straight) for _ in range(9))
    assert seen(next(loader) for _ in range(4)) == expected[5:]


def shares_by_worker(worker: int) -> None:
    info: Any = get_worker_info()
    info.dataset.sizes = (4, 9)[worker : worker + 1]


@each_loader
def test_a_worker_init_fn_may_divide_the_data(loader_class: Any) -> None:
    make = kinds_of(loader_class, lambda: InIterator(6), num_workers=2, worker_init_fn=shares_by_worker)
    whole = seen(make())
    assert seen(resumed(make, left_at(make(), 3))) == whole[3:]


@each_loader
def test_workers_that_stay_take_a_state_between_epochs_and_within_one(loader_class: Any) -> None:
    make = kinds_of(loader_class, lambda: Itself(8, 5), num_workers=2, persistent_workers=True)
    loader = make()
    whole = seen(loader)
    state = left_at(make(), 2)
    loader.load_state_dict(state)
    assert [seen(loader), seen(loader)] == [whole[2:], whole]


@each_loader
@each_workers
def test_a_loaded_state_that_was_not_used_is_given_out_again(workers: int, loader_class: Any) -> None:
    make = kinds_of(loader_class, lambda: InIterator(8, 8), num_workers=workers)
    again = stored(resumed(make, left_at(make(), 2)).state_dict())
    assert seen(resumed(make, again)) == seen(make())[2:]


@each_loader
def test_a_place_in_two_workers_is_no_place_in_three(loader_class: Any) -> None:
    state = left_at(kinds_of(loader_class, lambda: InIterator(8, 8), num_workers=2)(), 2)
    with pytest.raises((AssertionError, ValueError)):
        list(resumed(kinds_of(loader_class, lambda: InIterator(8, 8), num_workers=3), state))


@each_loader
@each_workers
def test_an_error_of_the_dataset_is_the_users_own_and_the_state_before_it_is_good(
    workers: int, loader_class: Any
) -> None:
    make = kinds_of(loader_class, lambda: Fragile(9, 9), num_workers=workers, batch_size=2)
    loader, got = make(), []

    def to_its_end() -> None:
        for batch in loader:
            got.extend(seen([batch]))
            states.append(stored(loader.state_dict()))

    states: list[State] = []
    with pytest.raises(LookupError, match="no more today"):
        to_its_end()
    sound = kinds_of(loader_class, lambda: Itself(9, 9), num_workers=workers, batch_size=2)
    assert got + seen(resumed(sound, states[-1])) == seen(sound())


class Fragile(Itself):
    def __next__(self) -> int:
        if len(self.left) == 4:
            raise LookupError("no more today")
        return super().__next__()


# ---- the class


@each_loader
def test_a_subclass_may_wrap_states(loader_class: Any) -> None:
    """As torchtitan's loader does."""

    class Ranked(loader_class):  # type: ignore[misc]
        def state_dict(self) -> State:
            return {"rank 0": pickle.dumps(super().state_dict())}

        def load_state_dict(self, state: State) -> None:
            if state:
                super().load_state_dict(pickle.loads(state["rank 0"]))

    make = kinds_of(Ranked, lambda: Itself(9, 9), num_workers=2)
    loader = resumed(make, left_at(make(), 2))
    loader.load_state_dict({})
    assert seen(loader) == seen(make())[2:]
    assert isinstance(loader, torch.utils.data.DataLoader)


@each_loader
def test_torchs_keywords_and_theirs_are_taken_and_kept(loader_class: Any) -> None:
    loader = loader_class(Shares(9), 4, None, None, None, 1, snapshot_every_n_steps=5, prefetch_factor=3)
    assert (loader.snapshot_every_n_steps, loader.prefetch_factor, loader.num_workers) == (5, 3, 1)
    assert loader_class(Shares(9)).snapshot_every_n_steps == 1


@each_loader
@each_workers
def test_a_loader_goes_back_to_an_earlier_state_of_its_own(workers: int, loader_class: Any) -> None:
    loader = kinds_of(loader_class, lambda: InIterator(9, 9), num_workers=workers)()
    whole = seen(loader)
    state = left_at(loader, 2)
    seen(loader)
    loader.load_state_dict(state)
    assert seen(loader) == whole[2:]
    loader.load_state_dict(state)
    assert seen(loader) == whole[2:]
