"""States at every batch, all kept, and a resume from each of them at the end: the rest of the run that was not interrupted.

Iterable and map-style, with and without a state of its own, shares of unequal length, killed workers, fork and spawn.
`PENSTOCK_FULL=1` tries all combinations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, WeightedRandomSampler, get_worker_info

from penstock import DataLoader
from tests.conftest import FULL
from tests.contract.streams import (
    KINDS,
    Alive,
    Counting,
    Drawing,
    DrawingItself,
    DrawingWithPlace,
    InIterator,
    Shares,
    State,
)
from tests.deaths import kill_all
from tests.integration.noisy import Noisy, epoch, frozen

pytestmark = pytest.mark.filterwarnings("ignore:resuming an iterable dataset without state_dict")
Make = Callable[..., DataLoader[Any]]


def weighted() -> State:
    generator = torch.Generator().manual_seed(3)
    return {"sampler": WeightedRandomSampler(torch.arange(1.0, 23.0), 22, generator=generator)}


MAPS: dict[str, Callable[[], State]] = {
    "sequential": dict,
    "shuffled": lambda: {"shuffle": True},
    "weighted": weighted,
}
STREAMS: dict[str, Any] = {**KINDS, "Alive": Alive}
SIZES = {"even": (8, 8, 8), "uneven": (14, 3, 0), "first empty": (0, 10, 7), "one": (9, 0)}


def maker(kind: str, sizes: str, **settings: Any) -> Make:
    def make(**more: Any) -> DataLoader[Any]:
        own = MAPS[kind]() if kind in MAPS else {}
        dataset = Noisy(22) if kind in MAPS else STREAMS[kind](*SIZES[sizes])
        return DataLoader(dataset, **{"batch_size": 3, "seed": 4, **own, **settings, **more})

    return make


def every_state(make: Make, kill_at: tuple[int, ...] = ()) -> tuple[list[Any], list[State]]:
    """The batches of an epoch, and the states before the first and with each of them in hand."""
    loader, batches, killed = make(), [], 0
    iterator = iter(loader)
    states = [loader.state_dict()]
    for batch in iterator:
        batches.append(frozen(batch))
        states.append(loader.state_dict())
        if len(batches) in kill_at:
            killed += kill_all(loader.stats()["worker_pids"][:1])
    assert killed == len(kill_at)
    return batches, states


def check_all(make: Make, *, kill_at: tuple[int, ...] = (), few: bool = False) -> None:
    whole = epoch(make())
    batches, states = every_state(make, kill_at)
    assert batches == whole
    copies = deepcopy(states)
    chosen = {0, len(states) // 2, len(states) - 1} if few else set(range(len(states)))
    for at in sorted(chosen & set(range(len(states)))):
        loader = make()
        loader.load_state_dict(states[at])
        assert epoch(loader) == whole[at:], f"after {at} batches"
    assert shown(states) == shown(copies), "what was handed out, and loaded, is as it was"


def shown(states: Any) -> str:
    return json.dumps(states, default=lambda value: value.tolist(), sort_keys=True)


@pytest.mark.parametrize("kind", [*MAPS, *STREAMS])
@pytest.mark.parametrize("sizes", ["even", "one"])
def test_without_workers(kind: str, sizes: str) -> None:
    check_all(maker(kind, sizes))


@pytest.mark.parametrize(
    ("kind", "sizes", "workers"),
    product([*MAPS, *STREAMS], SIZES, [1, 2, 3])
    if FULL
    else [
        ("shuffled", "even", 2),
        ("weighted", "even", 2),
        ("Shares", "uneven", 2),
        ("Shares", "first empty", 3),
        ("InDataset", "uneven", 3),
        ("Itself", "uneven", 2),
        ("Itself", "even", 1),
        ("InIterator", "first empty", 3),
        ("InBoth", "uneven", 2),
        ("Shuffled", "even", 2),
        ("Alive", "uneven", 2),
    ],
)
def test_with_workers(kind: str, sizes: str, workers: int) -> None:
    check_all(maker(kind, sizes, num_workers=workers))


@pytest.mark.parametrize("kind", [*MAPS, *STREAMS] if FULL else ["Itself"])
def test_with_workers_that_are_spawned(kind: str) -> None:
    """Their states are those of workers that are forked, and the reverse: a spawned worker takes seconds to begin."""
    forked = maker(kind, "uneven", num_workers=2)
    spawned = maker(kind, "uneven", num_workers=2, multiprocessing_context="spawn")
    whole, states = every_state(forked)
    batches, others = every_state(spawned)
    assert batches == whole
    for make, state, at in [
        (spawned, states[2], 2),
        *((forked, other, at) for at, other in enumerate(others)),
    ]:
        loader = make()
        loader.load_state_dict(state)
        assert epoch(loader) == whole[at:]


@pytest.mark.parametrize(
    "settings",
    [{"persistent_workers": True}, {"device": "cpu"}, {"batch_size": None}, {"snapshot_every_n_steps": 4}],
    ids=str,
)
@pytest.mark.parametrize("kind", ["Shares", "Alive"])
def test_with_other_settings(kind: str, settings: State) -> None:
    check_all(maker(kind, "uneven", num_workers=2, **settings), few=not FULL)


@pytest.mark.parametrize(
    "kind",
    ["shuffled", *(kind for kind in STREAMS if kind != "Shares")]
    if FULL
    else ["shuffled", "Alive", "InIterator"],
)
def test_with_workers_that_are_killed(kind: str) -> None:
    """Those of a stream that keeps its place; others say that their share is lost."""
    make = maker(kind, "even", num_workers=2, batch_size=1, prefetch_factor=1)
    check_all(make, kill_at=(3, 7), few=not FULL)


@pytest.mark.parametrize("kind", ["shuffled", "Itself", "InIterator"])
def test_a_resumed_run_survives_a_killed_worker(kind: str) -> None:
    make = maker(kind, "even", num_workers=2, batch_size=1, prefetch_factor=1)
    whole = epoch(make())
    _, states = every_state(make)
    loader = make()
    loader.load_state_dict(states[5])
    iterator = iter(loader)
    rest = [frozen(next(iterator)) for _ in range(2)]
    assert kill_all(loader.stats()["worker_pids"][1:])
    assert rest + epoch(iterator) == whole[5:]


# ---- a seed


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Drawing, DrawingItself])
def test_with_a_seed_a_stream_draws_the_same_again_and_after_a_resume(kind: Any, workers: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(kind(9, 5), batch_size=2, num_workers=workers, seed=11)

    torch.manual_seed(1)
    straight = make()
    first, second = epoch(straight), epoch(straight)
    assert first != second, "epochs differ"
    torch.manual_seed(2)
    loader = make()
    before = torch.rand(1)
    batches, states = every_state(make)
    torch.manual_seed(2)
    assert (batches, frozen(torch.rand(1))) == (first, frozen(before))
    for at, state in enumerate(states):
        loader.load_state_dict(state)
        assert epoch(loader) == first[at:]
    assert epoch(loader) == second


def test_a_resumed_generator_draws_its_order_again() -> None:
    """Its first sample is augmented in another way; which samples come, and all others, are as they were."""

    def make() -> DataLoader[Any]:
        return DataLoader(DrawingWithPlace(9, 9), batch_size=2, num_workers=2, seed=11)

    whole = list(make())
    _, states = every_state(make)
    loader = make()
    loader.load_state_dict(states[4])
    rest = list(loader)
    assert [batch[:, 0].tolist() for batch in rest] == [batch[:, 0].tolist() for batch in whole[4:]]
    assert [frozen(batch) for batch in rest[2:]] == [frozen(batch) for batch in whole[6:]]


class Seeds(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        yield from (torch.initial_seed() % 2**62, info.seed % 2**62)


def test_a_workers_seed_depends_on_seed_epoch_and_worker() -> None:
    def two_epochs(seed: int) -> list[Any]:
        loader = DataLoader(Seeds(), batch_size=None, num_workers=2, seed=seed)
        return [epoch(loader), epoch(loader)]

    (first, second), again, other = two_epochs(1), two_epochs(1), two_epochs(2)
    assert [first, second] == again
    assert len({*first, *second, *other[0]}) == 6, "info.seed is torch.initial_seed()"


# ---- in_order=False


class Slow(Shares):
    """Worker 1 waits with its first sample until the test lets go."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.free = torch.zeros(1).share_memory_()

    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        deadline = time.monotonic() + 60
        while info is not None and info.id == 1 and not self.free and time.monotonic() < deadline:
            time.sleep(0.01)
        yield from self.numbers()


