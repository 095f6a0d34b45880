"""When a rank looks how it stands, and what of it is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.lending import RankView
from penstock.policy.reporting import BEAT_S, PAUSE_S, Glance, Reporting

HOME = 3
WELL = RankView(HOME, HOME, "crew", taken=10, ahead=5.5, window=6, busy=1)
SEEN = Glance(asked=16, taken=10, prepared=15, idles=True, own=HOME)


def told(view: RankView, seen: Glance = SEEN, now_s: float = 0.0) -> Reporting:
    """Return the reporting of a rank that has told its manager how it stands."""
    reporting = Reporting()
    reporting.begin()
    assert reporting.wait_s(now_s, seen) == 0.0
    assert reporting.is_news(view, seen, now_s, own=HOME)
    return reporting


def test_a_rank_that_is_well_ahead_looks_again_to_show_that_it_is_there() -> None:
    reporting = told(WELL)
    assert reporting.wait_s(PAUSE_S, SEEN) == pytest.approx(BEAT_S - PAUSE_S)
    assert reporting.wait_s(BEAT_S, SEEN) == 0.0


@pytest.mark.parametrize(
    "changed",
    [{"asked": 17}, {"taken": 11}, {"prepared": 16}, {"idles": False}, {"own": HOME + 1}],
    ids=lambda changed: next(iter(changed)),
)
def test_it_looks_when_its_standing_may_matter_to_others(changed: dict[str, int]) -> None:
    reporting = told(WELL)
    seen = SEEN._replace(**changed)
    assert reporting.wait_s(PAUSE_S / 2, seen) == pytest.approx(PAUSE_S / 2)
    assert reporting.wait_s(PAUSE_S, seen) == 0.0


@pytest.mark.parametrize(
    "view", [WELL._replace(ahead=1.9), WELL._replace(allowed=HOME - 1), WELL._replace(allowed=HOME + 1)]
)
def test_a_rank_that_is_short_lends_or_borrows_looks_all_the_time(view: RankView) -> None:
    assert told(view).wait_s(PAUSE_S, SEEN) == 0.0


def test_one_whose_workers_are_more_than_its_cores_rests_with_what_is_its_own() -> None:
    reporting = Reporting()
    view = WELL._replace(home=2 * HOME, allowed=HOME)
    assert reporting.is_news(view, SEEN, 0.0, own=HOME)
    assert reporting.wait_s(PAUSE_S, SEEN) > 0.0


def test_what_the_manager_changes_ends_the_rest() -> None:
    reporting = told(WELL)
    reporting.wake()
    assert reporting.wait_s(PAUSE_S, SEEN) == 0.0
    reporting.begin()
    assert reporting.wait_s(0.0, SEEN) == 0.0
    assert reporting.is_news(WELL, SEEN, 0.0, own=HOME), "another manager has heard nothing"


@given(st.integers(0, 8), st.integers(0, 8), st.integers(0, 8), st.integers(0, 8))
def test_cores_that_come_to_idle_are_news_however_far_ahead_a_rank_is(
    busy: int, waiting: int, later_busy: int, later_waiting: int
) -> None:
    before, later = (min(HOME, one) for one in (busy + waiting, later_busy + later_waiting))
    reporting = told(WELL._replace(busy=busy, waiting=waiting))
    view = WELL._replace(busy=later_busy, waiting=later_waiting)
    assert reporting.is_news(view, SEEN, PAUSE_S, own=HOME) == (before != later)
