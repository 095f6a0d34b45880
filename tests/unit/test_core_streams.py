"""Iterable datasets: whose turn it is, what an end means, and what is lost with a worker."""

from __future__ import annotations

from typing import Any

from penstock.core import events as ev
from penstock.core.core import State
from penstock.core.events import Action, Kind
from tests.unit.core_steps import done, lost, of, only, running, started, tasks, tell


def streaming(*, workers: int = 2, fed: int = 4, **config: Any) -> tuple[State, list[ev.Assign]]:
    state = started(Kind.STREAM, workers=workers, **config)
    return state, of(ev.Assign, tell(state, *(ev.Feed(seq, 2) for seq in range(fed))))


def yields(state: State, assign: ev.Assign) -> list[Action]:
    return tell(state, ev.Prepared(assign.worker, assign.task.id, 100), done(assign))


def ends(state: State, assign: ev.Assign) -> list[Action]:
    return tell(state, ev.Exhausted(assign.worker, assign.task.id))


def test_workers_are_asked_in_turn() -> None:
    state, assigned = streaming(workers=3, fed=3)
    assert [(one.worker, one.task.seq) for one in assigned] == [(0, 0), (1, 1), (2, 2)]
    assert tasks(yields(state, assigned[0]) + tell(state, ev.Feed(3, 2))) == [(0, 3, 0, 2)]


def test_a_resumed_epoch_goes_on_with_the_worker_whose_turn_it_was() -> None:
    _, assigned = streaming(workers=3, fed=1, first_worker=2)
    assert [one.worker for one in assigned] == [2]


def test_what_a_worker_owed_at_its_end_is_asked_of_the_others_behind_what_they_owe() -> None:
    state, (first, _) = streaming(fed=4)
    ends(state, first)
    assert state.due == [1, 3, 0, 2]
    assert {batch.worker for batch in state.batches.values()} == {1}


def test_what_a_worker_yielded_before_its_end_is_still_delivered_in_its_place() -> None:
    state, (first, second) = streaming(fed=4)
    state.local.sample_s = 0.001
    (queued, _) = of(ev.Assign, tell(state, ev.Tick(0.1, (0, 0))))
    tell(state, ev.Prepared(0, first.task.id, 100))
    ends(state, queued)
    assert [one.seq for one in of(ev.Deliver, tell(state, done(first)) + yields(state, second))] == [0, 1]


def test_the_end_is_told_once_when_all_have_ended_and_names_the_newest_batch_asked_for() -> None:
    state, (first, second) = streaming(fed=2)
    assert ends(state, first) == []
    assert ends(state, second) == [ev.DeliverEnd(1)]
    assert tell(state, ev.Feed(2, 2), ev.Tick(1.0, (0, 0))) == []


def test_a_new_epoch_begins_with_the_first_worker_and_all_iterators() -> None:
    state, (first, second) = streaming(fed=2)
    ends(state, first)
    ends(state, second)
    assert [worker for worker, *_ in tasks(tell(state, ev.Abort(), ev.Feed(2, 2), ev.Feed(3, 2)))] == [0, 1]


def test_a_lost_worker_is_an_error_in_the_place_of_the_batch_it_owed() -> None:
    state, (first, _) = streaming(fed=2)
    error = only(ev.DeliverError, tell(state, lost(first)))
    assert (error.seq, getattr(error.error, "kind", "")) == (0, "stream")


def test_a_lost_worker_that_owed_nothing_is_an_error_when_its_turn_comes() -> None:
    state, _ = streaming(fed=0)
    assert tell(state, ev.WorkerLost(0, -1, -1, "was killed")) == []
    assert only(ev.DeliverError, tell(state, ev.Feed(0, 2))).seq == 0


def test_a_worker_that_dies_behind_its_end_with_a_result_not_yet_written_is_an_error() -> None:
    state, (first, _) = streaming(fed=4)
    state.local.sample_s = 0.001
    (queued, _) = of(ev.Assign, tell(state, ev.Tick(0.1, (0, 0))))
    tell(state, ev.Prepared(0, first.task.id, 100))
    ends(state, queued)
    assert only(ev.DeliverError, tell(state, ev.WorkerLost(0, -1, -1, "was killed"))).seq == 0


def test_a_lost_worker_is_started_again_for_the_next_epoch_not_for_this_one() -> None:
    state, (first, _) = streaming(fed=2)
    assert of(ev.Start, tell(state, lost(first))) == []
    assert of(ev.Start, tell(state, ev.Abort())) == [ev.Start(0)]


def test_what_a_stream_yielded_is_placed_in_turn_as_it_can_never_give_way() -> None:
    state, (first, second) = streaming(fed=2, pages=1)
    assert of(ev.PlaceResult, tell(state, ev.Prepared(1, second.task.id, 100))) == []
    assert only(ev.PlaceResult, tell(state, ev.Prepared(0, first.task.id, 100))).worker == 0


def test_whose_turn_it_is_goes_by_the_order_of_delivery_not_by_the_number() -> None:
    state, (first, second) = streaming(fed=2, pages=1)
    state.local.sample_s = 0.001
    again = only(ev.Assign, ends(state, first))
    assert (again.task.seq, state.due) == (0, [1, 0])
    placed = tell(state, ev.Prepared(1, again.task.id, 100), ev.Prepared(1, second.task.id, 100))
    assert only(ev.PlaceResult, placed).task == second.task.id


def test_small_batches_of_a_stream_are_placed_as_they_come() -> None:
    state, (_, second) = streaming(fed=2)
    assert only(ev.PlaceResult, tell(state, ev.Prepared(1, second.task.id, 100))).worker == 1


def test_out_of_order_the_worker_that_owes_least_is_asked() -> None:
    state, (first, _) = streaming(fed=4, in_order=False)
    state.local.sample_s = 0.001
    delivered, asked = 0, [first]
    for seq in range(4, 24):
        said = yields(state, asked.pop(0)) + tell(state, ev.Feed(seq, 2))
        delivered += len(of(ev.Deliver, said))
        asked += [one for one in of(ev.Assign, said) if one.worker == 0]
    assert delivered == 20, "none waits for worker 1, which yields nothing"
    assert sum(batch.worker == 1 for batch in state.batches.values() if not batch.delivered) == 2


def test_out_of_order_batches_of_a_stream_take_memory_as_they_are_yielded() -> None:
    state, (_, second) = streaming(fed=2, pages=1, in_order=False)
    placed = only(ev.PlaceResult, tell(state, ev.Prepared(1, second.task.id, 100)))
    assert (placed.worker, state.due) == (1, [1, 0])
    assert only(ev.Deliver, tell(state, done(second))).seq == 1


def test_a_worker_with_an_iterator_is_not_replaced_for_its_size() -> None:
    state, assigned = streaming(fed=2)
    assert tell(state, ev.Retire(0)) == []
    assert of(ev.Stop, yields(state, assigned[0])) == []
    assert [task.seq for task in running(state)] == [1]
