"""What a rank reports to the manager of cores."""

from __future__ import annotations

from penstock.core import events as ev
from penstock.core.events import Kind
from penstock.core.standing import Next, glance, standing
from penstock.policy.reporting import Glance
from tests.unit.core_steps import done, laid_out, lost, of, started, tell

FIRST = Next(epoch=0, batch=1, seq=1)


def test_a_rank_that_was_asked_for_nothing_has_no_work() -> None:
    view = standing(laid_out(workers=2), FIRST, home=2)
    assert (view.home, view.allowed, view.taken, view.ahead, view.wants) == (2, 2, 1, 0.0, 0)


def test_a_glance_shows_what_training_does_and_whether_a_core_of_its_own_idles() -> None:
    state = laid_out(workers=3)
    assert glance(state, FIRST, 2) == Glance(asked=0, taken=1, prepared=0, idles=True, own=2)
    begun = of(ev.Assign, tell(state, ev.Feed(1, 4), ev.Feed(2, 4)))
    assert not glance(state, FIRST, 2).idles
    first, *others = sorted(begun, key=lambda one: one.worker)
    tell(state, *(done(one) for one in others))
    assert glance(state, FIRST, 1) == Glance(asked=2, taken=1, prepared=0, idles=False, own=1)
    tell(state, done(first))
    seen = glance(state, Next(epoch=0, batch=2, seq=2), 1)
    assert (seen.taken, seen.prepared) == (2, 1)


def test_a_running_task_counts_as_half_done() -> None:
    state = laid_out(workers=2)
    tell(state, ev.Feed(1, 8))
    view = standing(state, FIRST, home=2)
    assert (view.busy, view.waiting, view.waiting_due, view.ahead) == (2, 4, 2, 0.25)
    assert view.batch_s == 8 * (state.local.sample_s or 0.0) > 0


def test_delivered_batches_that_training_has_not_taken_count_as_ahead() -> None:
    state = laid_out(workers=2)
    begun = of(ev.Assign, tell(state, ev.Feed(1, 4), ev.Feed(2, 4)))
    tell(state, *(done(one) for one in begun))
    assert standing(state, FIRST, home=2).ahead == 1.5
    assert standing(state, Next(epoch=0, batch=2, seq=2), home=2).ahead == 0.5


def test_what_a_gpu_lane_has_still_to_make_does_not_count_as_ahead() -> None:
    state = laid_out(workers=2)
    begun = of(ev.Assign, tell(state, ev.Feed(1, 4), ev.Feed(2, 4)))
    tell(state, *(done(one) for one in begun))
    assert standing(state, FIRST._replace(at_lane=1.25), home=2).ahead == 0.25
    assert standing(state, FIRST._replace(at_lane=4.0), home=2).ahead == 0.0


def test_workers_with_more_than_half_of_a_due_task_done_are_soon_free() -> None:
    state = laid_out(workers=2)
    tell(state, ev.Feed(1, 8))
    state.local.pace_s = 1.0
    assert standing(state, FIRST, home=2).soon == 0
    tell(state, ev.Tick(1.5, (1, 1)))
    assert standing(state, FIRST, home=2).soon == 2


def test_a_batch_that_cannot_be_divided_is_work_for_one_worker() -> None:
    state = started(Kind.WHOLE, workers=2)
    tell(state, *(ev.Feed(seq, 8) for seq in range(4)))
    view = standing(state, Next(0, 0, 0), home=2)
    assert (view.busy, view.waiting, view.waiting_due) == (2, 2, 0)


def test_a_batch_that_awaits_its_collate_is_work_and_not_ready() -> None:
    state = started(Kind.PARTS, workers=1)
    (first,) = of(ev.Assign, tell(state, ev.Feed(0, 2)))
    tell(state, ev.Allow(0), ev.Prepared(0, first.task.id, 100), done(first))
    view = standing(state, Next(0, 0, 0), home=1)
    assert (view.busy, view.waiting, view.ahead) == (0, 1, 0.5)


def test_batches_that_no_memory_is_left_for_are_no_work() -> None:
    state = laid_out(workers=1, pages=2)
    tell(state, *(ev.Feed(seq, 4) for seq in range(1, 9)))
    first = state.workers[0].tasks
    while first:  # until all memory is in use
        issued = next(iter(first.values()))
        tell(state, ev.Done(0, issued.task.id, 1.0, 0.0))
    view = standing(state, FIRST, home=1)
    assert (view.ahead, view.waiting, view.wants) == (2.0, 0, 0)


def test_what_is_behind_samples_that_nobody_has_does_not_count_as_ahead() -> None:
    state = laid_out(workers=2)
    begun = of(ev.Assign, tell(state, ev.Feed(1, 4), ev.Feed(2, 2)))
    begun += of(ev.Assign, tell(state, done(begun[1])))
    tell(state, done(begun[2]))
    assert standing(state, FIRST, home=2).ahead == 1.75
    tell(state, ev.Allow(0), lost(begun[0]))
    assert standing(state, FIRST, home=2).ahead == 0.5


def test_a_rank_whose_spare_worker_has_failed_wants_no_core_that_no_worker_could_use() -> None:
    state = laid_out(workers=2)
    tell(state, ev.ResizePool(4), ev.Allow(4, own=2), ev.WorkerUp(2, 0.0), ev.Feed(1, 40))
    assert standing(state, FIRST, home=2).wants == 8
    tell(state, ev.NotStarted(3, "no memory"))
    assert standing(state, FIRST, home=2).wants == 3
