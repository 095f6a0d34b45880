"""`deal="owner"` and an order that spreads the cache's misses: the same global batches and augmentations, exactly once, through resumes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import SequentialSampler

from penstock import ConfigError, DataLoader, Reuse, StateError
from penstock.policy.homes import Ownership
from tests.deaths import kill_all
from tests.integration.dealt import resumed_by, rows, run_by
from tests.integration.noisy import Batched, Noisy, Ragged, epoch, order_of, shaking
from tests.owners import owners_of

SIZE, BATCH = 90, 4
OWNERS = owners_of([15, 20], gpus=2)
OTHERS = owners_of([9, 9, 30], seed=7)


def make(
    rank: int,
    world: int,
    workers: int = 0,
    *,
    owners: Ownership | None = OWNERS,
    even: bool = False,
    dataset: Any = None,
    **settings: Any,
) -> DataLoader[Any]:
    settings = {
        "batch_size": BATCH,
        "shuffle": True,
        "seed": 9,
        "shard": (rank, world),
        "deal": "owner",
        **settings,
    }
    loader: DataLoader[Any] = DataLoader(dataset or Noisy(SIZE), num_workers=workers, **settings)
    loader._epochs.owners = owners
    loader._epochs.source = replace(loader._epochs.source, evens=even)
    return loader


resumed, run_until = partial(resumed_by, make), partial(run_by, make)


# ---- dealing


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_dealing_changes_who_gets_a_sample_and_nothing_else(shuffle: bool, drop_last: bool) -> None:
    settings = {"shuffle": shuffle, "drop_last": drop_last}
    dealt = [list(make(rank, 4, **settings)) for rank in range(4)]
    not_dealt = [list(make(rank, 4, deal="as_is", **settings)) for rank in range(4)]
    assert [len(batches) for batches in dealt] == [len(batches) for batches in not_dealt]
    for here, there in zip(zip(*dealt, strict=True), zip(*not_dealt, strict=True), strict=True):
        assert [len(batch) for batch in here] == [len(batch) for batch in there]
        assert rows(here) == rows(there), "augmented alike, too"
    homes = OWNERS.homes(SIZE)
    local = [
        sum(homes[order_of(batches)].tolist().count(rank // 2) for rank, batches in enumerate(side))
        for side in (dealt, not_dealt)
    ]
    assert local[0] > 1.4 * local[1]


@pytest.mark.parametrize(
    "settings",
    [{}, {"task_size": 3}, {"dataset": Batched(SIZE)}, {"dataset": Ragged(SIZE), "collate_fn": shaking}],
)
def test_dealt_batches_do_not_depend_on_workers(settings: Any) -> None:
    inline, forked = make(1, 4, **settings), make(1, 4, 2, persistent_workers=True, **settings)
    for _ in range(2):
        assert epoch(inline) == epoch(forked)


def test_dealt_batches_survive_the_death_of_workers_and_agent() -> None:
    loader = make(1, 4, 2, dataset=Noisy(400))
    batches, found = iter(loader), []
    for batch in batches:
        found.append(batch)
        stats = loader.stats()
        assert kill_all(stats["worker_pids"] if len(found) % 2 else [stats["agent_pid"]])
        if len(found) == 2:
            break
    assert epoch([*found, *batches]) == epoch(make(1, 4, dataset=Noisy(400)))
    assert loader.stats()["agent_restarts"] >= 1


@pytest.mark.parametrize("change", [1, -1])
def test_owners_that_change_in_an_epoch_or_at_its_end_change_the_next_one_only(change: int) -> None:
    loaders = [make(rank, 4, 1, persistent_workers=True) for rank in range(4)]
    first = []
    for loader in loaders:
        batches = iter(loader)
        first += [next(batches) for _ in range(change % len(loader))]
        loader._epochs.owners = OTHERS  # at the end, batches of the next epoch are on their way
        first += list(batches)
    again = [batch for rank in range(4) for batch in make(rank, 4)]
    assert epoch(first) == epoch(again)
    for rank, loader in enumerate(loaders):
        fresh = make(rank, 4, owners=OTHERS)
        fresh.set_epoch(1)
        assert epoch(loader) == epoch(fresh)


def test_a_sample_looked_at_alone_is_the_one_of_its_batch() -> None:
    found = {
        row[0].item(): row for rank in range(4) for batch in make(rank, 4, drop_last=True) for row in batch
    }
    loader = make(2, 4, drop_last=True)
    for key, row in found.items():
        assert torch.equal(loader.debug(int(key)), row)
    plan = loader._epochs.plan(0)
    for ordinal, key in enumerate(plan.keys(plan.positions(1)).tolist()):
        where = loader._epochs.where(key, 0)
        assert (where.first, where.start) == (plan.first_of(1), ordinal), "its batch draws, too"


def test_an_error_names_the_position_that_the_sample_has() -> None:
    class Bad(Noisy):
        def __getitem__(self, key: int) -> Any:
            if key == bad:
                raise ValueError("broken")
            return super().__getitem__(key)

    plan = make(0, 4)._epochs.plan(0)
    position = int(plan.positions(1)[2])
    bad = int(plan.keys(plan.positions(1))[2])
    with pytest.raises(ValueError, match="broken") as caught:
        list(make(0, 4, 1, dataset=Bad(SIZE)))
    assert f"sample {bad} (position {position} of epoch 0" in str(caught.value.__notes__)


def test_the_sampler_that_trainers_see_gives_the_dealt_samples() -> None:
    loader = make(3, 4)
    assert list(loader.sampler) == order_of(loader)


# ---- resume


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "owners"), [(4, 4, OTHERS), (4, 3, OWNERS), (2, 5, OTHERS), (3, 1, None)]
)
def test_another_world_with_another_cache_takes_the_rest_over_exactly_once(
    even: bool, before: int, after: int, owners: Ownership | None
) -> None:
    state, delivered = run_until(before, 2, even=even)
    rest = [batch for rank in range(after) for batch in resumed(state, rank, after, owners=owners, even=even)]
    seen = Counter(order_of([*delivered, *rest]))
    assert set(seen) == set(range(SIZE))
    assert sum(seen.values()) == before * 2 * BATCH + after * -(-(SIZE - before * 2 * BATCH) // after)
    uninterrupted = rows(batch for rank in range(before) for batch in make(rank, before, even=even))
    once = {key for key, count in seen.items() if count == 1}
    assert all(row in uninterrupted for row in rows([*delivered, *rest]) if row[0] in once)


def test_an_even_epoch_keeps_its_order_without_a_cache_and_the_next_is_the_new_caches() -> None:
    state, _ = run_until(2, 2, even=True, deal="as_is")
    whole = epoch(make(0, 2, even=True, deal="as_is"))
    for settings in ({"even": True, "owners": OTHERS}, {"even": False, "owners": None}):
        loader = resumed(state, 0, 2, deal="as_is", **settings)
        assert loader.state_dict() == state
        assert epoch(loader) == whole[2:]
        fresh = make(0, 2, deal="as_is", **settings)
        fresh.set_epoch(1)
        assert epoch(loader) == epoch(fresh)


def test_the_state_of_a_resumed_even_epoch_is_the_first_ones() -> None:
    state, _ = run_until(2, 1, even=True)
    loader = resumed(state, 0, 3, owners=OTHERS, even=True)
    next(iter(loader))
    again = loader.state_dict()
    assert (again["even"], again["order_world"]) == (OWNERS.facts(), 2)
    assert len(json.dumps(state)) < 600


def test_an_even_order_lasts_no_longer_than_its_epoch() -> None:
    loader = make(0, 2, even=True)
    batches = list(loader)
    state = loader.state_dict()
    assert "even" not in state
    assert len(batches) == len(list(resumed(state, 0, 2, owners=OTHERS, even=True)))


@pytest.mark.parametrize("batches", [0, 2])
def test_an_epoch_begun_without_a_cache_goes_on_as_it_began(batches: int) -> None:
    state, _ = run_until(2, batches, owners=None, deal="as_is")
    assert not {"even", "order_world"} & set(state)
    plain = epoch(make(0, 2, owners=None, deal="as_is"))
    assert epoch(resumed(state, 0, 2, even=True, deal="as_is")) == plain[batches:]


def test_a_state_between_epochs_begins_the_next_one_evenly() -> None:
    loader = make(0, 2, owners=None, deal="as_is")
    list(loader)
    fresh = make(0, 2, even=True, deal="as_is")
    fresh.set_epoch(1)
    assert epoch(resumed(loader.state_dict(), 0, 2, even=True, deal="as_is")) == epoch(fresh)


def test_batches_out_of_order_go_on_with_the_same_owners_only() -> None:
    loader = make(0, 4)
    next(iter(loader))
    state = loader.state_dict() | {"beyond": [1]}
    assert len(list(resumed(state, 0, 4))) == len(loader) - 2
    with pytest.raises(StateError, match="digest of the owners"):
        list(resumed(state, 0, 4, owners=OTHERS))


# ---- what cannot work


def test_a_world_of_one_has_nobody_to_deal_to() -> None:
    assert epoch(make(0, 1)) == epoch(make(0, 1, deal="as_is"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shard": None}, "needs shard='auto' or"),
        ({"shard": None, "sampler": SequentialSampler(range(SIZE)), "shuffle": None}, "no sampler of yours"),
        ({"sampler": SequentialSampler(range(SIZE)), "shuffle": None}, "would shard twice"),
        ({"even": True, "shuffle": False}, "it needs shuffle=True"),
        (
            {"even": True, "shard": None, "deal": "as_is", "generator": torch.Generator()},
            "generator of yours",
        ),
    ],
)
def test_what_is_missing_is_said_when_the_loader_is_made(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(0, 2, **given)


def test_an_order_spreads_one_kind_of_misses() -> None:
    source = make(0, 2)._epochs.source
    with pytest.raises(ConfigError, match="cannot do both"):
        replace(source, evens=True, times=Reuse().times)
