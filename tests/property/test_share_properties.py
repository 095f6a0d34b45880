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
        self.workers_s = 0.0

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
        self.workers_s = workers_s
        work_s = 1e-3 + self.lane_s * packed
        period_s = max(workers_s, work_s, self.train_s)
        pull_s = max(0.0, workers_s - work_s)
        return Seen(pull_s, work_s, max(0.0, period_s - work_s - pull_s), BATCH, packed, period_s)

    def pace(self, share: float, batches: int = 30) -> float:
        """Samples per second at a fixed share."""
        seen = [self.batch(share) for _ in range(batches)]
        return BATCH * batches / sum(x.period_s for x in seen)


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


@pytest.mark.parametrize(("told", "batches"), [(True, 20), (False, 60)])
def test_the_share_follows_a_change_of_capacity(told: bool, batches: int) -> None:
    """At once where the number of workers says so; otherwise as fast as it shows."""
    plant = Plant(COSTS["spread"], workers=4, lane_s=2e-4, train_s=0.0, noise=0.1, seed=1)
    search = ShareSearch()
    for workers in (4, 16, 4):
        if told:
            search.on_workers(plant.workers, workers)
        plant.workers = workers
        for _ in range(batches):
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


class Line:
    """The same, with all that lies between: workers are `window` batches ahead, three batches are under way in the lane, and a share
    counts for batches that are begun after it was said."""

    def __init__(self, plant: Plant, window: int) -> None:
        self.plant, self.window = plant, window

    def pace(self, share_of: Callable[[Seen | None], float], batches: int, counted: int) -> float:
        """Samples per second of the last batches; `share_of` is told of each batch that is taken."""
        plant, said = self.plant, [(0.0, share_of(None))]
        made, ready, taken = [0.0], [0.0], [0.0]
        for number in range(1, batches + 1):
            begun = max(made[-1], taken[max(0, number - self.window)])
            share = next(value for at, value in reversed(said) if at <= begun)
            seen = plant.batch(share)
            made.append(begun + plant.workers_s)
            arrived = max(made[-1], taken[max(0, number - 3)])
            ready.append(max(arrived, ready[-1]) + seen.work_s)
            asked = taken[-1] + plant.train_s
            taken.append(max(ready[-1], asked))
            told = Seen(
                max(0.0, arrived - ready[-2]),
                seen.work_s,
                max(0.0, asked - ready[-1]),
                BATCH,
                seen.packed,
                taken[-1] - taken[-2],
            )
            said.append((taken[-1], share_of(told)))
        return BATCH * counted / (taken[-1] - taken[-1 - counted])


@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("train_s", [0.0, 0.06, 0.2])
@pytest.mark.parametrize("lane_s", [3e-4])
def test_a_share_that_counts_only_much_later_does_not_swing(
    costs: str, train_s: float, lane_s: float
) -> None:
    def line(seed: int) -> Line:
        return Line(Plant(COSTS[costs], workers=4, lane_s=lane_s, train_s=train_s, noise=0.1, seed=seed), 30)

    search = ShareSearch()
    found = line(7).pace(lambda seen: search.share if seen is None else search.on_batch(seen), 300, 200)
    best = max(line(3).pace(lambda _, at=at: at / 10, 90, 50) for at in range(10))
    assert found >= 0.95 * best


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


def told(search: ShareSearch, batches: int, *, period_s: float, pull: float, put: float, gain: float) -> None:
    for _ in range(batches):
        search.on_batch(Seen(pull * period_s, 0.0, put * period_s, BATCH, 0, period_s, gain))


@pytest.mark.parametrize(("step_s", "alone"), [(0.2, False), (0.5, True)])
def test_workers_are_left_alone_where_that_is_fast_enough_for_training(step_s: float, alone: bool) -> None:
    """They need 0.15 s for a batch that the kernels finish and 0.3 s for a whole one; training then takes longer, or not."""
    search = ShareSearch()
    told(search, 30, period_s=0.15, pull=0.5, put=0.0, gain=2.0)
    assert search.finishes
    told(search, 200, period_s=step_s, pull=0.0, put=1.0, gain=2.0)
    assert search.finishes is not alone
    told(search, 60, period_s=0.3, pull=0.5, put=0.0, gain=2.0)
    assert search.finishes, "and not where training waits"


def test_where_nobody_ever_waits_the_kernels_finish_nothing() -> None:
    search = ShareSearch()
    told(search, 60, period_s=0.2, pull=0.0, put=1.0, gain=0.0)
    assert not search.finishes
    assert search.share == 0.0


@given(st.floats(0.05, 0.7), st.floats(0.0, 0.25), st.integers(0, 2**32 - 1))
def test_what_cannot_be_taken_is_made_up_for_by_others(share: float, hopeless: float, seed: int) -> None:
    """The share is of all samples, also where the dearest cannot be taken."""
    rng, dearest, taken = random.Random(seed), Dearest(), 0
    for _ in range(2000):
        if rng.random() < hopeless:
            dearest.passes(share)
        else:
            taken += dearest.takes(rng.random(), share)
    assert abs(taken / 2000 - share) < 0.02
