"""Dealing a global batch to owners, and the order that spreads samples nobody keeps: exactly once, for any world."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.deal import deal_to_owners
from penstock.plan.even import EvenOrder, KeptSet

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
