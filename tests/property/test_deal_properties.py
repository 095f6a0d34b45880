"""Dealing a global batch to owners, and the order that spreads samples nobody keeps: exactly once, for any world."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.deal import deal_to_owners
from penstock.plan.epoch import EpochPlan
from penstock.plan.even import EvenOrder, KeptSet
from penstock.policy.homes import GroupMember, Ownership, find_homes
from tests.owners import owners_of, some_owners

SEEDS = st.integers(0, 2**32)


@given(SEEDS, st.integers(1, 6), st.integers(1, 4), st.integers(1, 60))
def test_every_rank_gets_as_many_samples_as_without_dealing(
    seed: int, nodes: int, gpus: int, count: int
) -> None:
    ranks = np.arange(count) % (nodes * gpus)
    homes = np.random.default_rng(seed).integers(-1, nodes, count).astype(np.int16)
    dealt = deal_to_owners(homes, ranks, gpus=gpus)
    assert (
        np.bincount(dealt, minlength=nodes * gpus).tolist()
        == np.bincount(ranks, minlength=nodes * gpus).tolist()
    )


@given(SEEDS, st.integers(1, 6), st.integers(1, 4), st.integers(1, 8))
def test_no_node_gives_away_a_sample_it_keeps_and_takes_another(
    seed: int, nodes: int, gpus: int, batch: int
) -> None:
    ranks = np.arange(nodes * gpus * batch) % (nodes * gpus)
    homes = np.random.default_rng(seed).integers(-1, nodes, len(ranks)).astype(np.int16)
    dealt = deal_to_owners(homes, ranks, gpus=gpus)
    for node in range(nodes):
        local = (dealt // gpus == node) & (homes == node)
        assert local.sum() == min((homes == node).sum(), gpus * batch)
        per_rank = np.bincount(dealt[local], minlength=nodes * gpus)[node * gpus : (node + 1) * gpus]
        assert np.ptp(per_rank) <= 1


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 8), (16, 8), (128, 8)])
def test_owners_get_nearly_all_of_a_batch(nodes: int, gpus: int) -> None:
    ranks = np.arange(nodes * gpus * 64) % (nodes * gpus)
    homes = np.random.default_rng(5).integers(0, nodes, len(ranks)).astype(np.int16)
    local = deal_to_owners(homes, ranks, gpus=gpus) // gpus == homes
    assert 0.97 <= local.mean() <= 1.0


@given(SEEDS, st.integers(1, 200), st.integers(0, 100), st.integers(1, 12), st.integers(0, 20))
def test_an_even_order_has_every_sample_once_and_finds_it_again(
    seed: int, length: int, percent: int, world: int, epoch: int
) -> None:
    kept = np.random.default_rng(seed).random(length) * 100 < percent
    order, positions = EvenOrder(KeptSet(kept, seed), epoch, world), np.arange(length, dtype=np.int64)
    samples = order(positions)
    assert sorted(samples.tolist()) == positions.tolist()
    assert (order.inverse(samples) == positions).all()
    assert (order.is_miss(positions) == ~kept[samples]).all()


@given(SEEDS, st.integers(0, 100), st.integers(1, 8), st.integers(1, 9))
def test_every_batch_of_every_rank_has_the_same_misses(
    seed: int, percent: int, world: int, batch: int
) -> None:
    length = world * batch * 7
    kept = np.random.default_rng(seed).random(length) * 100 < percent
    missed = ~kept[EvenOrder(KeptSet(kept, seed), 3, world)(np.arange(length, dtype=np.int64))]
    per_batch = missed.reshape(7, batch, world).sum(axis=1)
    assert np.ptp(per_batch) <= 1


# ---- in an epoch's plan


def plan_of(length: int, batch_size: int, world: int, **owners: Ownership) -> EpochPlan:
    return EpochPlan(
        length=length,
        batch_size=batch_size,
        drop_last=True,
        shuffle=True,
        seed=4,
        epoch=2,
        world=world,
        **owners,
    )


@pytest.mark.parametrize("nodes", [4, 32, 128])
def test_dealing_raises_the_local_share_from_one_in_n_to_nearly_all(nodes: int) -> None:
    world, length = nodes * 8, nodes * 8 * 64 * 3
    owners = owners_of([2 * length // nodes] * nodes, gpus=8)
    shares = []
    for plan in (plan_of(length, 64, world), plan_of(length, 64, world, deal=owners)):
        dealt = [plan.dealt(batch) for batch in range(plan.batches)]
        local = [owners.homes(length)[plan.keys(positions)] == ranks // 8 for positions, ranks in dealt]
        shares.append(np.concatenate(local).mean())
    assert abs(shares[0] - 1 / nodes) < 0.02
    assert shares[1] > 0.97


@given(
    rooms=st.lists(st.integers(0, 80), min_size=1, max_size=4),
    world=st.integers(1, 6),
    batch=st.integers(1, 9),
)
def test_an_even_plan_gives_every_batch_of_every_rank_the_same_misses(
    rooms: list[int], world: int, batch: int
) -> None:
    owners = owners_of(rooms)
    plan = plan_of(world * batch * 5, batch, world, even=owners)
    missed = owners.homes(plan.length)[plan.keys(np.arange(plan.length))] < 0
    assert missed.sum() == max(0, plan.length - sum(rooms))
    assert np.ptp(missed.reshape(5, batch, world).sum(axis=1)) <= 1


@given(some_owners(100))
def test_owners_come_back_out_of_a_checkpoint(owners: Ownership) -> None:
    again = Ownership.of(json.loads(json.dumps(owners.facts())))
    assert again == owners
    assert (again.homes(50) == owners.homes(50)).all()


@pytest.mark.parametrize(
    ("nodes", "share", "alike"), [(1, 0.25, 0.99), (8, 0.1, 0.98), (8, 0.2, 1.0), (64, 0.01, 0.97)]
)
def test_sizes_that_differ_hardly_move_homes(nodes: int, share: float, alike: float) -> None:
    sizes = (np.random.default_rng(3).lognormal(0, 0.5, 50_000) * 97_000).astype(np.int64)
    members = tuple(GroupMember(name=node, room_bytes=int(sizes.sum() * share)) for node in range(nodes))
    owners = Ownership(seed=3, members=members, sample_bytes=int(sizes.mean()), gpus=8)
    assert (owners.homes(len(sizes)) == find_homes(3, members, sizes)).mean() >= alike


@given(
    room=st.integers(0, 100),
    nodes=st.integers(1, 4),
    gpus=st.integers(1, 3),
    batch=st.integers(1, 9),
    data=st.data(),
)
def test_dealing_an_even_order_leaves_misses_where_they_are(
    room: int, nodes: int, gpus: int, batch: int, data: st.DataObject
) -> None:
    owners, world = owners_of([room] * nodes, gpus), nodes * gpus
    plan = plan_of(world * batch * 3, batch, world, even=owners, deal=owners)
    positions, ranks = plan.dealt(data.draw(st.integers(0, 2)))
    missed = owners.homes(plan.length)[plan.keys(positions)] < 0
    assert (ranks[missed] == positions[missed] % world).all()
    assert np.bincount(ranks, minlength=world).tolist() == [batch] * world
    assert np.ptp(np.bincount(ranks[missed], minlength=world)) <= 1


def test_dealing_an_even_order_keeps_nearly_all_samples_local() -> None:
    owners, length = owners_of([768] * 8, gpus=8), 8 * 8 * 64 * 3
    plan = plan_of(length, 64, 64, even=owners, deal=owners)
    dealt = [plan.dealt(batch) for batch in range(plan.batches)]
    homes = [owners.homes(length)[plan.keys(positions)] for positions, _ in dealt]
    local = sum((ranks // 8 == where).sum() for where, (_, ranks) in zip(homes, dealt, strict=True))
    assert local > 0.96 * sum((where >= 0).sum() for where in homes)
