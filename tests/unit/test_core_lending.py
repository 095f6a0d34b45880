"""Cores that are lent: their workers finish what they have, begin nothing, and go on when the cores are back."""

from __future__ import annotations

import pytest

from penstock.core import events as ev
from penstock.core.core import FRUITLESS_DEATHS
from penstock.core.events import Kind, Trouble
from penstock.core.state import State
from tests.unit.core_steps import done, laid_out, lost, of, only, running, started, tasks, tell


def test_workers_whose_cores_are_lent_finish_what_they_have_and_begin_nothing() -> None:
    state = laid_out(workers=3)
    begun = of(ev.Assign, tell(state, ev.Feed(1, 12)))
    assert [one.worker for one in begun] == [0, 1, 2]
    assert tell(state, ev.Allow(1)) == []
    assert tasks(tell(state, *(done(one) for one in begun[1:]))) == []
    assert tasks(tell(state, done(begun[0]))) == [(0, 1, 6, 2)]
    assert sorted(tasks(tell(state, ev.Allow(3)))) == [(1, 1, 8, 2), (2, 1, 10, 2)]


def test_a_rank_without_any_core_waits_and_a_batch_that_is_complete_leaves() -> None:
    state = laid_out(workers=1)
    (first,) = of(ev.Assign, tell(state, ev.Feed(1, 2)))
    tell(state, ev.Allow(0))
    assert [one.seq for one in of(ev.Deliver, tell(state, done(first)))] == [1]
    assert tell(state, ev.Feed(2, 2)) == []
    assert tasks(tell(state, ev.Allow(1))) == [(0, 2, 0, 2)]


def test_more_cores_than_workers_change_nothing() -> None:
    state = laid_out(workers=2)
    assert tell(state, ev.Allow(5)) == []
    assert {one.worker for one in of(ev.Assign, tell(state, ev.Feed(1, 8)))} == {0, 1}


def test_workers_that_come_for_borrowed_cores_begin_when_they_are_up() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 8))
    assert tell(state, ev.ResizePool(2), ev.Allow(2)) == [ev.Start(1)]
    assert tasks(tell(state, ev.WorkerUp(1, 0.0))) == [(1, 1, 2, 2)]


def test_a_lost_worker_whose_core_is_lent_is_replaced_and_its_work_is_done_by_others() -> None:
    state = laid_out(workers=2)
    begun = of(ev.Assign, tell(state, ev.Feed(1, 4)))
    tell(state, ev.Allow(1))
    assert tell(state, lost(begun[1])) == [ev.Start(1)]
    assert tasks(tell(state, ev.WorkerUp(1, 0.0))) == []
    assert tasks(tell(state, done(begun[0]))) == [(0, 1, 2, 2)]


def test_a_late_sample_is_not_moved_to_a_worker_that_rests() -> None:
    state = laid_out(workers=2)
    tell(state, ev.Feed(1, 8))
    state.local.pace_s = 0.001
    tell(state, ev.Allow(1), *(ev.Done(1, task.id, 0.001, 0.0) for task in running(state) if task.start))
    tell(state, ev.Tick(60.0, (0, 0)))
    assert not state.workers[1].tasks


def test_streams_neither_lend_nor_borrow() -> None:
    state = started(Kind.STREAM, workers=2)
    tell(state, ev.Allow(0))
    assert only(ev.Assign, tell(state, ev.Feed(0, 4))).worker == 0


# ---- spare workers that fail


def borrowing(spares: int = 2) -> State:
    """A rank with two workers of its own that may use more cores; its spare workers are on their way."""
    state = laid_out(workers=2)
    size = 2 + spares
    tell(state, ev.ResizePool(size), ev.Allow(size, own=2))
    tell(state, *(ev.WorkerStarted(worker, 0.0) for worker in range(2, size)))
    return state


