"""More workers and fewer, while the work goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core import events as ev
from penstock.core.core import STOP_S
from penstock.core.events import Kind
from penstock.core.state import State
from penstock.policy.tasks import NEW_SAMPLES, NEW_TASK, OLD_SAMPLES
from tests.unit.core_steps import PAGE, done, laid_out, lost, of, only, running, started, tasks, tell


def test_new_workers_are_started_and_work_when_they_are_up() -> None:
    state = laid_out(workers=1)
    assert tasks(tell(state, ev.Feed(1, 8))) == [(0, 1, 0, 2)]
    assert tell(state, ev.ResizePool(3)) == [ev.Start(1), ev.Start(2)]
    assert tasks(tell(state, ev.WorkerUp(2, 0.0))) == [(2, 1, 2, 2)]
    assert tasks(tell(state, ev.WorkerUp(1, 0.0))) == [(1, 1, 4, 2)]


SAMPLE_S = 0.0005


def experienced(workers: int, kind: Kind = Kind.SLOTS, *, task_size: int = 0) -> State:
    """Workers that have prepared enough; of batches 1 to 3 the first is being prepared by them."""
    state = laid_out(workers=workers) if kind is Kind.SLOTS else started(kind, workers=workers)
    state.config = replace(state.config, task_size=task_size)
    for worker in state.workers:
        worker.prepared = OLD_SAMPLES
    state.local.sample_s = SAMPLE_S
    end = state.memory.end
    tell(state, ev.Grown(end, end + 200 * PAGE), ev.Feed(1, 64), ev.Feed(2, 64), ev.Feed(3, 64))
    return state


def test_a_new_worker_begins_with_little_of_the_batch_behind_the_one_that_is_due() -> None:
    state = experienced(1)
    tell(state, ev.ResizePool(2))
    assigned = only(ev.Assign, tell(state, ev.WorkerUp(1, 0.0)))
    for begun in range(0, NEW_SAMPLES, NEW_TASK):
        assert tasks([assigned]) == [(1, 2, begun, NEW_TASK)]
        assigned, *more = of(ev.Assign, tell(state, done(assigned, took_s=NEW_TASK * SAMPLE_S)))
        assert bool(more) == (begun + NEW_TASK == NEW_SAMPLES), "one at a time, until it is like the others"
    assert assigned.task.seq == 1
    assert assigned.task.samples > NEW_TASK


@pytest.mark.parametrize("whom", ["stops", "leaves"])
def test_a_new_worker_helps_with_what_is_due_where_no_other_can_be_counted_on(whom: str) -> None:
    state = experienced(2)
    if whom == "stops":
        tell(state, lost(ev.Assign(1, running(state)[-1]), 60), ev.Tick(9.0, (0, 0)))
    else:
        tell(state, lost(ev.Assign(1, running(state)[-1]), 60), ev.Retire(0))
    _, seq, _, samples = tasks(tell(state, ev.WorkerUp(1, state.now_s)))[0]
    assert seq == 1
    assert samples > NEW_TASK


def test_a_new_worker_helps_with_the_batch_that_is_due_where_there_is_no_other() -> None:
    state = laid_out(workers=1)
    state.config = replace(state.config, task_size=0)
    state.workers[0].prepared, state.local.sample_s = OLD_SAMPLES, SAMPLE_S
    tell(state, ev.Feed(1, 128), ev.ResizePool(2))
    ((worker, seq, _, samples),) = tasks(tell(state, ev.WorkerUp(1, 0.0)))
    assert (worker, seq, samples) == (1, 1, NEW_TASK)


def test_one_that_takes_the_place_of_another_is_new() -> None:
    state = experienced(2)
    first = ev.Assign(0, running(state)[0])
    assert tasks(tell(state, lost(first, 0), ev.WorkerUp(0, 0.0))) == [(0, 2, 0, NEW_TASK)]


@pytest.mark.parametrize("size", [1, 64])
def test_tasks_of_a_size_that_was_asked_for_are_not_cut_for_new_workers(size: int) -> None:
    state = experienced(2, task_size=size)
    first = ev.Assign(0, running(state)[0])
    assert tasks(tell(state, lost(first), ev.WorkerUp(0, 0.0)))[0] == (0, 1, 0, size)


def test_a_new_worker_makes_the_whole_batch_that_is_due() -> None:
    state = experienced(2, Kind.WHOLE)
    first = ev.Assign(0, running(state)[0])
    assert tasks(tell(state, lost(first), ev.WorkerUp(0, 0.0))) == [(0, 1, 0, 64)]


def test_a_new_worker_puts_together_what_is_due() -> None:
    state = started(Kind.PARTS, workers=1, task_size=0)
    state.workers[0].prepared, state.local.sample_s = OLD_SAMPLES, 0.001
    tell(state, ev.Grown(0, 200 * PAGE), ev.Feed(0, 1), ev.Feed(1, 64), ev.ResizePool(2))
    first = ev.Assign(0, running(state)[0])
    state.local.sample_s = 10.0  # from now on the other has enough to do
    second = only(ev.Assign, tell(state, ev.WorkerUp(1, 0.0)))
    assert [first.task.seq, second.task.seq] == [0, 1]
    for part in (first, second):
        assert not of(ev.Assign, tell(state, ev.Prepared(part.worker, part.task.id, 100, -1)))
        found = of(ev.Assign, tell(state, done(part, took_s=10.0 * part.task.samples)))
    assert [(each.worker, each.task.seq, each.task.kind) for each in found] == [(1, 0, Kind.COLLATE)]


def test_workers_that_begin_together_are_not_new_to_each_other() -> None:
    state = started(workers=2, task_size=8)
    assert [task[1] for task in tasks(tell(state, ev.Feed(0, 64), ev.Feed(1, 64)))] == [0, 0]


def test_surplus_workers_finish_what_they_have_and_get_no_more() -> None:
    state = laid_out(workers=3)
    first, second, third = of(ev.Assign, tell(state, ev.Feed(1, 12)))
    assert tell(state, ev.ResizePool(1)) == []
    assert tell(state, done(second)) == [ev.Stop(second.worker)]
    assert tell(state, done(third)) == [ev.Stop(third.worker)]
    assert tasks(tell(state, done(first))) == [(0, 1, 6, 2)]


def test_an_idle_surplus_worker_is_asked_to_end_at_once_and_is_not_replaced() -> None:
    state = started(workers=2)
    assert tell(state, ev.ResizePool(1)) == [ev.Stop(1)]
    assert tell(state, ev.WorkerLost(1, -1, -1, "exited with code 0")) == []
    assert tell(state, ev.ResizePool(2)) == [ev.Start(1)]


def test_the_work_of_a_surplus_worker_that_is_killed_goes_to_the_others() -> None:
    state = laid_out(workers=2)
    first, second = of(ev.Assign, tell(state, ev.Feed(1, 4)))
    tell(state, ev.ResizePool(1))
    assert tell(state, lost(second, 2)) == []
    again = only(ev.Assign, tell(state, done(first)))
    assert (again.worker, again.task.start, again.task.samples) == (0, 2, 2)


def test_a_worker_that_is_wanted_again_before_it_has_been_asked_to_end_stays() -> None:
    state = laid_out(workers=2)
    first, second = of(ev.Assign, tell(state, ev.Feed(1, 12)))
    assert tell(state, ev.ResizePool(1), ev.ResizePool(2)) == []
    assert tasks(tell(state, done(second))) == [(1, 1, 4, 2)]
    assert first.task in running(state)


def test_a_worker_that_is_wanted_again_while_it_ends_is_started_when_it_has() -> None:
    state = started(workers=2)
    assert tell(state, ev.ResizePool(1), ev.ResizePool(2)) == [ev.Stop(1)]
    assert tell(state, ev.WorkerLost(1, -1, -1, "exited with code 0")) == [ev.Start(1)]
    assert state.workers[1].fruitless == 0


def test_a_worker_that_comes_up_when_it_is_no_longer_wanted_leaves_at_once() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 12), ev.ResizePool(2), ev.WorkerStarted(1, 0.0), ev.ResizePool(1))
    assert tell(state, ev.WorkerUp(1, 0.0)) == [ev.Stop(1)]


def test_surplus_workers_go_on_until_one_that_stays_is_up() -> None:
    state = laid_out(workers=2)
    first, second = of(ev.Assign, tell(state, ev.Feed(1, 12)))
    tell(state, lost(first, 0), ev.ResizePool(1))
    assert tasks(tell(state, done(second))) == [(1, 1, 0, 2)]
    assert tasks(tell(state, ev.WorkerUp(0, 0.0))) == [(0, 1, 4, 2)]
    later = only(ev.Stop, tell(state, done(ev.Assign(1, state.workers[1].tasks.copy().popitem()[1].task))))
    assert later == ev.Stop(1)


def test_tasks_are_cut_for_the_workers_that_there_are_to_be() -> None:
    state = started(workers=1, task_size=0)
    tell(state, ev.ResizePool(4))
    assert tasks(tell(state, ev.Feed(0, 8))) == [(0, 0, 0, 2)]


def test_deaths_of_workers_that_were_to_leave_are_nobodys_fault() -> None:
    state = started(workers=1)
    for _ in range(8):
        tell(state, ev.ResizePool(2), ev.ResizePool(1), ev.WorkerLost(1, -1, -1, "was killed"))
    assert state.fatal is None


def test_a_worker_that_does_not_end_when_asked_is_killed() -> None:
    state = started(workers=2)
    tell(state, ev.Tick(10.0, (0, 0)), ev.ResizePool(1))
    assert of(ev.Kill, tell(state, ev.Tick(10.0 + STOP_S / 2, (0, 0)))) == []
    assert of(ev.Kill, tell(state, ev.Tick(10.0 + STOP_S, (0, 0)))) == [ev.Kill(1, "does not end")]
    assert of(ev.Kill, tell(state, ev.Tick(11.0 + STOP_S, (0, 0)))) == []


def test_work_behind_a_slow_sample_is_not_taken_back_for_workers_that_leave() -> None:
    state = laid_out(workers=2)
    state.local.sample_s = state.local.pace_s = 0.001
    tell(state, ev.Feed(1, 16), ev.ResizePool(1))
    assert of(ev.Cancel, tell(state, ev.Tick(9.0, (0, 0)))) == []


def test_after_a_failure_for_good_nobody_is_started() -> None:
    state = started(workers=1)
    tell(state, ev.InitFailed(0, b"init"))
    assert tell(state, ev.ResizePool(3)) == []


def test_an_iterable_datasets_workers_keep_their_number() -> None:
    state = started(Kind.STREAM, workers=2)
    assert tell(state, ev.ResizePool(5)) == []
    assert len(state.workers) == state.local.size == 2
