"""Pauses between tries grow, have jitter, and end within their limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.retry import RetryLimits, pause_s

firsts = st.floats(0.001, 10)
limits = st.builds(
    lambda total, tries, first, more: RetryLimits(
        total_s=total, tries=tries, first_s=first, most_s=first + more
    ),
    st.floats(0, 1000),
    st.integers(0, 20),
    firsts,
    st.floats(0, 100),
)
draws = st.floats(0, 1, exclude_max=True)
asked = st.none() | st.floats(0, 2000)


@given(limits, st.lists(st.tuples(draws, asked, st.floats(0, 100)), max_size=40))
def test_tries_and_time_stay_within_the_limits(
    allowed: RetryLimits, story: list[tuple[float, float | None, float]]
) -> None:
    """Each try fails after some time."""
    spent = 0.0
    for failures, (draw, wish, took) in enumerate(story, 1):
        pause = pause_s(allowed, failures=failures, spent_s=spent, draw=draw, asked_s=wish)
        if pause is None:
            return
        assert failures <= allowed.tries
        assert pause >= (wish or 0.0)
        assert spent + pause < allowed.total_s
        spent += pause + took
    assert len(story) <= allowed.tries


@given(limits, st.integers(1, 20), draws)
def test_a_pause_that_nobody_asked_for_lies_between_half_and_all_of_a_doubling_one(
    allowed: RetryLimits, failures: int, draw: float
) -> None:
    pause = pause_s(allowed, failures=failures, spent_s=0.0, draw=draw)
    longest = min(allowed.most_s, allowed.first_s * 2 ** (failures - 1))
    if pause is None:
        assert failures > allowed.tries or longest * (0.5 + draw / 2) >= allowed.total_s
    else:
        assert longest / 2 <= pause <= longest


@given(firsts, st.integers(1, 1_000_000))
def test_any_number_of_failures_is_bounded(first: float, failures: int) -> None:
    allowed = RetryLimits(total_s=1e6, tries=1_000_000, first_s=first, most_s=20)
    pause = pause_s(allowed, failures=failures, spent_s=0.0, draw=0.5)
    assert pause is not None
    assert pause <= 20
