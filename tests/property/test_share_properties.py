"""The GPU lane's share: it comes to the best fixed one, follows when capacity changes, and steps back when nobody waits."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.policy.dearest import SLACK, Dearest
from penstock.policy.share import Seen, ShareSearch

BATCH = 256
Draw = Callable[[random.Random], float]
COSTS: dict[str, Draw] = {
    "alike": lambda rng: rng.gauss(2e-3, 1e-4),
    "spread": lambda rng: rng.lognormvariate(-6.4, 0.6),
    "few are dear": lambda rng: 8e-3 if rng.random() < 0.15 else 1e-3,
}


class Plant:
    """Workers, a lane and a training loop, one batch after the other: the slowest of them sets the pace."""

    def __init__(
        self, draw: Draw, *, workers: int, lane_s: float, train_s: float, noise: float, seed: int
    ) -> None:
        self.draw, self.workers, self.lane_s, self.train_s, self.noise = draw, workers, lane_s, train_s, noise
        self.rng, self.dearest = random.Random(seed), Dearest()

    def batch(self, share: float) -> Seen:
        workers_s, packed = 0.0, 0
        for _ in range(BATCH):
            cost = max(1e-5, self.draw(self.rng))
            if self.dearest.takes(cost, share):
                packed += 1
                workers_s += 1e-4  # read and drawn all the same
            else:
                workers_s += cost
        shake = 1.0 + self.rng.uniform(-self.noise, self.noise)
        workers_s *= shake / self.workers
        work_s = 1e-3 + self.lane_s * packed
        period_s = max(workers_s, work_s, self.train_s)
        pull_s = max(0.0, workers_s - work_s)
        return Seen(pull_s, work_s, max(0.0, period_s - work_s - pull_s), BATCH, packed)

    def pace(self, share: float, batches: int = 30) -> float:
        """Samples per second at a fixed share."""
        seen = [self.batch(share) for _ in range(batches)]
        return BATCH * batches / sum(x.pull_s + x.work_s + x.put_s for x in seen)


def best_fixed(make: Callable[[], Plant]) -> float:
    return max(make().pace(at / 40) for at in range(40))


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize(("workers", "lane_s"), [(4, 1e-4), (4, 4e-4), (12, 1e-4), (2, 2e-3)])
def test_within_twenty_batches_the_share_is_as_good_as_the_best_fixed_one(
    costs: str, workers: int, lane_s: float
) -> None:
    def make(seed: int = 1) -> Plant:
        return Plant(COSTS[costs], workers=workers, lane_s=lane_s, train_s=0.0, noise=0.1, seed=seed)

    plant, search = make(7), ShareSearch()
    for _ in range(20):
        search.on_batch(plant.batch(search.share))
    assert make(3).pace(search.share) >= 0.9 * best_fixed(make)


def test_the_share_follows_a_change_of_capacity() -> None:
    plant = Plant(COSTS["spread"], workers=4, lane_s=2e-4, train_s=0.0, noise=0.1, seed=1)
    search = ShareSearch()
    for workers in (4, 16, 4):
        plant.workers = workers
        for _ in range(20):
            search.on_batch(plant.batch(search.share))

        def make(workers: int = workers) -> Plant:
            return Plant(COSTS["spread"], workers=workers, lane_s=2e-4, train_s=0.0, noise=0.1, seed=2)

        assert make().pace(search.share) >= 0.9 * best_fixed(make)


def test_where_training_is_the_bottleneck_the_lane_steps_back() -> None:
    plant = Plant(COSTS["alike"], workers=16, lane_s=1e-4, train_s=0.5, noise=0.1, seed=1)
    search = ShareSearch()
    shares = [search.on_batch(plant.batch(search.share)) for _ in range(30)]
    assert shares[-1] == 0.0
    plant.train_s = 0.0
    for _ in range(20):
        search.on_batch(plant.batch(search.share))
    assert search.share > 0.05, "and comes back"


@given(st.lists(st.floats(0, 10), min_size=50, max_size=400), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_share_is_kept_whatever_the_costs_are(costs: list[float], share: float) -> None:
    dearest = Dearest()
    taken = sum(dearest.takes(cost, share) for cost in costs)
    assert abs(taken - share * len(costs)) <= SLACK + 1


def test_the_dearest_are_taken() -> None:
    rng, dearest = random.Random(0), Dearest()
    costs = [rng.lognormvariate(0, 1) for _ in range(4000)]
    taken = [cost for cost in costs if dearest.takes(cost, 0.3)]
    best = sum(sorted(costs)[-len(taken) :])
    assert sum(taken) > 0.85 * best
