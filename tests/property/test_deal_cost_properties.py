"""Dealing by cost: sums as even as they can be, equal sizes, every rank alike, the same wherever it is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.plan.deal_cost import DEAREST, NEAR, SampleCosts, deal_by_cost
from penstock.plan.epoch import EpochPlan
from tests.owners import costs_like

KINDS = st.sampled_from(["equal", "few", "even", "heavy"])
SEEDS = st.integers(0, 2**32)
WORLDS = st.integers(1, 12)


def sums_of(costs: NDArray[np.int64], ranks: NDArray[np.int64], world: int) -> list[int]:
    return [int(costs[ranks == rank].sum()) for rank in range(world)]


def least_maximum(costs: NDArray[np.int64], world: int) -> float:
    """No deal has a lower maximum: it is at least the mean, and the dearest sample with the cheapest others."""
    size = len(costs) // world
    return max(int(costs.sum()) / world, int(costs.max()) + int(np.sort(costs)[: size - 1].sum()))


@given(kind=KINDS, seed=SEEDS, world=WORLDS, size=st.integers(1, 60), key=SEEDS)
def test_every_rank_gets_equally_many_samples(kind: str, seed: int, world: int, size: int, key: int) -> None:
    costs = costs_like(kind, world * size, seed).values
    ranks = deal_by_cost(costs, world, key=key)
    assert np.bincount(ranks, minlength=world).tolist() == [size] * world
    assert (deal_by_cost(costs, world, key=key) == ranks).all()


@given(kind=KINDS, seed=SEEDS, world=WORLDS, size=st.integers(1, 60))
def test_the_dearest_rank_is_within_one_sample_of_the_least_possible(
    kind: str, seed: int, world: int, size: int
) -> None:
    costs = costs_like(kind, world * size, seed).values
    dearest = max(sums_of(costs, deal_by_cost(costs, world, key=seed), world))
    assert dearest <= least_maximum(costs, world) * (1 + 2.0**-NEAR) + np.ptp(costs)


@given(seed=SEEDS, world=st.integers(2, 12), size=st.integers(16, 60))
def test_sums_of_costs_without_a_heavy_tail_are_even(seed: int, world: int, size: int) -> None:
    costs = costs_like("even", world * size, seed).values
    sums = sums_of(costs, deal_by_cost(costs, world, key=1), world)
    assert max(sums) <= np.mean(sums) * (1 + 2.0**-NEAR)


def test_a_sample_dearer_than_a_share_gets_the_cheapest_others() -> None:
    costs = np.array([1, 9, 100, 2, 8, 50, 3, 7, 4], np.int64)
    ranks = deal_by_cost(costs, 3, key=5)
    assert sorted(sorted(costs[ranks == rank].tolist()) for rank in range(3)) == [
        [1, 2, 100],
        [3, 4, 50],
        [7, 8, 9],
    ]


# ---- the marks


def plan_of(costs: SampleCosts, world: int, batch_size: int, epoch: int = 0) -> EpochPlan:
    return EpochPlan(
        length=len(costs.values),
        batch_size=batch_size,
        drop_last=True,
        shuffle=True,
        seed=6,
        epoch=epoch,
        world=world,
        deal=costs,
    )


def slowest(plan: EpochPlan, costs: SampleCosts) -> list[float]:
    """The dearest rank's part of each global batch, as a multiple of the mean."""
    found = []
    for batch in range(plan.batches):
        positions, ranks = plan.dealt(batch)
        sums = sums_of(costs.values[plan.keys(positions)], ranks, plan.world)
        found.append(max(sums) / float(np.mean(sums)))
    return found


def photos(count: int) -> NDArray[np.float64]:
    return np.random.default_rng(1).lognormal(0, 0.61, count)


def speech(count: int) -> NDArray[np.float64]:
    return np.clip(np.random.default_rng(2).normal(12.3, 3.8, count), 1.4, 24)


@pytest.mark.parametrize("made", [photos, speech])
@pytest.mark.parametrize(("world", "batch_size"), [(2, 32), (8, 32), (8, 256), (64, 32)])
def test_the_slowest_rank_has_two_percent_more_than_the_mean_at_most(
    made: object, world: int, batch_size: int
) -> None:
    assert callable(made)
    costs = SampleCosts.of(made(world * batch_size * 4))
    plan = plan_of(costs, world, batch_size)
    as_is = slowest(replace(plan, deal=None), costs)
    dealt = slowest(plan, costs)
    assert max(dealt) <= 1.002
    assert np.mean(dealt) - 1 <= 0.15 * (np.mean(as_is) - 1)


@pytest.mark.parametrize(("world", "batch_size"), [(2, 32), (8, 32), (8, 256), (64, 32)])
def test_with_a_heavy_tail_the_slowest_rank_is_near_the_least_possible(world: int, batch_size: int) -> None:
    costs = SampleCosts.of(np.random.default_rng(3).pareto(1.5, world * batch_size * 8) + 1)
    plan = plan_of(costs, world, batch_size)
    for batch in range(plan.batches):
        positions, ranks = plan.dealt(batch)
        values = costs.values[plan.keys(positions)]
        assert max(sums_of(values, ranks, world)) <= 1.02 * least_maximum(values, world)


def chi_squared_p(counts: NDArray[np.int64]) -> float:
    """The probability of counts (samples x ranks) that differ at least so much, if each sample is equally likely on each rank."""
    expected = counts.sum(axis=1, keepdims=True) / counts.shape[1]
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.shape[0] * (counts.shape[1] - 1)
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


@pytest.mark.parametrize("kind", ["heavy", "even", "equal"])
def test_each_sample_is_equally_likely_on_each_rank(kind: str) -> None:
    costs, world = costs_like(kind, 96, seed=4), 4
    counts = np.zeros((96, world), np.int64)
    for epoch in range(600):
        plan = plan_of(costs, world, 8, epoch)
        for batch in range(plan.batches):
            positions, ranks = plan.dealt(batch)
            np.add.at(counts, (plan.keys(positions), ranks), 1)
    assert (counts.sum(axis=1) == 600).all()
    dear = counts[np.argsort(-costs.values, kind="stable")[:5]]
    assert 0.001 < chi_squared_p(counts) < 0.999
    assert chi_squared_p(dear) > 0.001


def test_epochs_without_shuffle_are_dealt_alike() -> None:
    one, other = (replace(plan_of(costs_like("heavy", 96), 4, 8, epoch), shuffle=False) for epoch in (0, 1))
    for batch in range(one.batches):
        assert (one.dealt(batch)[1] == other.dealt(batch)[1]).all()


# ---- costs


NORMAL = st.just(0.0) | st.floats(1e-300, 1e300)
"""Far from the smallest float, which has fewer bits and may become 0."""


@given(st.lists(NORMAL, min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_the_unit_of_costs_does_not_matter(costs: list[float], unit: float) -> None:
    one, other = (SampleCosts.of(np.array(costs) * scale) for scale in (1.0, unit))
    assert np.abs(one.values - other.values).max() <= 1
    assert 0 <= one.values.min() <= one.values.max() <= DEAREST


def test_equal_costs_have_equal_digests() -> None:
    one, same, other = (SampleCosts.of(np.array(costs)) for costs in ([1.0, 2.0], [1, 2.0], [1.0, 2.5]))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_what_is_no_cost_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigError, match="the cost of sample 1 is"):
        SampleCosts.of(np.array([1.0, wrong]))
