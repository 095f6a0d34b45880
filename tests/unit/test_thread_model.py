"""Dividing threads between preparing and fetching: fitted on one sweep, checked on another."""

from __future__ import annotations

import math
import random

import pytest

from penstock.errors import ConfigError
from penstock.policy.thread_model import (
    FetchModel,
    PiecewiseLine,
    PrepareModel,
    RankDemand,
    divide_threads,
    fetch_s,
    fitted,
    search_threads,
    share_threads,
)

FLAT = PiecewiseLine(((1.0, 100.0),))
SHARED = PiecewiseLine(((1.0, 100.0), (4.0, 100.0), (16.0, 25.0)))
"""One thread reads 100 bytes/s; together they read at most about 400."""
FETCH = FetchModel(local=PiecewiseLine(((1.0, 1e6),)), peers=FLAT, source=SHARED)


def demand(source: float = 0.0, peers: float = 0.0, samples: int = 10) -> RankDemand:
    return RankDemand(samples=samples, local_bytes=0.0, peer_bytes=peers, source_bytes=source)


def real_rate(threads: int, peak: int = 8) -> float:
    """What a machine might do: nearly linear up to its cores, then a little less."""
    return 50.0 * min(threads, peak) * 0.98**threads - 3.0 * max(0, threads - peak)


# ---- models


def test_a_fit_predicts_a_sweep_it_has_not_seen() -> None:
    rng = random.Random(4)
    seen = [
        (n, real_rate(n) * rng.uniform(0.97, 1.03)) for n in (1, 2, 4, 6, 8, 10, 12, 16) for _ in range(3)
    ]
    line = fitted(seen)
    for threads in (3, 5, 7, 9, 11, 13, 14, 15):
        assert line.at(threads) == pytest.approx(real_rate(threads), rel=0.06)
    straight = fitted([seen[0], seen[-1]])
    assert abs(straight.at(8) / real_rate(8) - 1) > 0.2  # bends matter here


def test_a_straight_line_needs_no_bend() -> None:
    rng = random.Random(1)
    line = fitted([(n, 10.0 * n + rng.uniform(-0.5, 0.5)) for n in range(1, 13) for _ in range(2)])
    assert len(line.points) == 2


def test_beyond_what_was_measured_the_last_value_holds() -> None:
    line = PiecewiseLine(((2.0, 10.0), (4.0, 30.0)))
    assert [line.at(x) for x in (1, 2, 3, 4, 9)] == [10, 10, 20, 30, 30]
    with pytest.raises(ConfigError):
        fitted([(1.0, 2.0), (1.0, 3.0)])


def test_preparation_takes_the_fewest_threads_near_its_peak() -> None:
    model = PrepareModel({1000: fitted([(n, real_rate(n, 4)) for n in range(1, 17)]), 10**6: FLAT})
    assert model.peak_threads(2000, 16) in (4, 5)
    assert model.closest(900_000) is FLAT


def test_equation_one_adds_the_three_kinds() -> None:
    mixed = RankDemand(samples=1, local_bytes=2e6, peer_bytes=400, source_bytes=800)
    assert fetch_s(mixed, 2, FETCH) == pytest.approx(1.0 + 2.0 + 4.0)
    assert fetch_s(mixed, 0, FETCH) == math.inf
    assert fetch_s(demand(), 0, FETCH) == 0.0


# ---- the search


@pytest.mark.parametrize("first", [1, 3, 16])
@pytest.mark.parametrize("work", [50.0, 120.0, 390.0, 10_000.0])
def test_the_search_finds_what_trying_all_finds(first: int, work: float) -> None:
    def difference(threads: int) -> float:
        return work / (10 * threads) - 3.0

    best = min(range(1, 17), key=lambda threads: (abs(difference(threads)), threads))
    assert search_threads(difference, first, 16, 1e-6) == best


def test_the_search_ends_where_more_threads_are_slower() -> None:
    assert search_threads(lambda threads: abs(threads - 5) + 1.0, 12, 16, 0.1) in range(1, 17)


def test_a_rank_with_more_misses_gets_more_threads() -> None:
    demands = [demand(source=100), demand(source=300), demand(peers=50)]
    given = share_threads(demands, 12, FETCH, time_left_s=1.0, tolerance_s=0.01)
    assert given == (1, 3, 1)


def test_one_budget_for_all_ranks_goes_to_the_slowest_first() -> None:
    demands = [demand(source=1000), demand(source=3000), demand()]
    given = share_threads(demands, 4, FETCH, time_left_s=1.0, tolerance_s=0.01)
    assert given == (1, 3, 0)
    by_time = [fetch_s(each, number, FETCH) for each, number in zip(demands, given, strict=True)]
    assert by_time[:2] == [pytest.approx(10.0), pytest.approx(10.0)]


def test_threads_move_from_preparing_to_fetching_while_that_helps() -> None:
    prepare = PrepareModel({100: PiecewiseLine(((1.0, 100.0), (6.0, 600.0), (12.0, 610.0)))})
    idle = divide_threads([demand(source=10)] * 2, 12, prepare, FETCH, train_s=1.0, tolerance_s=0.01)
    assert idle.slowest_s <= 1.0
    assert idle.prepare == 6
    busy = divide_threads([demand(peers=1000)] * 2, 12, prepare, FETCH, train_s=1.0, tolerance_s=0.01)
    assert busy.prepare < 6
    every = [
        max(fetch_s(demand(peers=1000), (12 - n) // 2, FETCH), 0) + 20 / (100.0 * n) for n in range(1, 7)
    ]
    assert busy.slowest_s == pytest.approx(min(every))
    with pytest.raises(ConfigError):
        divide_threads([demand()], 1, prepare, FETCH, train_s=1.0, tolerance_s=0.01)


def test_a_plan_never_exceeds_the_threads_there_are() -> None:
    rng = random.Random(2)
    prepare = PrepareModel({100: fitted([(n, real_rate(n)) for n in range(1, 17)])})
    for _ in range(200):
        threads = rng.randint(2, 24)
        demands = [demand(rng.uniform(0, 900), rng.uniform(0, 900)) for _ in range(rng.randint(1, 8))]
        plan = divide_threads(demands, threads, prepare, FETCH, train_s=rng.uniform(0.1, 3), tolerance_s=0.01)
        assert plan.prepare >= 1
        assert plan.prepare + sum(plan.fetch) <= threads
