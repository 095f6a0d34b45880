"""Who gets memory, who gives way, and when it is an error that there is none."""

from __future__ import annotations

from penstock.core import events as ev
from penstock.core.core import State, on_event
from penstock.core.events import Kind, Trouble
from tests.unit.core_steps import PAGE, done, laid_out, lost, of, only, running, started, tasks, tell


def taken(state: State, pages: int) -> int:
    """The user holds this much: batch 1 is delivered and not released."""
    assign = only(ev.Assign, tell(state, ev.Feed(1, 4 * pages)))
    actions = tell(state, ev.Prepared(assign.worker, assign.task.id, pages * PAGE), done(assign))
    return only(ev.Deliver, actions).offset


def test_memory_is_asked_for_in_steps_as_it_is_needed() -> None:
    state = started(Kind.WHOLE, workers=1, pages=3)
    assign = only(ev.Assign, tell(state, ev.Feed(0, 2)))
    assert on_event(state, ev.Prepared(0, assign.task.id, 5000)) == [ev.Grow(0, 2 * PAGE)]


def test_free_memory_at_the_end_counts_when_the_arena_grows() -> None:
    state = started(Kind.WHOLE, workers=1, pages=3)
    taken(state, 2)
    tell(state, ev.Released(1))
    assign = only(ev.Assign, tell(state, ev.Feed(2, 2)))
    assert on_event(state, ev.Prepared(0, assign.task.id, 3 * PAGE)) == [ev.Grow(2 * PAGE, 3 * PAGE)]


def test_when_the_machine_refuses_memory_the_arena_makes_do_with_what_it_has() -> None:
    state = started(Kind.WHOLE, workers=1, pages=100)
    taken(state, 2)
    assign = only(ev.Assign, tell(state, ev.Feed(2, 2)))
    on_event(state, ev.Prepared(0, assign.task.id, PAGE))
    assert on_event(state, ev.GrowDenied("no space left")) == [ev.Starved(2, PAGE)]


def test_a_refusal_of_much_memory_is_none_of_less() -> None:
    """A later batch was refused a large part; the page that the due one needs is still there to be had."""
    state = started(Kind.WHOLE, workers=2, pages=100)
    taken(state, 2)
    due, later = of(ev.Assign, tell(state, ev.Feed(2, 2), ev.Feed(3, 2)))
    assert on_event(state, ev.Prepared(later.worker, later.task.id, 9 * PAGE)) == [
        ev.Grow(2 * PAGE, 11 * PAGE)
    ]
    assert on_event(state, ev.GrowDenied("no space left")) == []
    assert on_event(state, ev.Prepared(due.worker, due.task.id, PAGE)) == [ev.Grow(2 * PAGE, 3 * PAGE)]


def test_where_memory_is_dear_a_batch_that_is_not_due_waits_for_what_others_have() -> None:
    state = started(Kind.WHOLE, workers=3, pages=100, enough=2)
    one, two, three = of(ev.Assign, tell(state, ev.Feed(0, 2), ev.Feed(1, 2), ev.Feed(2, 2)))
    for each in (one, two):
        assert len(of(ev.Grow, tell(state, ev.Prepared(each.worker, each.task.id, PAGE)))) == 1
    assert of(ev.Grow, tell(state, ev.Prepared(three.worker, three.task.id, PAGE))) == []
    tell(state, done(one))
    (given,) = of(ev.PlaceResult, tell(state, ev.Released(0)))
    assert (given.worker, given.task) == (three.worker, three.task.id)
    assert state.memory.end == 2 * PAGE


def test_enough_is_counted_in_memory_as_it_is_handed_out() -> None:
    """A batch of a byte more than a page takes two."""
    state = started(Kind.WHOLE, workers=3, pages=100, enough=3)
    for each in of(ev.Assign, tell(state, ev.Feed(0, 2), ev.Feed(1, 2), ev.Feed(2, 2))):
        assert len(of(ev.Grow, tell(state, ev.Prepared(each.worker, each.task.id, PAGE + 1)))) == 1


def test_the_batch_that_is_due_gets_more_than_enough() -> None:
    """The loop keeps what it was given: nobody else can give way."""
    state = started(Kind.WHOLE, workers=1, pages=100, enough=1)
    taken(state, 1)
    due = only(ev.Assign, tell(state, ev.Feed(2, 2)))
    assert on_event(state, ev.Prepared(0, due.task.id, PAGE)) == [ev.Grow(PAGE, 2 * PAGE)]


