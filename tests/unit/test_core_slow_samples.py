"""A worker that is held up by one sample: what it had beside that goes to others, the sample itself does not."""

from __future__ import annotations

from typing import Any

from penstock.core import events as ev
from penstock.core.core import State
from penstock.core.events import Kind
from tests.unit.core_steps import done, laid_out, of, started, tell

PACE_S = 0.001


def in_parts() -> State:
    """Two workers whose tasks take a millisecond each, with one batch of parts behind them."""
    state = started(Kind.PARTS)
    for assign in of(ev.Assign, tell(state, ev.Feed(0, 4))):
        tell(state, ev.Prepared(assign.worker, assign.task.id, 100))
        tell(state, done(assign, at_s=2 * PACE_S, took_s=2 * PACE_S))
    return state


def busy(state: State) -> tuple[ev.Assign, list[ev.Assign]]:
    """The collate of batch 0, and the tasks of two further batches that were assigned after it."""
    collate = next(
        issued
        for worker in state.workers
        for issued in worker.tasks.values()
        if issued.task.kind is Kind.COLLATE
    )
    worker = next(worker.id for worker in state.workers if collate.task.id in worker.tasks)
    later = of(ev.Assign, tell(state, ev.Feed(1, 4), ev.Feed(2, 4)))
    return ev.Assign(worker, collate.task), later


def late(state: State, worker: int) -> list[ev.Action]:
    """What is done about a worker that has been at its task for a second, while the other has just begun one."""
    state.workers[1 - worker].head_s = 0.99
    return tell(state, ev.Tick(1.0, (0, 0)))


def test_a_result_that_waits_to_be_written_is_not_what_the_worker_runs() -> None:
    state = in_parts()
    collate, later = busy(state)
    mine = [assign for assign in later if assign.worker == collate.worker]
    assert len(mine) >= 2
    tell(state, ev.Prepared(collate.worker, collate.task.id, 100))
    cancelled = {
        action.task
        for action in of(ev.Cancel, late(state, collate.worker))
        if action.worker == collate.worker
    }
    assert mine[0].task.id not in cancelled, "it runs: another worker would only be held up by it too"
    assert {assign.task.id for assign in mine[1:]} | {collate.task.id} == cancelled


def test_a_result_taken_back_is_made_again_and_the_late_one_is_ignored() -> None:
    state = in_parts()
    collate, _ = busy(state)
    other = 1 - collate.worker
    for issued in list(state.workers[other].tasks.values()):
        assign = ev.Assign(other, issued.task)
        tell(state, ev.Prepared(other, issued.task.id, 100), done(assign, at_s=0.01, took_s=PACE_S))
    tell(state, ev.Prepared(collate.worker, collate.task.id, 100))
    actions = late(state, collate.worker)
    again = next(assign for assign in of(ev.Assign, actions) if assign.task.seq == 0)
    assert (again.worker, again.task.kind) == (other, Kind.COLLATE)
    tell(state, ev.Prepared(other, again.task.id, 100))
    delivered = of(ev.Deliver, tell(state, done(again, at_s=1.1)))
    assert [action.seq for action in delivered] == [0]
    assert of(ev.Deliver, tell(state, done(collate, at_s=4.0))) == []


def test_a_slow_sample_that_has_come_at_last_is_not_made_again() -> None:
    state = in_parts()
    collate, later = busy(state)
    other = 1 - collate.worker
    slow, *_ = [assign for assign in later if assign.worker == other]
    assert of(ev.Cancel, late(state, other))
    (placed,) = of(ev.PlaceResult, tell(state, ev.Prepared(other, slow.task.id, 100)))
    again = of(ev.Cancel, tell(state, ev.Tick(1.1, (0, 0))))
    assert placed.task not in [action.task for action in again]


def test_a_worker_that_is_held_up_gets_nothing_new() -> None:
    state = in_parts()
    collate, _ = busy(state)
    actions = late(state, collate.worker) + tell(state, ev.Feed(3, 4), ev.Feed(4, 4))
    stuck = {
        worker.id for worker in state.workers if any(issued.cancelled for issued in worker.tasks.values())
    }
    assert stuck
    assert not stuck & {assign.worker for assign in of(ev.Assign, actions)}


def in_slots(**config: Any) -> tuple[State, list[ev.Assign]]:
    """One worker is held up by a sample of batch 1 and has a part of batch 2 in its queue; the other is not."""
    state = laid_out(**config)
    state.local.sample_s = state.local.pace_s = PACE_S
    assigned = of(ev.Assign, tell(state, ev.Feed(1, 4), ev.Feed(2, 4)))
    state.due.remove(1)  # the slow sample's own batch would hold back batch 2 by the order alone
    tell(state, done(assigned[1], at_s=0.99, took_s=PACE_S))
    return state, [assign for assign in assigned if assign.worker == assigned[0].worker]


def finish_all_but(state: State, worker: int, at_s: float) -> list[ev.Action]:
    """The other worker does whatever it is given until nothing is left."""
    actions: list[ev.Action] = []
    other = 1 - worker
    while todo := [issued.task for issued in state.workers[other].tasks.values()]:
        actions += tell(state, done(ev.Assign(other, todo[0]), at_s=at_s, took_s=PACE_S))
    return actions


def test_a_batch_does_not_wait_for_a_task_that_is_held_up_but_is_to_be_copied() -> None:
    state, slow = in_slots()
    assert [assign.task.seq for assign in slow] == [1, 2]
    assert of(ev.Cancel, tell(state, ev.Tick(1.0, (0, 0)))) == [ev.Cancel(slow[0].worker, slow[1].task.id)]
    (delivered,) = of(ev.Deliver, finish_all_but(state, slow[0].worker, 1.0))
    assert (delivered.seq, delivered.nbytes) == (2, 0)
    tell(state, ev.Released(2))
    used = state.memory.used
    tell(state, ev.Dropped(slow[1].worker, slow[1].task.id))
    assert state.memory.used < used, "the memory was kept for the late task"


def test_what_two_workers_would_write_differently_is_not_taken_back() -> None:
    state, slow = in_slots(repeatable=False)
    assert of(ev.Cancel, tell(state, ev.Tick(1.0, (0, 0)))) == []
    assert of(ev.Deliver, finish_all_but(state, slow[0].worker, 1.0)) == []


def test_a_batch_waits_for_a_task_that_was_taken_back_and_may_be_about_to_write() -> None:
    state, slow = in_slots()
    tell(state, ev.Tick(1.0, (0, 0)))
    tell(
        state, done(slow[0], at_s=1.0)
    )  # the slow sample has come: the next thing the worker does is to look for messages
    assert of(ev.Deliver, finish_all_but(state, slow[0].worker, 1.0)) == []
    (delivered,) = of(ev.Deliver, tell(state, ev.Dropped(slow[1].worker, slow[1].task.id)))
    assert (delivered.seq, delivered.nbytes) == (2, 4096)


def test_a_worker_that_is_alone_keeps_what_it_has() -> None:
    """Nobody else could do it; and a result taken back is made again, for ever, where memory is short."""
    state = laid_out(workers=1)
    state.local.sample_s = state.local.pace_s = PACE_S
    assert len(of(ev.Assign, tell(state, ev.Feed(1, 4)))) == 2
    assert of(ev.Cancel, tell(state, ev.Tick(9.0, (0,)))) == []
