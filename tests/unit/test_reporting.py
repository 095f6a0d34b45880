"""When a rank looks how it stands, and what of it is reported."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.lending import RankView
from penstock.policy.reporting import BEAT_S, PAUSE_S, REST, Reporting

HOME = 3
WELL = RankView(HOME, HOME, "crew", taken=10, ahead=5.5, window=6)


def told(view: RankView, seq: int = 10, now_s: float = 0.0, ready: int = 1) -> Reporting:
    """Return the reporting of a rank that has told its manager how it stands."""
    reporting = Reporting()
    reporting.begin()
    assert reporting.wait_s(now_s, seq, ready, HOME) == 0.0
    assert reporting.is_news(view, seq, ready, now_s)
    return reporting


def test_a_rank_that_is_well_ahead_looks_again_when_training_has_taken_some() -> None:
    reporting = told(WELL)
    assert reporting.wait_s(PAUSE_S, 10, 1, HOME) == math.inf
    assert reporting.wait_s(PAUSE_S, 10 + REST - 1, 1, HOME) == math.inf
    assert reporting.wait_s(PAUSE_S, 10 + REST, 1, HOME) == 0.0
    assert reporting.wait_s(BEAT_S, 10, 1, HOME) == 0.0, "and to show that it is there"


@pytest.mark.parametrize(
    "view", [WELL._replace(ahead=1.9), WELL._replace(allowed=HOME - 1), WELL._replace(allowed=HOME + 1)]
)
def test_a_rank_that_is_short_lends_or_borrows_looks_all_the_time(view: RankView) -> None:
    reporting = told(view)
    assert reporting.wait_s(PAUSE_S / 2, 10, 1, HOME) == pytest.approx(PAUSE_S / 2)
    assert reporting.wait_s(PAUSE_S, 10, 1, HOME) == 0.0


def test_a_rank_that_is_nearly_short_looks_again_when_a_batch_is_prepared_or_taken() -> None:
    reporting = told(WELL._replace(ahead=2.9), ready=4)
    assert reporting.wait_s(PAUSE_S, 10, 4, HOME) == math.inf
    assert reporting.wait_s(PAUSE_S, 10, 5, HOME) == 0.0
    assert reporting.wait_s(PAUSE_S, 11, 4, HOME) == 0.0


def test_what_the_manager_or_the_user_changes_ends_the_rest() -> None:
    reporting = told(WELL)
    assert reporting.wait_s(PAUSE_S, 10, 1, HOME + 1) == 0.0
    reporting.wake()
    assert reporting.wait_s(PAUSE_S, 10, 1, HOME) == 0.0
    reporting.begin()
    assert reporting.wait_s(0.0, 10, 1, HOME) == 0.0
    assert reporting.is_news(WELL, 10, 1, 0.0), "another manager has heard nothing"


@given(st.floats(2.0, 20.0), st.integers(0, 12), st.integers(0, 5))
def test_no_rank_becomes_short_unseen(ahead: float, window: int, later: int) -> None:
    """Each batch that training takes is one less ahead, whatever else goes well or badly."""
    view = WELL._replace(ahead=ahead, window=window)
    reporting = told(view)
    short = view._replace(ahead=ahead - later).is_short
    assert not (short and reporting.wait_s(PAUSE_S, 10 + later, 1, HOME) == math.inf)