def test_what_nobody_uses_goes_back_when_nothing_is_due_and_is_had_again() -> None:
    state = started(Kind.WHOLE, workers=2, pages=4)
    low, high = of(ev.Assign, tell(state, ev.Feed(1, 2), ev.Feed(2, 2)))
    for one in (low, high):
        tell(state, ev.Prepared(one.worker, one.task.id, 2 * PAGE), done(one))
    tell(state, ev.Released(1))
    assert of(ev.Shrink, tell(state, ev.Tick(1.0, (0, 0)))) == [ev.Shrink(0, 2 * PAGE)]
    assign = only(ev.Assign, tell(state, ev.Feed(3, 2)))
    assert on_event(state, ev.Prepared(assign.worker, assign.task.id, PAGE)) == [ev.Grow(0, PAGE)]


def test_a_refusal_is_forgotten_when_all_has_been_given_back() -> None:
    state = started(Kind.WHOLE, workers=1, pages=100)
    assign = only(ev.Assign, tell(state, ev.Feed(0, 2)))
    on_event(state, ev.Prepared(0, assign.task.id, PAGE))
    tell(state, ev.GrowDenied("no space left"), ev.Abort(), ev.Dropped(0, assign.task.id), ev.Tick(1.0, (0,)))
    again = only(ev.Assign, tell(state, ev.Feed(1, 2)))
    assert on_event(state, ev.Prepared(0, again.task.id, PAGE)) == [ev.Grow(0, PAGE)]


def test_a_cancelled_tasks_memory_has_no_new_owner_before_the_task_is_gone() -> None:
    state = laid_out(workers=1, pages=1)
    old = only(ev.Assign, tell(state, ev.Feed(1, 4)))
    assert of(ev.Assign, tell(state, ev.Abort(), ev.Feed(2, 4))) == []
    assert only(ev.Assign, tell(state, ev.Dropped(0, old.task.id))).task.offset == old.task.offset


def overtaken() -> tuple[State, ev.Assign]:
    """Batches 1 and 2 are ready and fill the arena; batch 0, which is due, is not."""
    state = started(Kind.WHOLE, workers=3, pages=2)
    due, *later = of(ev.Assign, tell(state, *(ev.Feed(seq, 2) for seq in range(3))))
    for one in later:
        tell(state, ev.Prepared(one.worker, one.task.id, 100), done(one))
    return state, due


def test_the_latest_batch_gives_way_to_the_due_one() -> None:
    state, due = overtaken()
    assert only(ev.PlaceResult, tell(state, ev.Prepared(due.worker, due.task.id, 100))).task == due.task.id
    assert [len(state.batches[seq].slabs()) for seq in (0, 1, 2)] == [1, 1, 0]


def test_what_gave_way_is_prepared_again() -> None:
    state, due = overtaken()
    actions = tell(state, ev.Prepared(due.worker, due.task.id, 100))
    assert [seq for _, seq, _, _ in tasks(actions)] == [2]


def test_while_the_due_batch_is_short_no_later_one_takes_what_comes_free() -> None:
    state = started(Kind.WHOLE, workers=2, pages=2)
    taken(state, 1)
    due, later = of(ev.Assign, tell(state, ev.Feed(2, 2), ev.Feed(3, 2)))
    tell(state, ev.Prepared(due.worker, due.task.id, 2 * PAGE))
    assert of(ev.PlaceResult, tell(state, ev.Prepared(later.worker, later.task.id, 1))) == []
    assert only(ev.PlaceResult, tell(state, ev.Released(1))).task == due.task.id


def test_the_consumer_is_asked_once_when_nothing_else_can_give_way() -> None:
    state = started(Kind.WHOLE, workers=1, pages=1)
    taken(state, 1)
    assign = only(ev.Assign, tell(state, ev.Feed(2, 2)))
    actions = tell(state, ev.Prepared(0, assign.task.id, 100), ev.Tick(1.0, (0,)), ev.Tick(2.0, (0,)))
    assert actions == [ev.Starved(2, 100)]


def test_a_batch_that_fits_beside_nothing_the_consumer_can_give_is_an_error() -> None:
    state = started(Kind.WHOLE, workers=1, pages=1)
    taken(state, 1)
    assign = only(ev.Assign, tell(state, ev.Feed(2, 2)))
    tell(state, ev.Prepared(0, assign.task.id, 100))
    error = only(ev.DeliverError, tell(state, ev.Stuck(2, 100))).error
    assert error == Trouble("memory", need_bytes=100, limit_bytes=PAGE)


