"""What the core decides: who works on what, what a death costs, what is delivered when."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core import events as ev
from penstock.core.core import WARN_SILENT_S, CoreConfig, new_state
from penstock.core.events import Event, Kind, Trouble
from tests.unit.core_steps import die, done, failed, laid_out, lost, of, only, running, started, tasks, tell

# ---- order


def test_all_workers_share_the_due_batch_before_any_runs_ahead() -> None:
    state = started(workers=4)
    actions = tell(state, ev.Feed(0, 6), ev.Feed(1, 6))
    assert tasks(actions) == [(0, 0, 0, 2), (1, 0, 2, 2), (2, 0, 4, 2), (3, 1, 0, 2)]


def test_a_task_is_never_more_than_a_workers_even_share_of_its_batch() -> None:
    state = started(workers=4, task_size=0)
    actions = tell(state, ev.Feed(0, 8))
    assert tasks(actions) == [(0, 0, 0, 2), (1, 0, 2, 2), (2, 0, 4, 2), (3, 0, 6, 2)]


def test_short_tasks_are_queued_behind_the_running_one() -> None:
    state = laid_out(workers=1)
    state.local.sample_s = 0.001
    assert tasks(tell(state, ev.Feed(1, 8))) == [(0, 1, start, 2) for start in (0, 2, 4, 6)]


def test_long_tasks_are_not_queued_ahead() -> None:
    state = laid_out(workers=1)
    state.local.sample_s = 0.1
    assert tasks(tell(state, ev.Feed(1, 8))) == [(0, 1, 0, 2)]


def test_batches_leave_in_the_order_they_were_fed() -> None:
    state = laid_out()
    first, second = of(ev.Assign, tell(state, ev.Feed(1, 2), ev.Feed(2, 2)))
    assert of(ev.Deliver, tell(state, done(second))) == []
    assert [one.seq for one in of(ev.Deliver, tell(state, done(first)))] == [1, 2]


def test_without_order_a_batch_leaves_when_it_is_ready() -> None:
    state = laid_out(in_order=False)
    _, second = of(ev.Assign, tell(state, ev.Feed(1, 2), ev.Feed(2, 2)))
    assert only(ev.Deliver, tell(state, done(second))).seq == 2


def test_a_slab_is_delivered_with_its_layout_and_an_encoded_result_without() -> None:
    state = started(Kind.WHOLE, workers=1)
    assign = only(ev.Assign, tell(state, ev.Feed(0, 4)))
    place = only(ev.PlaceResult, tell(state, ev.Prepared(0, assign.task.id, 100)))
    assert tell(state, done(assign)) == [ev.Deliver(0, place.offset, -1, nbytes=4096)]


# ---- deaths


def test_the_work_of_a_lost_worker_is_issued_again_under_a_new_id() -> None:
    state = laid_out(workers=1)
    first = only(ev.Assign, tell(state, ev.Feed(1, 2)))
    assert tell(state, lost(first, 1)) == [ev.Start(0)]
    again = only(ev.Assign, tell(state, ev.WorkerUp(0, 1.0)))
    assert again.task == first.task._replace(id=again.task.id)
    assert again.task.id > first.task.id


def test_a_late_result_of_a_lost_attempt_changes_nothing() -> None:
    state = laid_out()
    first, _ = of(ev.Assign, tell(state, ev.Feed(1, 4)))
    tell(state, lost(first), ev.WorkerUp(first.worker, 1.0))
    before = running(state)
    assert tell(state, done(first)) == []
    assert running(state) == before


def test_a_sample_that_takes_three_workers_down_fails_its_batch() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 1))
    assert of(ev.DeliverError, die(state, 0, times=2)) == []
    assert only(ev.DeliverError, die(state, 0, times=1)).error == Trouble("died", 0, 3, "was killed")


def test_deaths_on_different_samples_are_not_added_up() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 4))
    assert of(ev.DeliverError, die(state, 0, times=2) + die(state, 1, times=2)) == []


def test_a_sample_that_takes_workers_down_is_left_out_where_that_is_asked_for() -> None:
    state = laid_out(workers=1, poison_raises=False)
    tell(state, ev.Feed(1, 4))
    before = only(ev.Assign, die(state, 1, times=3))
    poisoned = only(ev.Assign, tell(state, done(before)))
    assert [(one.task.start, one.task.samples, one.task.poisoned) for one in (before, poisoned)] == [
        (0, 1, False),
        (1, 1, True),
    ]


def test_a_batch_made_by_one_worker_fails_as_a_whole_when_it_takes_workers_down() -> None:
    state = started(Kind.WHOLE, workers=1)
    tell(state, ev.Feed(0, 4))
    assert only(ev.DeliverError, die(state, 2, times=3)).error == Trouble("died", 2, 3, "was killed")
    assert running(state) == []


def test_a_death_in_a_task_that_was_taken_back_counts_against_its_sample_too() -> None:
    state = laid_out(workers=2)
    state.local.sample_s = state.local.pace_s = 0.001
    first, other, queued, *_ = of(ev.Assign, tell(state, ev.Feed(1, 8)))
    tell(state, done(other, at_s=8.99))
    assert of(ev.Cancel, tell(state, ev.Tick(9.0, (0, 0)))) == [ev.Cancel(first.worker, queued.task.id)]
    tell(state, done(first, at_s=9.0), lost(queued, queued.task.start))
    assert state.deaths == {(1, queued.task.start): 1}


def test_a_worker_that_dies_again_and_again_with_work_it_never_began_is_given_up() -> None:
    state = started(workers=1)
    tell(state, ev.Feed(0, 2))
    for _ in range(4):
        actions = tell(state, ev.WorkerUp(0, 1.0), ev.WorkerLost(0, -1, -1, "was killed"))
    assert of(ev.Start, actions) == []
    assert only(ev.DeliverError, actions).error == Trouble("start", tries=4, cause="was killed")


def test_the_death_of_an_idle_worker_is_nobodys_fault() -> None:
    state = started(workers=1)
    for _ in range(10):
        assert tell(state, ev.WorkerLost(0, -1, -1, "was killed"), ev.WorkerUp(0, 1.0)) == [ev.Start(0)]
    assert tasks(tell(state, ev.Feed(0, 2))) == [(0, 0, 0, 2)]


# ---- hangs


def test_a_worker_that_hangs_while_it_starts_is_killed_and_the_second_time_given_up() -> None:
    state = new_state(CoreConfig(workers=1, kind=Kind.SLOTS, hang_s=2.0))
    tell(state, ev.Feed(0, 2))
    for attempt in range(2):
        began = 100.0 * attempt
        assert tell(state, ev.WorkerStarted(0, began), ev.Tick(began + 19.9, (0,))) == []
        assert tell(state, ev.Tick(began + 20.0, (0,))) == [ev.Dump(0, 20.0), ev.Kill(0, "hang")]
        assert tell(state, ev.Tick(began + 45.0, (0,))) == []
        actions = tell(state, ev.WorkerLost(0, -1, -1, "was silent", hung=True))
    assert only(ev.DeliverError, actions).error == Trouble("start", tries=2, cause="was silent")


def test_without_a_hang_timeout_a_worker_that_is_long_in_starting_is_reported_every_minute() -> None:
    state = new_state(CoreConfig(workers=1, kind=Kind.SLOTS))
    tell(state, ev.WorkerStarted(0, 0.0))
    assert [tell(state, ev.Tick(at, (0,))) for at in (59.0, 60.0, 61.0, 120.0)] == [
        [],
        [ev.Dump(0, 60.0)],
        [],
        [ev.Dump(0, 120.0)],
    ]


def test_a_silent_worker_is_killed_after_the_hang_timeout() -> None:
    state = laid_out(workers=1, hang_s=2.0)
    tell(state, ev.Feed(1, 2), ev.Tick(0.0, (5,)))
    assert tell(state, ev.Tick(1.9, (5,))) == []
    assert tell(state, ev.Tick(2.1, (5,))) == [ev.Dump(0, 2.1), ev.Kill(0, "hang")]


def test_a_worker_that_is_not_given_a_core_is_not_silent() -> None:
    state = laid_out(workers=1, hang_s=2.0)
    tell(state, ev.Feed(1, 2), ev.Tick(0.0, (5,), (7.0,)))
    assert tell(state, ev.Tick(9.0, (5,), (14.5,))) == [], "1.5 s of these 9 were its own"
    assert tell(state, ev.Tick(9.6, (5,), (14.5,))) == [ev.Dump(0, pytest.approx(2.1)), ev.Kill(0, "hang")]


def test_nor_is_one_that_starts_without_a_core() -> None:
    state = new_state(CoreConfig(workers=1, kind=Kind.SLOTS, hang_s=2.0))
    tell(state, ev.Feed(0, 2), ev.WorkerStarted(0, 100.0))
    assert tell(state, ev.Tick(150.0, (0,), (31.0,))) == []
    assert of(ev.Kill, tell(state, ev.Tick(151.0, (0,), (31.0,)))) == [ev.Kill(0, "hang")]


def test_a_replacement_begins_to_wait_anew() -> None:
    state = laid_out(workers=1, hang_s=2.0)
    tell(state, ev.Feed(1, 2), ev.Tick(0.0, (5,), (50.0,)))
    tell(state, ev.WorkerLost(0, -1, -1, "was killed"), ev.WorkerStarted(0, 1.0), ev.WorkerUp(0, 1.0))
    assert tell(state, ev.Tick(1.1, (5,), (0.1,)), ev.Tick(3.0, (5,), (0.1,))) == []
    assert of(ev.Kill, tell(state, ev.Tick(3.2, (5,), (0.1,)))) == [ev.Kill(0, "hang")]


def test_a_worker_without_tasks_is_not_silent_when_it_is_given_one_between_two_ticks() -> None:
    """The agent looks seldom while nothing is to be done."""
    state = laid_out(workers=1, hang_s=0.5)
    tell(state, ev.Tick(10.0, (5,)))
    assert of(ev.Kill, tell(state, ev.Feed(1, 2), ev.Tick(10.5, (5,)), ev.Tick(10.9, (5,)))) == []
    assert of(ev.Kill, tell(state, ev.Tick(11.0, (5,)))) == [ev.Kill(0, "hang")]


def test_a_minute_without_a_core_is_not_reported_as_silence() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 2), ev.Tick(0.0, (5,), (0.0,)))
    assert tell(state, ev.Tick(70.0, (5,), (30.0,))) == []
    assert tell(state, ev.Tick(90.0, (5,), (30.0,))) == [ev.Dump(0, 60.0)]


def test_a_worker_that_finishes_samples_is_not_silent() -> None:
    state = laid_out(workers=1, hang_s=2.0)
    tell(state, ev.Feed(1, 2), ev.Tick(0.0, (5,)), ev.Tick(1.9, (6,)))
    assert tell(state, ev.Tick(3.0, (6,))) == []


def test_without_a_timeout_a_silent_worker_is_reported_every_minute_and_left_alone() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 2), ev.Tick(0.0, (5,)))
    reports = tell(state, *(ev.Tick(float(at), (5,)) for at in range(1, 150)))
    assert [action.silent_s for action in of(ev.Dump, reports)] == [WARN_SILENT_S, 2 * WARN_SILENT_S]
    assert of(ev.Kill, reports) == []


def test_a_worker_that_waits_for_memory_does_not_hang() -> None:
    state = started(Kind.WHOLE, workers=1, pages=1, hang_s=2.0)
    assign = only(ev.Assign, tell(state, ev.Feed(0, 2)))
    state.memory.grow(4096)
    state.memory.alloc(4096)
    tell(state, ev.Prepared(0, assign.task.id, 100))
    assert of(ev.Kill, tell(state, ev.Tick(0.0, (1,)), ev.Tick(9.0, (1,)))) == []


def test_a_sample_that_hangs_two_workers_fails_its_batch() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 2))
    assert of(ev.DeliverError, die(state, 0, times=1, hung=True)) == []
    assert only(ev.DeliverError, die(state, 0, times=1, hung=True)).error == Trouble(
        "hung", 0, 2, "was killed"
    )


# ---- slow samples


def test_work_queued_behind_a_slow_sample_goes_to_another_worker() -> None:
    state = laid_out(workers=2)
    state.local.sample_s = state.local.pace_s = 0.001
    slow, other, *_ = of(ev.Assign, tell(state, ev.Feed(1, 4), ev.Feed(2, 4)))
    tell(state, done(other, at_s=0.99))
    actions = tell(state, ev.Tick(1.0, (0, 0)))
    assert {action.worker for action in of(ev.Cancel, actions)} == {slow.worker}


def test_what_runs_is_never_taken_back() -> None:
    state = laid_out(workers=2)
    first, second = of(ev.Assign, tell(state, ev.Feed(1, 4)))
    assert of(ev.Cancel, tell(state, ev.Tick(100.0, (0, 0)))) == []
    assert {task.id for task in running(state)} == {first.task.id, second.task.id}


# ---- samples that differ


def test_a_batch_takes_the_layout_of_its_first_sample_and_is_placed_by_it() -> None:
    state = started(workers=1)
    assign = only(ev.Assign, tell(state, ev.Feed(0, 2)))
    assert assign.task.offset == -1
    assert only(ev.PlaceResult, tell(state, ev.Prepared(0, assign.task.id, 0, 0))).layout == 0


def test_the_next_batch_is_expected_to_look_like_the_last() -> None:
    state = laid_out(workers=1)
    task = only(ev.Assign, tell(state, ev.Feed(1, 2))).task
    assert (task.layout, task.offset >= 0) == (0, True)


def test_a_batch_of_another_layout_starts_over_with_it_once() -> None:
    state = laid_out(workers=2)
    first, second = of(ev.Assign, tell(state, ev.Feed(1, 4)))
    actions = tell(state, ev.Misfit(first.worker, first.task.id, 1))
    assert of(ev.Cancel, actions) == [ev.Cancel(second.worker, second.task.id)]
    assert {task.layout for task in running(state)} == {1}


def test_a_batch_that_fits_no_one_layout_is_left_to_one_worker() -> None:
    state = laid_out(workers=1)
    first = only(ev.Assign, tell(state, ev.Feed(1, 2)))
    second = only(ev.Assign, tell(state, ev.Misfit(0, first.task.id, 1)))
    third = only(ev.Assign, tell(state, ev.Misfit(0, second.task.id, 2)))
    assert (third.task.kind, third.task.samples) == (Kind.WHOLE, 2)


def test_samples_that_cannot_travel_make_this_batch_and_all_later_ones_whole() -> None:
    state = started(Kind.PARTS, workers=1)
    assign = only(ev.Assign, tell(state, ev.Feed(0, 4)))
    assert only(ev.Assign, tell(state, ev.Refused(0, assign.task.id))).task.kind is Kind.WHOLE
    tell(state, ev.Feed(1, 4))
    assert {batch.kind for batch in state.batches.values()} == {Kind.WHOLE}


def test_a_batch_of_nothing_is_left_to_the_collate_function() -> None:
    state = started(workers=1)
    task = only(ev.Assign, tell(state, ev.Feed(0, 0))).task
    assert (task.kind, task.samples) == (Kind.WHOLE, 0)


def test_a_batch_of_nothing_survives_the_death_of_its_worker() -> None:
    state = started(workers=1)
    assign = only(ev.Assign, tell(state, ev.Feed(0, 0)))
    assert tasks(tell(state, lost(assign), ev.WorkerUp(0, 1.0))) == [(0, 0, 0, 0)]


# ---- samples that fail


def test_the_first_failing_sample_of_a_batch_is_its_error_whichever_fails_first() -> None:
    state = laid_out(workers=2)
    first, second = of(ev.Assign, tell(state, ev.Feed(1, 4)))
    assert of(ev.DeliverError, tell(state, failed(second, 3))) == []
    assert only(ev.DeliverError, tell(state, failed(first, 1))).error == b"error of 1"


def test_samples_behind_a_failure_are_not_prepared() -> None:
    state = laid_out(workers=1)
    first = only(ev.Assign, tell(state, ev.Feed(1, 100)))
    actions = tell(state, failed(first, 0))
    assert only(ev.DeliverError, actions).seq == 1
    assert running(state) == []


def test_samples_before_a_failure_are_still_prepared_as_one_of_them_may_fail_too() -> None:
    state = laid_out(workers=2)
    first, second = of(ev.Assign, tell(state, ev.Feed(1, 4)))
    tell(state, failed(second, 2))
    assert only(ev.DeliverError, tell(state, done(first))).error == b"error of 2"


def test_after_an_error_the_next_batch_is_delivered() -> None:
    state = laid_out(workers=1)
    first = only(ev.Assign, tell(state, ev.Feed(1, 2), ev.Feed(2, 2)))
    second = only(ev.Assign, tell(state, failed(first, 0)))
    assert only(ev.Deliver, tell(state, done(second))).seq == 2


def test_left_out_samples_are_named_and_a_batch_of_none_is_an_error() -> None:
    state = laid_out(workers=1)
    first = only(ev.Assign, tell(state, ev.Feed(1, 2), ev.Feed(2, 2)))
    actions = tell(state, done(first, dropped=(1,)))
    assert only(ev.Deliver, actions).dropped == (1,)
    second = only(ev.Assign, actions)
    assert only(ev.DeliverError, tell(state, done(second, dropped=(0, 1)))).error == Trouble("empty")


# ---- collate functions


def test_a_collate_runs_when_all_parts_are_there_and_gets_them_in_order() -> None:
    state = started(Kind.PARTS, workers=2)
    first, second = of(ev.Assign, tell(state, ev.Feed(0, 4)))
    late = only(ev.PlaceResult, tell(state, ev.Prepared(second.worker, second.task.id, 100)))
    early = only(ev.PlaceResult, tell(state, ev.Prepared(first.worker, first.task.id, 100), done(second)))
    assert only(ev.Assign, tell(state, done(first))).task.parts == (early.offset, late.offset)


@pytest.mark.parametrize(("refers", "kept"), [(False, 1), (True, 2)])
def test_parts_are_given_back_unless_the_collated_batch_refers_to_them(refers: bool, kept: int) -> None:
    state = started(Kind.PARTS, workers=1)
    part = only(ev.Assign, tell(state, ev.Feed(0, 2)))
    collate = only(ev.Assign, tell(state, ev.Prepared(0, part.task.id, 100), done(part)))
    tell(state, ev.Prepared(0, collate.task.id, 100), done(collate, refers=refers))
    assert state.memory.used == kept * 4096


def test_parts_that_a_collate_function_holds_on_to_are_kept_until_it_lets_go() -> None:
    state = started(Kind.PARTS, workers=1)
    part = only(ev.Assign, tell(state, ev.Feed(0, 2)))
    collate = only(ev.Assign, tell(state, ev.Prepared(0, part.task.id, 100), done(part)))
    tell(state, ev.Prepared(0, collate.task.id, 100), done(collate, holds=True), ev.Released(0))
    assert state.memory.used == 4096
    tell(state, ev.Dropped(0, collate.task.id))
    assert state.memory.used == 0


# ---- ends


def test_an_abort_voids_what_is_open_and_keeps_its_memory_until_no_task_can_write_it() -> None:
    state = laid_out(workers=1)
    assign = only(ev.Assign, tell(state, ev.Feed(1, 2)))
    assert tell(state, ev.Abort()) == [ev.Cancel(0, assign.task.id)]
    assert state.memory.used == 4096
    tell(state, ev.Dropped(0, assign.task.id))
    assert state.memory.used == 0


@pytest.mark.parametrize("late", [done, lambda one: failed(one, 0), lambda one: ev.Refused(0, one.task.id)])
def test_what_a_worker_says_of_a_void_task_changes_nothing(late: Callable[[ev.Assign], Event]) -> None:
    state = laid_out(workers=1)
    assign = only(ev.Assign, tell(state, ev.Feed(1, 2)))
    assert tell(state, ev.Abort())[1:] + tell(state, late(assign)) == []
    assert (state.memory.used, state.kind) == (0, Kind.SLOTS)


def test_a_batch_that_was_delivered_before_an_abort_is_still_the_users() -> None:
    state = laid_out(workers=1)
    tell(state, done(only(ev.Assign, tell(state, ev.Feed(1, 2)))), ev.Abort())
    assert state.memory.used == 4096
    tell(state, ev.Released(1))
    assert state.memory.used == 0


def test_a_worker_that_has_grown_too_large_finishes_its_work_and_is_replaced() -> None:
    state = laid_out(workers=1)
    assign = only(ev.Assign, tell(state, ev.Feed(1, 4)))
    assert tell(state, ev.Retire(0)) == []
    assert tell(state, done(assign)) == [ev.Stop(0)]
    assert tell(state, ev.WorkerLost(0, -1, -1, "exited with code 0")) == [ev.Start(0)]
    assert tasks(tell(state, ev.WorkerUp(0, 1.0))) == [(0, 1, 2, 2)]


def test_when_a_worker_cannot_start_every_batch_fails_with_its_error() -> None:
    state = started(workers=2)
    tell(state, ev.Feed(0, 2))
    actions = tell(state, ev.InitFailed(1, b"no such file"), ev.Feed(1, 2))
    assert of(ev.DeliverError, actions) == [
        ev.DeliverError(0, b"no such file"),
        ev.DeliverError(1, b"no such file"),
    ]
