"""An epoch begun in one world with `cache=` and resumed in another, with another cache or none: what loaders without a cache deliver, each sample once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from penstock import Cache, DataLoader, ImageFolder
from tests.cache_jobs import (
    CHAIN,
    ROOMY,
    SAMPLES,
    jpeg,
    loader,
    named,
    node,  # noqa: F401 - a fixture
    told,
)
from tests.fault.kill_schedules import digest
from tests.fault.programs import until
from tests.integration.groups import RANKS, facts_of_ranks

pytestmark = pytest.mark.usefixtures("node")

SMALL = Cache(memory="1536KiB")
"""All samples are more than it keeps."""
EVEN = Cache(memory="1MiB", order="even")
State = dict[str, Any]
Sample = tuple[int, str]
"""Its number and a digest of what it was prepared to."""


@pytest.fixture(autouse=True)
def one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun says it: without a process group, ranks of several machines could not agree on an even order."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")


@pytest.fixture
def dataset(tmp_path: Path) -> ImageFolder:
    """1.1 MB. Each photo is a class, so its target is its number."""
    for number in range(SAMPLES):
        path = tmp_path / "data" / f"{number:03}" / "photo.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(jpeg(number, 140))
    return ImageFolder(tmp_path / "data", CHAIN)


def ranks_of(world: int, dataset: Any, cache: Cache | None) -> list[DataLoader[Any]]:
    workers = 0 if cache is None else 1
    return [loader(dataset, cache, shard=(rank, world), num_workers=workers) for rank in range(world)]


def in_step(ranks: Iterable[DataLoader[Any]]) -> list[list[Any]]:
    """What each rank delivers in an epoch; all deliver a batch before one delivers the next."""
    return [list(batches) for batches in zip(*zip(*ranks, strict=True), strict=True)]


def begun(world: int, dataset: Any, cache: Cache | None, batches: int) -> tuple[State, State, list[Sample]]:
    """All ranks deliver so many batches, and end; their state before and after them, and what was delivered."""
    ranks = ranks_of(world, dataset, cache)
    iterators = [iter(rank) for rank in ranks]
    before = states_of(ranks)
    delivered = [next(iterator) for _ in range(batches) for iterator in iterators]
    assert cache is None or told(ranks[0])["samples"]
    return before, states_of(ranks), samples_of(delivered)


def states_of(ranks: list[DataLoader[Any]]) -> State:
    """Any rank's state will do for all; it is stored as JSON."""
    first, *others = [rank.state_dict() for rank in ranks]
    assert others == [first] * len(others)
    found: State = json.loads(json.dumps(first))
    return found


def resumed(world: int, dataset: Any, cache: Cache | None, state: State) -> list[DataLoader[Any]]:
    ranks = ranks_of(world, dataset, cache)
    for rank in ranks:
        rank.load_state_dict(state)
    return ranks


def samples_of(batches: Iterable[Any]) -> list[Sample]:
    """In order of their numbers."""
    return sorted(
        (target, digest(image))
        for images, targets in batches
        for image, target in zip(images, targets.tolist(), strict=True)
    )


def samples_of_ranks(ranks: Iterable[list[Any]]) -> list[Sample]:
    return samples_of(batch for rank in ranks for batch in rank)


def numbers(samples: Iterable[Sample]) -> list[int]:
    return [number for number, _ in samples]


def digests(ranks: Iterable[list[Any]]) -> list[list[str]]:
    return [[digest(batch) for batch in rank] for rank in ranks]


CASES: dict[str, tuple[int, Cache | None, int, int, Cache | None]] = {
    "one rank takes over from two": (2, ROOMY, 3, 1, Cache(memory="2MiB", policy="lru")),
    "three from two": (2, SMALL, 3, 3, Cache(memory="8MiB", policy="lobster")),
    "two from one": (1, Cache(memory="4MiB", policy="no-evict"), 5, 2, SMALL),
    "three without a cache from two": (2, SMALL, 3, 3, None),
    "one from two without a cache": (2, None, 3, 1, SMALL),
    "three that would begin another order": (2, SMALL, 3, 3, EVEN),
}


@pytest.mark.parametrize("case", CASES)
def test_an_epoch_goes_on_in_another_world_with_another_cache(case: str, dataset: Any) -> None:
    before, cache, batches, after, other = CASES[case]
    _, state, delivered = begun(before, dataset, cache, batches)
    ranks, plain = resumed(after, dataset, other, state), resumed(after, dataset, None, state)
    rest = in_step(ranks)
    assert digests(rest) == digests(in_step(plain))
    assert sorted(delivered + samples_of_ranks(rest)) == samples_of(loader(dataset, None, num_workers=0))
    if other is not None:
        found = told(ranks[0])["samples"]
        assert sum(found.values()) == SAMPLES - len(delivered)
        assert found.get("unread", 0) < SAMPLES - len(delivered)
    following = in_step(ranks)
    assert numbers(samples_of_ranks(following)) == [*range(SAMPLES)]
    if other is not EVEN:
        assert digests(following) == digests(in_step(plain))


