"""Cores that are lent: their workers finish what they have, begin nothing, and go on when the cores are back."""

from __future__ import annotations

from penstock.core import events as ev
from penstock.core.events import Kind
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