def goes_on(state: State) -> bool:
    """Whether the rank's own workers, and only they, still make a batch."""
    actions = tell(state, ev.Feed(1, 8))
    waiting, workers = of(ev.Assign, actions), set[int]()
    while waiting:
        workers.add(waiting[0].worker)
        answered = tell(state, done(waiting.pop(0)))
        actions += answered
        waiting += of(ev.Assign, answered)
    return state.fatal is None and workers == {0, 1} and len(of(ev.Deliver, actions)) == 1


def gone(worker: int) -> ev.WorkerLost:
    return ev.WorkerLost(worker, -1, -1, "was killed")


def test_a_spare_worker_whose_init_fails_is_asked_to_end_and_the_others_go_on() -> None:
    state = borrowing()
    assert tell(state, ev.InitFailed(2, b"init")) == [ev.GiveUp(2, b"init"), ev.Stop(2)]
    assert tell(state, gone(2)) == []
    assert tell(state, ev.WorkerUp(3, 0.0)) == [ev.Stop(3)]
    assert goes_on(state)


def test_the_user_is_told_of_the_first_spare_worker_that_fails_only() -> None:
    state = borrowing(spares=3)
    failed = [tell(state, ev.InitFailed(worker, b"init")) for worker in (4, 2, 3)]
    assert [len(of(ev.GiveUp, actions)) for actions in failed] == [1, 0, 0]
    assert (state.local.size, state.local.most) == (2, 2)
    assert goes_on(state)


def test_spare_workers_before_the_one_that_failed_go_on() -> None:
    state = borrowing()
    tell(state, ev.WorkerUp(2, 0.0), ev.InitFailed(3, b"init"), gone(3))
    assert {one.worker for one in of(ev.Assign, tell(state, ev.Feed(1, 12)))} == {0, 1, 2}


def test_a_spare_worker_that_dies_at_its_start_is_started_again_and_then_given_up() -> None:
    state = borrowing(spares=1)
    for _ in range(FRUITLESS_DEATHS):
        assert tell(state, gone(2), ev.WorkerStarted(2, 0.0)) == [ev.Start(2)]
    trouble = Trouble("start", tries=FRUITLESS_DEATHS + 1, cause="was killed")
    assert tell(state, gone(2)) == [ev.GiveUp(2, trouble)]
    assert goes_on(state)


def test_a_spare_worker_that_the_system_does_not_start_is_given_up() -> None:
    state = laid_out(workers=2)
    assert tell(state, ev.ResizePool(3), ev.Allow(3, own=2)) == [ev.Start(2)]
    assert tell(state, ev.NotStarted(2, "no memory")) == [ev.GiveUp(2, Trouble("start", cause="no memory"))]
    assert goes_on(state)


def test_a_worker_that_was_spare_when_it_was_not_started_and_is_the_ranks_own_now_is_tried_again() -> None:
    state = laid_out(workers=2)
    tell(state, ev.ResizePool(3), ev.Allow(3, own=2), ev.Allow(3, own=3))
    assert tell(state, ev.NotStarted(2, "no memory")) == [ev.Start(2)]


@pytest.mark.parametrize("ended", [True, False])
def test_a_place_whose_spare_worker_was_given_up_is_staffed_when_it_becomes_the_ranks_own(
    ended: bool,
) -> None:
    state = borrowing()
    tell(state, ev.InitFailed(2, b"init"), *([gone(2)] if ended else []))
    actions = tell(state, ev.ResizePool(3), ev.Allow(3, own=3), *([] if ended else [gone(2)]))
    assert of(ev.Start, actions) == [ev.Start(2)]
    tell(state, ev.WorkerUp(2, 0.0))
    assert {one.worker for one in of(ev.Assign, tell(state, ev.Feed(1, 12)))} == {0, 1, 2}


def test_an_own_worker_that_fails_still_ends_training() -> None:
    state = borrowing()
    tell(state, ev.InitFailed(1, b"init"))
    assert state.fatal == b"init"
    state = borrowing()
    for _ in range(FRUITLESS_DEATHS + 1):
        tell(state, ev.Retire(1), ev.WorkerLost(1, -1, -1, "left"), ev.WorkerStarted(1, 0.0), gone(1))
    assert isinstance(state.fatal, Trouble)
    assert state.fatal.kind == "start"