EVEN_CASES: dict[str, tuple[int, Cache | None]] = {
    "one rank, another order": (1, SMALL),
    "one rank, the same cache": (1, EVEN),
    "three ranks, other memory": (3, Cache(memory="2MiB", order="even")),
    "three ranks, no cache": (3, None),
}


@pytest.mark.parametrize("case", EVEN_CASES)
def test_an_even_epoch_keeps_its_order_in_another_world(case: str, dataset: Any) -> None:
    after, other = EVEN_CASES[case]
    start, state, delivered = begun(2, dataset, EVEN, 3)
    whole = samples_of_ranks(in_step(resumed(2, dataset, None, start)))
    assert numbers(whole) == [*range(SAMPLES)]
    assert whole != samples_of(loader(dataset, None, num_workers=0)), "it is another order"
    ranks = resumed(after, dataset, other, state)
    rest = in_step(ranks)
    assert digests(rest) == digests(in_step(resumed(after, dataset, None, state)))
    assert sorted(delivered + samples_of_ranks(rest)) == whole
    assert numbers(samples_of_ranks(in_step(ranks))) == [*range(SAMPLES)], "the next epoch, too"


@pytest.mark.parametrize("cache", [SMALL, EVEN], ids=["default", "even"])
def test_an_epoch_goes_through_three_worlds_and_caches(cache: Cache, dataset: Any) -> None:
    start, state, delivered = begun(2, dataset, cache, 2)
    ranks = resumed(3, dataset, ROOMY, state)
    iterators = [iter(rank) for rank in ranks]
    delivered += samples_of(next(iterator) for iterator in iterators)
    state = states_of(ranks)
    del ranks, iterators
    delivered += samples_of_ranks(in_step(resumed(2, dataset, cache, state)))
    assert sorted(delivered) == samples_of_ranks(in_step(resumed(1, dataset, None, start)))


def test_another_world_finds_what_is_on_the_disk(dataset: Any, tmp_path: Path) -> None:
    disk: dict[str, Any] = {"disk": "64MiB", "path": tmp_path / "disk", "persistent": True}
    ranks = ranks_of(2, dataset, Cache(memory="8MiB", **disk))
    in_step(ranks)
    iterators = [iter(rank) for rank in ranks]
    delivered = samples_of(next(iterator) for iterator in iterators)
    state = states_of(ranks)
    del ranks, iterators
    ranks = resumed(1, dataset, Cache(memory="2MiB", **disk), state)
    delivered += samples_of_ranks(in_step(ranks))
    plain = loader(dataset, None, num_workers=0)
    plain.set_epoch(1)
    assert sorted(delivered) == samples_of(plain)
    assert told(ranks[0])["samples"]["disk"]


def stretch(
    rank: int, meeting: str, folder: str, data: str, cache: Any, state: State | None, batches: int
) -> None:
    """One of two ranks of a process group: what it delivers from a state on, and its state then."""
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=RANKS)
    mine = loader(ImageFolder(data, CHAIN), Cache(**cache), shard="auto", deal="owner", num_workers=1)
    if state is not None:
        mine.load_state_dict(state)
    iterator = iter(mine)
    found = [samples_of(islice(iterator, batches)), mine.state_dict(), told(mine)["samples"]]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("order", ["as_is", "even"])
def test_ranks_that_are_dealt_samples_leave_an_epoch_to_one_and_take_it_back(
    order: str, dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GROUP", str(tmp_path))
    data, delivered = str(tmp_path / "data"), list[Sample]()

    def by_two(name: str, memory: str, state: State | None, batches: int) -> State:
        (tmp_path / name).mkdir()
        cache = {"memory": memory, "order": order}
        ranks = facts_of_ranks(stretch, tmp_path / name, data, cache, state, batches)
        delivered.extend((number, made) for samples, _, _ in ranks for number, made in samples)
        assert ranks[0][1] == ranks[1][1]
        assert ranks[0][2]
        left: State = ranks[0][1]
        return left

    state = by_two("first", "1MiB", None, 2)
    rest = samples_of_ranks(in_step(resumed(1, dataset, None, state)))
    (alone,) = resumed(1, dataset, SMALL, state)
    iterator = iter(alone)
    delivered += samples_of(islice(iterator, 2))
    state = alone.state_dict()
    del alone, iterator
    state = by_two("last", "2MiB", state, SAMPLES)
    assert state["epoch"] == 1
    assert numbers(sorted(delivered)) == [*range(SAMPLES)]
    assert sorted(delivered[-len(rest) :]) == rest
    until(lambda: len(named("penstock node")) == 1, within_s=10.0, why="a node does not end")
