"""A course that begins with stored metrics: the same decision, without measuring, unless they do not hold. On arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.course import wish
from penstock.policy.course_state import NOW, Course, OffloadTerms, Stage
from penstock.policy.course_values import packed, told, unpacked
from penstock.policy.offload import Metrics, PlanMetrics, RefinedSetting
from penstock.policy.restored import restored
from penstock.policy.verification import ENOUGH_WINDOWS
from tests.offload_drive import ONE, Drive, always, plants
from tests.offload_plant import Plant

STORED = "stored on 2026-11-18 by an earlier run"
TWO = OffloadTerms(plans=("samples", "cut"), most=8)


def measured(plant: Plant, windows: int = 40) -> Course:
    return Drive(always(plant)).run(windows).course


def profiled(plant: Plant, terms: OffloadTerms = ONE) -> Metrics:
    """What an active profile finds: everything with all remote workers."""
    plans = tuple(
        PlanMetrics(
            name=name, remote=plant.rate(1.0, terms.most), handling_s=plant.handling_s, workers=terms.most
        )
        for name in terms.plans
    )
    return Metrics(training=plant.training, local=plant.local, preparing_s=plant.preparing_s, plans=plans)


def started(metrics: Metrics | None, plant: Plant, terms: OffloadTerms = ONE, noise: float = 0.0) -> Drive:
    assert metrics is not None
    return Drive(always(plant), terms=terms, course=restored(metrics, terms, STORED), noise=noise)


def test_it_decides_as_the_run_that_measured_and_measures_nothing() -> None:
    first = measured(Plant())
    assert first.kept is not None
    second = started(replace(first.kept, refined=None), Plant())
    assert second.course.reason == first.reason
    assert (second.course.plan, second.course.workers) == (first.plan, first.workers)
    second.run(60)
    assert set(second.stages) == {Stage.REFINING}
    assert all(one.share > 0 for one in second.wishes), "local workers alone are not measured"
    assert second.course.origin == STORED
    assert second.course.hoped == 0


def test_it_begins_with_what_the_search_of_that_run_ended_with() -> None:
    first = Drive(always(Plant())).run(400)
    kept = first.course.kept
    assert kept is not None
    assert kept.refined is not None
    second = started(kept, Plant()).run(30)
    held = first.course.refining
    assert held is not None
    assert second.wishes[0] == wish(second.course, ONE)
    assert second.wishes[0].share == pytest.approx(kept.refined.share)
    assert second.mean(10) > 0.97 * first.mean(350)
    time = told(second.course, ONE)["time"]
    assert time["measuring"]["seconds"] == 0
    assert time["hiring"]["seconds"] > 0
    assert told(first.course, ONE)["time"]["measuring"]["lost_samples"] > 0


def test_an_active_profile_leads_to_the_same_decision_as_measuring_in_the_loop() -> None:
    plant = Plant()
    passive, active = measured(plant), restored(profiled(plant), ONE, STORED)
    assert (active.plan, active.workers) == (passive.plan, passive.workers)
    assert passive.kept is not None
    again = restored(replace(passive.kept, refined=None), ONE, STORED)
    assert wish(active, ONE).share == pytest.approx(wish(again, ONE).share, rel=0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"worker": 4.0}, {"training": 0.6}, {"preparing_s": 0.5}],
    ids=str,
)
def test_metrics_that_do_not_hold_are_measured_again_once(wrong: dict[str, float]) -> None:
    plant = Plant(training=300.0)
    drive = started(profiled(plant.faster(**wrong)), plant).run(400)
    assert drive.course.origin == f"{NOW}: what was {STORED} did not hold"
    begins = [at for at in range(1, 400) if drive.stages[at] is Stage.TRIAL is not drive.stages[at - 1]]
    assert len(begins) == 1
    assert drive.course.kept is not None
    assert drive.course.kept.training == pytest.approx(plant.training)
    assert drive.mean(200) > 0.95 * Drive(always(plant)).run(400).mean(200)


@pytest.mark.parametrize(
    "wrong", [{"worker": 0.2}, {"training": 0.3}, {"training": 2.0}, {"preparing_s": 2.0}], ids=str
)
def test_what_the_first_windows_do_not_show_is_refined(wrong: dict[str, float]) -> None:
    plant = Plant(training=300.0)
    drive = started(profiled(plant.faster(**wrong)), plant).run(400)
    assert drive.mean(200) > 0.95 * Drive(always(plant)).run(400).mean(200)


def test_the_wrong_plan_is_corrected() -> None:
    plans = {"samples": Plant(link=20.0), "cut": Plant()}
    stored = Metrics(
        training=1000.0,
        local=100.0,
        preparing_s=0.04,
        plans=(
            PlanMetrics(name="samples", remote=200.0, handling_s=0.002, workers=8),
            PlanMetrics(name="cut", remote=20.0, handling_s=0.002, workers=8),
        ),
    )
    drive = Drive(lambda _, plan: plans[plan], terms=TWO, course=restored(stored, TWO, STORED))
    assert drive.course.plan == "samples"
    drive.run(120)
    assert drive.course.plan == "cut"


class Waiting(Plant):
    """Its samples wait for a disk, so that its CPUs are no limit."""

    def rate(self, share: float, workers: int | None = None) -> float:
        remote = self.remote(self.workers if workers is None else workers)
        local = self.local / (1.0 - share) if share < 1 else float("inf")
        return min(self.training, local, remote / share if share > 0 else float("inf"))


def test_more_than_the_cpus_seemed_to_allow_is_no_contradiction() -> None:
    plant = Waiting(handling_s=0.02)
    drive = started(profiled(plant), plant)
    assert plant.rate(wish(drive.course, ONE).share, 8) > 1.5 * drive.course.hoped
    assert drive.run(20).course.origin == STORED


def test_one_odd_window_drops_nothing() -> None:
    plant = Plant()
    metrics = profiled(plant)
    calm = started(metrics, plant).run(8)
    odd = started(metrics, plant)
    odd.plant_at = lambda at, _: plant if at != 5 else plant.faster(training=0.1)
    odd.run(12)
    assert ENOUGH_WINDOWS > 1
    assert odd.course.origin == calm.course.origin == STORED
    assert odd.course.stage is Stage.REFINING


def test_where_nothing_was_decided_it_begins_as_without_metrics() -> None:
    idle = profiled(Plant(training=100.0, cores=8.0))
    assert restored(replace(idle, plans=()), ONE, STORED) == Course()
    assert restored(idle, ONE, STORED) == Course()
    assert restored(profiled(Plant()), TWO, STORED) == Course(), "a plan was not measured"


def test_remote_workers_that_did_not_pay_are_not_asked_for_at_once() -> None:
    plant = Plant(handling_s=0.08)
    drive = started(profiled(plant), plant).run(60)
    assert set(drive.stages) == {Stage.LOCAL}
    assert {one.workers for one in drive.wishes} == {0}
    metrics = replace(
        profiled(Plant()), refined=RefinedSetting(plan="samples", share=0.0, workers=4, rate=100.0)
    )
    drive = started(metrics, Plant()).run(30)
    assert {(one.share, one.workers) for one in drive.wishes} == {(0.0, 0)}


rates = st.floats(1e-3, 1e6)
some_metrics = st.builds(
    Metrics,
    training=rates,
    local=rates,
    preparing_s=rates,
    plans=st.tuples(
        *(
            st.builds(
                PlanMetrics,
                name=st.just(name),
                remote=st.floats(0, 1e6),
                handling_s=st.floats(0, 10),
                workers=st.integers(1, 100),
            )
            for name in TWO.plans
        )
    ),
    refined=st.none()
    | st.builds(
        RefinedSetting,
        plan=st.sampled_from(("samples", "cut", "bytes")),
        share=st.floats(0, 1),
        workers=st.integers(1, 100),
        rate=rates,
    ),
)


@given(some_metrics, plants, st.floats(0, 0.05), st.integers(0, 8))
def test_whatever_is_stored_training_is_not_slower_than_local_for_long(
    metrics: Metrics, plant: Plant, noise: float, there: int
) -> None:
    drive = started(metrics, plant, TWO, noise)
    assert unpacked(packed(drive.course)) == drive.course
    drive.there = lambda _: there
    drive.run(400)
    assert all(0 <= one.workers <= TWO.most and 0 <= one.share <= 1 for one in drive.wishes)
    assert drive.mean(0) > 0.8 * plant.local
    assert unpacked(packed(drive.course)) == drive.course
    lost = told(drive.course, TWO)["time"]
    assert sum(one["seconds"] for one in lost.values()) == pytest.approx(400)
