"""How many reads are in flight: against models of stores, that no read is needed for."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from penstock.errors import ConfigError
from penstock.policy.reads_at_once import (
    FIRST,
    FetchWindow,
    ReadsAtOnce,
    Search,
    ThrottleLimit,
    fetch_line,
    kept,
)
from penstock.policy.thread_model import FetchModel, PiecewiseLine, RankDemand, fetch_s, share_threads

Rate = Callable[[int], float]
READ = 110e3


def far_store(latency_s: float, most_bytes_per_s: float) -> Rate:
    return lambda n: min(n * READ / latency_s, most_bytes_per_s)


def local_files(cores: int) -> Rate:
    """Reads that take a core: more of them only get into each other's way."""
    return lambda n: 1e9 * min(n, cores) * 0.998 ** max(0, n - cores)


def windows(rate: Rate, numbers: tuple[int, ...], noise: float = 0.0, seed: int = 0) -> list[FetchWindow]:
    rng = random.Random(seed)
    return [
        FetchWindow(n, rate(n) * rng.uniform(1 - noise, 1 + noise), n * READ / rate(n))
        for n in numbers
        for _ in range(3)
    ]


def played(pace: ReadsAtOnce, rate: Rate, count: int, noise: float = 0.0, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        said = rate(pace.now) * rng.uniform(1 - noise, 1 + noise)
        found.append(pace.measured(FetchWindow(pace.now, said, 0.0)))
    return found


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("knee", [3, 10, 40, 100])
def test_reads_in_flight_go_to_the_knee_of_a_store(knee: int, noise: float) -> None:
    store = far_store(0.03, knee * READ / 0.03)
    pace = ReadsAtOnce(128)
    found = played(pace, store, 400, noise)[100:]
    assert sum(store(n) for n in found) / len(found) >= 0.93 * store(128)
    assert sorted(found)[len(found) // 2] <= 1.6 * knee + 1


def test_a_store_that_could_do_more_gets_all_reads() -> None:
    found = played(ReadsAtOnce(128), far_store(0.03, 1e12), 300)
    assert found[20:].count(128) > 0.85 * len(found[20:])
    assert 128 in found[:9], "growth that is clear takes two windows"


def test_local_files_get_few_readers() -> None:
    found = played(ReadsAtOnce(128), local_files(2), 300)
    assert max(found[100:]) <= 8
    assert sum(map(local_files(2), found[100:])) / 200 > 0.93 * 2e9


def test_it_looks_again_when_the_store_has_changed() -> None:
    pace = ReadsAtOnce(128)
    played(pace, far_store(0.005, 8 * READ / 0.005), 200)
    assert pace.best[0] <= 13
    slower = far_store(0.1, 64 * READ / 0.1)
    found = played(pace, slower, 60)
    assert slower(pace.best[0]) >= 0.9 * slower(128)
    found = played(pace, far_store(0.005, 8 * READ / 0.005), 150)
    assert sorted(found[60:])[45] <= 16


def test_it_holds_still_while_nothing_changes() -> None:
    pace = ReadsAtOnce(128)
    played(pace, far_store(0.03, 40 * READ / 0.03), 1500, noise=0.02)
    found = played(pace, far_store(0.03, 40 * READ / 0.03), 500, noise=0.02)
    assert sum(a != b for a, b in pairwise(found)) <= 30


def test_it_grows_until_more_is_no_better_and_never_again() -> None:
    pace = ReadsAtOnce(128)
    assert pace.is_growing
    played(pace, far_store(0.03, 50 * READ / 0.03), 300)
    assert not pace.is_growing


def test_a_server_that_refuses_ends_a_try_for_more() -> None:
    pace = ReadsAtOnce(128)
    played(pace, far_store(0.03, 1e12), 3)
    assert pace.search == Search.MORE
    assert pace.refused() == FIRST
    assert pace.search == Search.HOLD
    assert ReadsAtOnce(4).now == 4
    with pytest.raises(ConfigError):
        ReadsAtOnce(0)


# ---- throttling


def test_refusals_of_one_round_halve_once_and_successes_add_one_a_round() -> None:
    limit = ThrottleLimit(64)
    limit.refused(64, 1.0, 2.0)
    limit.refused(60, 1.5, 2.1)
    assert limit.limit == 32
    limit.succeeded(1.9)
    assert limit.limit == 32
    for _ in range(32):
        limit.succeeded(3.0)
    assert limit.limit == pytest.approx(33, abs=0.1)
    limit.refused(10, 3.0, 4.0)
    assert limit.limit == 5
    for _ in range(10_000):
        limit.succeeded(5.0)
    assert limit.limit == 64


def test_a_store_that_throttles_is_kept_busy() -> None:
    """Rounds of reads: what exceeds the store's number is refused."""
    limit, allowed, done, refused = ThrottleLimit(128), 20, 0, 0
    for at in range(400):
        n = int(limit.limit)
        for number in range(n):
            if number < allowed:
                limit.succeeded(at)
                done += 1
            else:
                limit.refused(n, at, at + 0.5)
                refused += 1
    assert done >= 0.7 * 400 * allowed
    assert refused <= 0.1 * done


# ---- the model of threads


def test_a_line_of_windows_predicts_other_windows() -> None:
    for store in (far_store(0.03, 40 * READ / 0.03), far_store(0.03, 1e12), local_files(6)):
        line = fetch_line(windows(store, (2, 4, 8, 16, 32, 64, 128), noise=0.03), 128)
        for window in windows(store, (3, 6, 12, 24, 48, 96), noise=0.03, seed=1):
            predicted = window.at_once * line.at(window.at_once)
            assert predicted == pytest.approx(window.bytes_per_s, rel=0.2)


def test_windows_of_a_search_are_enough_to_divide_threads() -> None:
    store = far_store(0.03, 40 * READ / 0.03)
    pace, seen, rng = ReadsAtOnce(128), list[FetchWindow](), random.Random(5)
    for _ in range(120):
        said = store(pace.now) * rng.uniform(0.97, 1.03)
        seen.append(FetchWindow(pace.now, said, 0.03))
        pace.measured(seen[-1])
    flat = PiecewiseLine(((1.0, 1e9),))
    model = FetchModel(local=flat, peers=flat, source=fetch_line(kept(seen), 128))
    for size in (0.25, 0.5, 0.9):
        demand = RankDemand(samples=1, local_bytes=0.0, peer_bytes=0.0, source_bytes=size * store(128))
        (given,) = share_threads([demand], 128, model, time_left_s=1.0, tolerance_s=0.02)
        assert demand.source_bytes / store(given) == pytest.approx(1.0, abs=0.15)
        assert fetch_s(demand, given, model) == pytest.approx(1.0, abs=0.1)


def test_a_line_needs_something_that_was_measured() -> None:
    with pytest.raises(ConfigError):
        fetch_line([], 4)
    one = fetch_line([FetchWindow(4, 400.0, 0.1)], 8)
    assert [one.at(n) for n in (1, 4, 8)] == pytest.approx([100, 100, 50], rel=1e-3)
    seen = [FetchWindow(n, float(at), 0.1) for at, n in enumerate((1, 2, 2, 2, 1))]
    assert kept(seen, each=2) == [seen[0], seen[2], seen[3], seen[4]]
