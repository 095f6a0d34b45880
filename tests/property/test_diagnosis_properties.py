"""The advice of `diagnose()` holds for any run: checked against a run that is played through with the workers it asks for."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.diagnosis import FINE, KEEPS_UP, SLACK, SMALL, Facts, Limit, diagnose, judged

CORES = st.integers(1, 64)
WORKERS = st.integers(1, 96)
SHARES = st.floats(0.0, 1.0)


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    workers = draw(WORKERS)
    busy = draw(SHARES)
    return Facts(
        wait_share=draw(SHARES),
        workers=workers,
        busy=busy * workers,
        cpu=draw(SHARES) * busy * workers,
        delayed=draw(SHARES) * (1 - busy) * workers,
        cores=draw(CORES),
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[float, float, float, int]:
    """Seconds of a step; seconds that the workers of a batch compute, and are blocked; cores."""
    costs = st.floats(0.001, 5.0)
    return draw(st.floats(0.01, 1.0)), draw(costs), draw(costs), draw(CORES)


def played(run: tuple[float, float, float, int], workers: int) -> Facts:
    """What is measured of a run where nothing is uneven: a batch takes as long as the slowest of training, workers and cores."""
    step_s, cpu_s, blocked_s, cores = run
    batch_s = max(step_s, (cpu_s + blocked_s) / workers, cpu_s / cores)
    busy = (cpu_s + blocked_s) / batch_s
    crowded = batch_s > step_s and cpu_s / cores >= batch_s * 0.999
    return Facts(
        wait_share=1 - step_s / batch_s,
        workers=workers,
        busy=busy,
        cpu=cpu_s / batch_s,
        delayed=workers - busy if crowded else 0.0,
        cores=cores,
    )


def stats_of(found: Facts) -> dict[str, Any]:
    recent = {
        "batches": 100, "workers": found.workers, "elapsed_s": 10.0, "wait_share": found.wait_share, "handover_s": 0.0, "busy_s": 10 * found.busy,
        "cpu_s": 10 * found.cpu, "delayed_s": 10 * found.delayed, "first_wait_s": 0.0, "first_share": 0.0,
        "borrowed_cores": found.borrowed,
    }  # fmt: skip
    return {"engine": "workers", "batches": 100, "workers": found.workers, "reuse": None, "recent": recent}


@given(facts())
def test_workers_are_never_added_where_training_does_not_wait(found: Facts) -> None:
    verdict = judged(replace(found, wait_share=min(found.wait_share, FINE * 0.999)))
    assert (verdict.kind, verdict.more) == (Limit.NOTHING, 0)


@given(facts())
def test_a_prediction_is_a_gain_and_within_what_is_possible(found: Facts) -> None:
    verdict = judged(found)
    assert (verdict.more > 0) == (verdict.kind is Limit.WORKERS)
    if verdict.more:
        assert 0 <= verdict.left <= found.wait_share
        assert verdict.gain > 1
        # Not faster than training, than the workers, nor than the cores allow.
        assert verdict.gain * (1 - found.wait_share) <= 1 + 1e-9
        assert verdict.gain * found.cpu <= max(found.cpu, found.cores) * (1 + 1e-9)
        assert verdict.gain * found.busy <= found.workers + verdict.more + SLACK + 1e-9


@given(facts(), SHARES)
def test_who_waits_longer_is_not_advised_fewer_workers(found: Facts, other: float) -> None:
    less, more = (replace(found, wait_share=share) for share in sorted((found.wait_share, other)))
    assert judged(less).more <= judged(more).more


@given(facts(), CORES)
def test_more_cores_never_make_the_prediction_worse(found: Facts, cores: int) -> None:
    few, many = (judged(replace(found, cores=count)) for count in sorted((found.cores, cores)))
    assert few.gain <= many.gain * (1 + 1e-9)


@given(runs(), WORKERS)
def test_a_run_with_the_advised_workers_is_as_fast_as_was_predicted(
    run: tuple[float, float, float, int], workers: int
) -> None:
    before = played(run, workers)
    verdict = judged(before)
    if not verdict.more:
        return
    after = played(run, workers + verdict.more)
    rate = (1 - after.wait_share) / (1 - before.wait_share)
    # A need that exceeds a whole number by less than SLACK is rounded down.
    assert rate >= verdict.gain * (1 - SLACK) / (1 + 1e-6)
    assert after.wait_share <= verdict.left + SLACK
    if verdict.left <= FINE and after.wait_share < FINE:
        assert judged(after).kind is Limit.NOTHING


@given(runs(), WORKERS)
def test_where_more_workers_would_not_help_they_do_not(
    run: tuple[float, float, float, int], workers: int
) -> None:
    before = played(run, workers)
    if judged(before).kind in (Limit.CORES, Limit.CROWD, Limit.NOTHING, Limit.UNEVEN):
        after = played(run, 2 * workers)
        assert (1 - after.wait_share) / (1 - before.wait_share) < 1.12


@given(facts(), st.booleans())
def test_the_sentence_says_one_thing_with_percentages_that_can_be(found: Facts, gpu: bool) -> None:
    said = diagnose(stats_of(found), cores=found.cores, gpu=gpu)
    verdict = judged(found)
    assert said.endswith(".")
    assert all(0 <= int(number) <= 100 for number in re.findall(r"(-?\d+)%", said))
    advises = "predicted to" in said
    assert advises == (verdict.kind is Limit.WORKERS)
    assert not (advises and "would not" in said)
    assert (said == KEEPS_UP) == (verdict.kind is Limit.NOTHING)
    if "reduce it to" in said:
        now, then = re.findall(r"training waits (\d+)%.* reduce it to (\d+)%", said)[0]
        assert int(then) <= int(now)
    if found.wait_share >= SMALL:
        assert said.startswith(f"training waits {found.wait_share:.0%} of the time")
    if "would be needed" in said:
        assert int(re.findall(r"about (\d+) would be needed", said)[0]) > found.cores
