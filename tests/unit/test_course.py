"""From local workers alone to remote ones in use, and back: on a machine that is arithmetic (`offload_plant`)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.course import LINGER, LOCAL_WINDOWS, TRIAL_WINDOWS
from penstock.policy.course_state import OffloadTerms, Stage, Wish
from penstock.policy.course_values import packed, unpacked
from tests.offload_drive import ONE, Drive, always, plants
from tests.offload_plant import Plant


def test_nothing_is_hired_where_training_is_the_limit() -> None:
    drive = Drive(always(Plant(training=100.0, cores=8.0))).run(200)
    assert {one.workers for one in drive.wishes} == {0}
    assert "no offloading: training could be 1.00x as fast" in drive.course.reason


def test_where_training_waits_remote_workers_are_hired_tried_and_used() -> None:
    plant = Plant()
    drive = Drive(always(plant)).run(120)
    stages = list(dict.fromkeys(drive.stages))
    assert stages == [Stage.LOCAL, Stage.HIRING, Stage.TRIAL, Stage.REFINING]
    assert drive.stages.count(Stage.TRIAL) == TRIAL_WINDOWS + 1
    assert drive.mean(80) > 0.95 * plant.best(range(1, 9))


def test_a_trial_of_a_far_slower_pool_is_short_and_costs_little_in_all() -> None:
    plant = Plant(worker=0.2)
    drive = Drive(always(plant)).run(600)
    slow = [rate for rate in drive.rates if rate < 0.9 * plant.local]
    assert len(slow) <= 24
    assert drive.mean(0) > 0.97 * plant.local
    assert drive.wishes[-1].share <= 0.05


def test_each_further_trial_waits_twice_as_long_and_workers_are_let_go_meanwhile() -> None:
    plant = Plant(handling_s=0.08)  # more CPU time to receive a sample than to prepare it
    drive = Drive(always(plant)).run(700)
    begins = [at for at in range(1, 700) if drive.stages[at] is Stage.TRIAL is not drive.stages[at - 1]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(begins)]
    assert 2 <= len(gaps) <= 4
    assert gaps == sorted(gaps)
    assert drive.wishes[begins[1] - 20].workers == 0
    assert "no plan is 5% faster" in drive.course.reason


@pytest.mark.parametrize("stage", [Stage.HIRING, Stage.TRIAL, Stage.REFINING])
@pytest.mark.parametrize("for_good", [True, False])
def test_workers_that_are_lost_in_any_stage_cost_nothing_for_long(stage: Stage, *, for_good: bool) -> None:
    drive = Drive(always(Plant()))
    lost: list[int] = []

    def there(at: int) -> int:
        if drive.course.stage is stage and len(lost) < (10_000 if for_good else 1):
            lost.append(at)
            return 0
        return 1000

    drive.there = there
    drive.run(400)
    assert lost
    assert min(drive.rates) >= 0.25 * Plant().local
    assert sum(rate < 0.9 * Plant().local for rate in drive.rates) <= 24
    if not for_good:
        assert drive.mean(350) > 1.5 * Plant().local


def test_joining_a_cluster_is_not_taken_for_slow_local_workers() -> None:
    """It takes cores from them."""

    def plant_at(_at: int, _plan: str) -> Plant:
        slow = drive.course.stage is Stage.HIRING
        return Plant(cores=Plant().cores / 2) if slow else Plant()

    drive = Drive(plant_at, comes_after=12)
    drive.run(60)
    assert drive.stages.count(Stage.HIRING) > LOCAL_WINDOWS
    assert drive.course.local == pytest.approx(Plant().local)


def test_workers_that_never_come_are_waited_for_without_a_loss() -> None:
    drive = Drive(always(Plant()), there=lambda _: 0).run(300)
    assert drive.course.stage is Stage.HIRING
    assert min(drive.rates) == Plant().local


def test_fewer_workers_than_wanted_are_used_after_a_while() -> None:
    drive = Drive(always(Plant()), there=lambda _: 2).run(300)
    assert drive.course.stage is Stage.REFINING
    assert drive.mean(250) > 1.3 * Plant().local


def test_workers_are_let_go_when_training_no_longer_waits_and_hired_again_when_it_does() -> None:
    drive = Drive(lambda at, _: Plant(training=90.0) if 100 <= at < 700 else Plant()).run(1400)
    assert drive.wishes[90].workers > 0
    assert drive.wishes[690].workers == 0
    assert drive.mean(1350) > 1.5 * Plant().local


def test_the_better_of_two_plans_is_taken() -> None:
    plans = {"samples": Plant(link=20.0), "cut": Plant()}
    drive = Drive(lambda _, plan: plans[plan], terms=OffloadTerms(plans=("samples", "cut"), most=8)).run(120)
    assert drive.course.plan == "cut"
    assert drive.stages.count(Stage.TRIAL) <= 2 * (TRIAL_WINDOWS + 1)


def test_a_fixed_share_is_kept_and_only_the_plan_is_chosen() -> None:
    plans = {"samples": Plant(link=20.0), "cut": Plant()}
    terms = OffloadTerms(plans=("samples", "cut"), most=4, share=0.3)
    drive = Drive(lambda _, plan: plans[plan], terms=terms).run(60)
    assert drive.wishes[-1] == Wish(0.3, 4, "cut")


def test_a_new_agent_each_epoch_goes_on_where_the_last_one_was() -> None:
    drive = Drive(always(Plant()), new_agent=lambda at: at % 4 == 3, comes_after=1).run(500)
    assert drive.course.stage is Stage.REFINING
    assert list(dict.fromkeys(drive.stages))[-1] is Stage.REFINING
    assert drive.stages.index(Stage.REFINING) < 60


SLOW_HELP = Plant(training=676.0, cores=12.0, preparing_s=0.02, handling_s=0.001, worker=6.0)


def test_until_all_wanted_workers_are_there_those_that_are_get_their_part_of_the_share() -> None:
    """With the share of eight workers, two hold up every batch. Epochs are short: what was waited for is remembered."""
    drive = Drive(always(SLOW_HELP), there=lambda at: 2, new_agent=lambda at: at % 11 == 10).run(400)
    assert drive.stages.count(Stage.REFINING) > 300
    assert drive.mean(10) > 0.94 * SLOW_HELP.local
    assert drive.mean(60) > 0.97 * SLOW_HELP.local


def test_workers_that_could_do_next_to_nothing_are_not_used() -> None:
    plant = replace(SLOW_HELP, worker=1.0)
    drive = Drive(always(plant)).run(40)
    assert "no plan is 5% faster" in drive.course.reason
    assert (
        max(
            one.share
            for one, stage in zip(drive.wishes, drive.stages, strict=True)
            if stage is not Stage.TRIAL
        )
        == 0
    )


@given(plants, st.floats(0, 0.05), st.lists(st.integers(0, 6), min_size=4, max_size=4), st.integers(0, 40))
def test_training_is_never_slower_than_local_for_long_whatever_the_cluster_does(
    plant: Plant, noise: float, there: list[int], every: int
) -> None:
    drive = Drive(
        always(plant),
        noise=noise,
        there=lambda at: there[at // 60 % 4],
        new_agent=lambda at: every > 10 and at % every == every - 1,
    ).run(400)
    assert drive.mean(0) > 0.85 * plant.local
    assert all(0 <= one.workers <= ONE.most and 0 <= one.share <= 1 for one in drive.wishes)
    before = drive.course
    assert unpacked(packed(before)) == before
    if plant.training < 1.05 * plant.local and noise < 0.01:
        assert {one.workers for one in drive.wishes} == {0}


def test_the_first_window_after_a_change_does_not_count() -> None:
    drive = Drive(always(Plant()))
    drive.run(LOCAL_WINDOWS)
    assert drive.course.stage is Stage.LOCAL
    drive.run(1)
    assert drive.course.stage is Stage.HIRING
    assert LINGER > LOCAL_WINDOWS
