"""Which batch a slow or distant worker takes work of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.pools import TRY_AGAIN_S, equal_workers, first_in_time, is_stale, rate

OFFERS = st.lists(st.tuples(st.integers(0, 100), st.floats(0, 10)), max_size=20)


@given(OFFERS, st.floats(0, 1000))
def test_the_batch_chosen_is_the_first_that_faster_pools_would_not_have_complete_before(
    offers: list[tuple[int, float]], samples_per_s: float
) -> None:
    chosen = first_in_time(offers, samples_per_s)
    held_up = [
        not left or finish_s * samples_per_s > sum(one for one, _ in offers[: at + 1])
        for at, (left, finish_s) in enumerate(offers)
    ]
    assert chosen == (held_up.index(False) if False in held_up else None)


def test_workers_are_counted_in_those_of_a_pool() -> None:
    pools = [(4, 0.001), (6, 0.003)]
    assert equal_workers(0.003, pools) == pytest.approx(18)
    assert equal_workers(0.001, pools) == pytest.approx(6)
    assert equal_workers(None, pools) == 10


def test_a_pool_of_unknown_pace_adds_nothing_to_the_rate() -> None:
    assert rate([(4, 0.001), (6, None)]) == pytest.approx(4000)


def test_a_pool_is_tried_again_when_it_was_left_out_for_long_beside_what_its_task_takes() -> None:
    assert is_stale(TRY_AGAIN_S + 1, 0.01)
    assert not is_stale(TRY_AGAIN_S + 1, 1.0)