def test_an_answer_that_comes_when_the_memory_is_there_already_is_no_error() -> None:
    state = started(Kind.WHOLE, workers=1, pages=1)
    taken(state, 1)
    assign = only(ev.Assign, tell(state, ev.Feed(2, 2)))
    tell(state, ev.Prepared(0, assign.task.id, 100))
    assert only(ev.PlaceResult, tell(state, ev.Released(1))).task == assign.task.id
    assert tell(state, ev.Stuck(2, 100)) == []


def test_a_worker_whose_results_all_wait_for_memory_works_on_the_due_batch() -> None:
    state = started(Kind.PARTS, workers=1, pages=1, task_size=4)
    state.local.sample_s = 0.001
    part, ahead = of(ev.Assign, tell(state, ev.Feed(0, 4), ev.Feed(1, 4)))
    tell(state, ev.Prepared(0, part.task.id, 100), ev.Prepared(0, ahead.task.id, 100))
    assert only(ev.Assign, tell(state, done(part, took_s=100.0))).task.kind is Kind.COLLATE


def test_results_are_placed_in_the_order_their_batches_are_due() -> None:
    state = started(Kind.WHOLE, workers=2, pages=1)
    taken(state, 1)
    first, second = of(ev.Assign, tell(state, ev.Feed(2, 2), ev.Feed(3, 2)))
    tell(
        state, ev.Prepared(second.worker, second.task.id, 100), ev.Prepared(first.worker, first.task.id, 100)
    )
    assert only(ev.PlaceResult, tell(state, ev.Released(1))).task == first.task.id


def test_a_lost_worker_gives_back_memory_that_only_its_result_would_have_filled() -> None:
    state = started(Kind.WHOLE, workers=1)
    assign = only(ev.Assign, tell(state, ev.Feed(0, 2)))
    tell(state, ev.Prepared(0, assign.task.id, 100), lost(assign))
    assert state.memory.used == 0


def test_a_lost_worker_leaves_the_slab_that_others_write_too() -> None:
    state = laid_out(workers=2)
    first, second = of(ev.Assign, tell(state, ev.Feed(1, 4)))
    tell(state, lost(first), ev.WorkerUp(first.worker, 1.0))
    assert {task.offset for task in running(state)} == {second.task.offset}


def test_a_later_batch_gets_no_slab_while_an_earlier_ones_result_waits_for_memory() -> None:
    state = laid_out(workers=2, pages=2)
    assign = only(ev.Assign, tell(state, ev.Feed(1, 2)))
    for layout in (1, 2):
        assign = only(ev.Assign, tell(state, ev.Misfit(assign.worker, assign.task.id, layout)))
    assert tell(state, ev.Prepared(assign.worker, assign.task.id, 3 * PAGE)) == [ev.Starved(1, 3 * PAGE)]
    assert of(ev.Assign, tell(state, ev.Feed(2, 4))) == []


def test_an_answer_is_no_error_when_there_is_room_but_no_worker_to_use_it() -> None:
    state = laid_out(workers=1, pages=1, task_size=4)
    tell(state, done(only(ev.Assign, tell(state, ev.Feed(1, 4)))))
    assert tell(state, ev.Feed(2, 4)) == [ev.Starved(2, PAGE)]
    tell(state, ev.WorkerLost(0, -1, -1, "was killed"), ev.Released(1))
    assert of(ev.DeliverError, tell(state, ev.Stuck(2, PAGE))) == []


def test_a_batch_may_be_short_twice_and_the_consumer_is_asked_twice() -> None:
    state = started(Kind.PARTS, workers=1, pages=2)
    for seq in (0, 1):
        part = only(ev.Assign, tell(state, ev.Feed(seq, 2)))
        asked = of(ev.Starved, tell(state, ev.Prepared(0, part.task.id, 100)))
        assert [one.seq for one in asked] == [1] * seq
        collate = only(ev.Assign, tell(state, *[ev.Released(0), ev.Stuck(1, 100)][: 2 * seq], done(part)))
        actions = tell(state, ev.Prepared(0, collate.task.id, PAGE * (1 + seq)), done(collate, refers=True))
    assert of(ev.Starved, actions) == [ev.Starved(1, 2 * PAGE)]
