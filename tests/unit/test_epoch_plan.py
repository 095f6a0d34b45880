"""A rank's share of an epoch: what it holds, how it resumes, and that it equals torch's where torch has one."""

import json
import pickle
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import BatchSampler, DistributedSampler

from penstock.errors import ConfigError
from penstock.plan.epoch import EpochPlan


def plan(**changes: Any) -> EpochPlan:
    fields: dict[str, Any] = {"length": 10, "batch_size": 4, "drop_last": False, "shuffle": False}
    return EpochPlan(**{**fields, "seed": 0, "epoch": 0, **changes})


def batches_of(share: EpochPlan) -> list[list[int]]:
    return [share.keys(share.positions(batch)).tolist() for batch in range(share.batches)]


def test_without_ranks_an_epoch_is_every_index_in_batches() -> None:
    assert batches_of(plan()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches_of(plan(drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (plan().samples, plan(drop_last=True).samples) == (10, 8)


def test_ranks_take_turns_and_the_tail_meets_the_beginning_again() -> None:
    shares = [plan(batch_size=2, rank=rank, world=3) for rank in range(3)]
    assert [batches_of(share) for share in shares] == [
        [[0, 3], [6, 9]],
        [[1, 4], [7, 0]],
        [[2, 5], [8, 1]],
    ]
    assert shares[1].positions(1).tolist() == [7, 10]


def test_dropping_drops_what_does_not_fill_every_rank_and_then_the_incomplete_batch() -> None:
    shares = [plan(batch_size=2, rank=rank, world=3, drop_last=True) for rank in range(3)]
    assert [batches_of(share) for share in shares] == [[[0, 3]], [[1, 4]], [[2, 5]]]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("length", "world"), [(10, 1), (10, 3), (2, 5), (1, 7), (12, 4), (13, 4), (0, 1)])
def test_shares_are_those_of_torchs_distributed_sampler(length: int, world: int, drop_last: bool) -> None:
    for rank in range(world):
        sampler = DistributedSampler(range(length), world, rank, shuffle=False, drop_last=drop_last)  # type: ignore[arg-type]
        share = plan(length=length, batch_size=3, rank=rank, world=world, drop_last=drop_last)
        assert batches_of(share) == list(BatchSampler(sampler, 3, drop_last))


def test_part_of_a_batch_can_be_asked_for() -> None:
    share = plan(length=100, batch_size=8, rank=1, world=2, shuffle=True)
    whole = share.positions(2)
    assert share.positions(2, 3).tolist() == whole[3:].tolist()
    assert share.positions(2, 3, 2).tolist() == whole[3:5].tolist()
    assert share.positions(2, 8).size == share.positions(2, 0, 0).size == 0


def test_a_shuffle_depends_on_seed_and_epoch_only() -> None:
    base = plan(length=1000, shuffle=True, seed=3, epoch=5)
    order = base.keys(np.arange(1000)).tolist()
    assert sorted(order) == list(range(1000))
    for same in (replace(base, batch_size=7, drop_last=True), replace(base, world=4, rank=2, origin=8)):
        assert same.keys(np.arange(1000)).tolist() == order
    for other in (replace(base, seed=4), replace(base, epoch=6), replace(base, seed=5, epoch=3)):
        assert sum(np.array(order) == other.keys(np.arange(1000))) < 10


def test_the_position_of_a_key_can_be_found() -> None:
    for shuffle in (False, True):
        share = plan(length=1000, shuffle=shuffle)
        assert share.find(share.keys(np.arange(1000))).tolist() == list(range(1000))


def test_the_rest_of_an_epoch_is_dealt_out_to_another_world() -> None:
    before = [plan(length=20, batch_size=2, rank=rank, world=2) for rank in range(2)]
    after = [replace(before[0], origin=before[0].after(2), rank=rank, world=3) for rank in range(3)]
    assert [batches_of(share)[:2] for share in before] == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    assert [batches_of(share) for share in after] == [
        [[8, 11], [14, 17]],
        [[9, 12], [15, 18]],
        [[10, 13], [16, 19]],
    ]


def test_resuming_in_the_same_world_changes_nothing() -> None:
    for drop_last in (False, True):
        whole = plan(length=103, batch_size=4, rank=1, world=3, shuffle=True, drop_last=drop_last)
        for done in range(whole.batches + 1):
            rest = replace(whole, origin=whole.after(done))
            assert batches_of(rest) == batches_of(whole)[done:]


def test_an_epoch_that_is_over_has_no_rest_in_any_world() -> None:
    done = plan(length=11, batch_size=2, world=3, drop_last=True)
    assert done.after(done.batches) == 11
    assert replace(done, origin=11, world=1).batches == 0
    assert plan(length=0).batches == plan(length=0).samples == plan(length=0).after(0) == 0


def test_a_plan_costs_the_same_for_any_length() -> None:
    share = plan(length=2**62, shuffle=True, rank=3, world=8, batch_size=256)
    keys = share.keys(share.positions(share.batches - 1))
    assert len(set(keys.tolist())) == share.size_of(share.batches - 1) == 256


def test_a_plan_survives_pickle_and_json() -> None:
    share = plan(length=np.int64(50), shuffle=np.True_, seed=2**64 - 1, rank=1, world=2, origin=7)
    assert pickle.loads(pickle.dumps(share)) == share
    assert EpochPlan(**json.loads(json.dumps(asdict(share)))) == share
    assert len(pickle.dumps(share)) < 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": -1}, r"length must be between 0 and 2\*\*62, got -1"),
        ({"length": 2**62 + 1}, "length must be between"),
        ({"length": 1.0}, r"length must be an integer, got 1\.0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"seed": "x"}, "seed must be an integer, got 'x'"),
        ({"world": 0}, "world must be at least 1, got 0"),
        ({"rank": 2, "world": 2}, "rank must be between 0 and 1 in a world of 2, got 2"),
        ({"rank": -1}, "rank must be between 0 and 0 in a world of 1, got -1"),
        ({"origin": 11}, "origin must be between 0 and the length 10, got 11"),
        ({"origin": -1}, "origin must be between 0"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(**changes)


def test_batches_and_samples_out_of_range_are_refused() -> None:
    share = plan()
    for batch in (-1, 3):
        with pytest.raises(IndexError, match=f"batch {batch} of a plan of 3 batches"):
            share.size_of(batch)
    for start, count in ((-1, 1), (0, 3), (2, -1), (3, None)):
        with pytest.raises(IndexError, match="of batch 2, which has 2"):
            share.positions(2, start, count)
    for done in (-1, 4):
        with pytest.raises(IndexError, match=f"after {done} batches of a plan of 3"):
            share.after(done)