def test_out_of_order_a_slow_worker_delays_nobody_and_its_share_is_not_lost() -> None:
    dataset = Slow(80, 80)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, in_order=False)
    iterator = iter(loader)
    fast = [next(iterator).tolist() for _ in range(40)]
    assert fast == [[2 * n, 2 * n + 1] for n in range(40)]
    state = loader.state_dict()
    dataset.free.fill_(1)
    slow = sorted(batch.tolist() for batch in iterator)
    assert slow == [[1000 + 2 * n, 1001 + 2 * n] for n in range(40)]
    again = DataLoader(Shares(80, 80), batch_size=2, num_workers=2, in_order=False)
    again.load_state_dict(state)
    assert sorted(batch.tolist() for batch in again) == slow


@pytest.mark.parametrize("kind", [Shares, InIterator])
def test_out_of_order_states_count_what_each_worker_delivered(kind: Any) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(kind(20, 4, 9), batch_size=2, num_workers=3, in_order=False)

    whole = sorted(batch.tolist() for batch in make())
    loader, head, states = make(), [], []
    for batch in loader:
        head.append(batch.tolist())
        states.append(loader.state_dict())
    for at in (1, 5, 9, len(states)):
        again = make()
        again.load_state_dict(states[at - 1])
        assert sorted([*head[:at], *(batch.tolist() for batch in again)]) == whole


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, True)])
@pytest.mark.parametrize("every", [1, 2, 0])
def test_what_a_dataset_carries_is_in_a_state_taken_before_the_first_snapshot_is_due(
    workers: int, persistent: bool, every: int
) -> None:
    """Of the second epoch, and of a run that was resumed between epochs."""

    def fresh(state: Any = None) -> DataLoader[Any]:
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": persistent}
        loader: DataLoader[Any] = DataLoader(Counting(6), 1, snapshot_every_n_steps=every, **options)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    loader = fresh()
    list(loader)
    second = [int(batch) for batch in loader]
    for begun in (loader_after_an_epoch(fresh), fresh(loader_after_an_epoch(fresh).state_dict())):
        batches = iter(begun)
        assert int(next(batches)) == second[0]
        assert [int(batch) for batch in fresh(begun.state_dict())] == second[1:]


def loader_after_an_epoch(fresh: Any) -> Any:
    loader = fresh()
    list(loader)
    return loader
