"""The number of reads in flight, for any store and any measurements."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.reads_at_once import FetchWindow, ReadsAtOnce, ThrottleLimit, fetch_line


@given(st.integers(1, 200), st.lists(st.floats(0, 1e12), max_size=200), st.data())
def test_it_stays_within_its_bounds_whatever_is_measured(
    most: int, rates: list[float], data: st.DataObject
) -> None:
    pace = ReadsAtOnce(most)
    for rate in rates:
        assert 1 <= pace.measured(FetchWindow(pace.now, rate, 0.1)) <= most
        if data.draw(st.booleans()):
            assert 1 <= pace.refused() <= most


@given(
    st.floats(0.001, 0.3), st.floats(1e3, 1e7), st.floats(1e6, 1e10), st.floats(0, 0.02), st.integers(0, 99)
)
def test_it_finds_nearly_the_highest_throughput_of_any_store(
    latency_s: float, size: float, cap: float, noise: float, seed: int
) -> None:
    rng, pace, got = random.Random(seed), ReadsAtOnce(128), 0.0

    def store(n: int) -> float:
        return min(n * size / latency_s, cap)

    for at in range(300):
        rate = store(pace.now)
        got += rate if at >= 100 else 0.0
        pace.measured(FetchWindow(pace.now, rate * rng.uniform(1 - noise, 1 + noise), latency_s))
    assert got / 200 >= 0.88 * store(128)
    knee = cap * latency_s / size
    assert pace.best[0] <= max(4, 2 * knee + 2)


@given(st.integers(1, 200), st.lists(st.tuples(st.booleans(), st.integers(1, 200), st.floats(0, 100))))
def test_the_limit_of_a_server_that_throttles_is_between_one_and_the_most(
    most: int, events: list[tuple[bool, int, float]]
) -> None:
    limit = ThrottleLimit(most)
    for refused, in_flight, at_s in events:
        if refused:
            limit.refused(in_flight, at_s, at_s + 0.1)
        else:
            limit.succeeded(at_s)
        assert 1 <= limit.limit <= most


@given(st.lists(st.tuples(st.integers(1, 128), st.floats(0, 1e10)), min_size=1, max_size=40))
def test_a_line_is_finite_and_not_negative(measured: list[tuple[int, float]]) -> None:
    line = fetch_line([FetchWindow(n, rate, 0.1) for n, rate in measured], 128)
    assert all(0 <= line.at(n) < 1e12 for n in range(1, 200))
