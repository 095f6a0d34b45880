"""Batches whose bytes are fetched first: what the core waits for, and what it does not."""

from __future__ import annotations

from penstock.core import events as ev
from penstock.core.events import Kind
from tests.unit.core_steps import done, failed, laid_out, lost, of, only, started, tasks, tell


def test_a_sample_is_given_to_a_worker_when_its_bytes_are_here() -> None:
    state = laid_out(workers=2)
    assert tasks(tell(state, ev.Feed(1, 6, fetches=True))) == []
    assert tasks(tell(state, ev.BytesHere(1, 4, 1))) == [(0, 1, 4, 1)]
    assert tasks(tell(state, ev.BytesHere(1, 0, 2))) == [(1, 1, 0, 2)]


def test_samples_that_arrive_one_by_one_make_one_task() -> None:
    state = laid_out(workers=1, task_size=4)
    state.local.sample_s = 1.0
    first = only(ev.Assign, tell(state, ev.Feed(1, 1), ev.Feed(2, 4, fetches=True)))
    for ordinal in (2, 0, 3, 1):
        assert tasks(tell(state, ev.BytesHere(2, ordinal, 1))) == []
    assert tasks(tell(state, done(first))) == [(0, 2, 0, 4)]


def test_workers_do_later_batches_while_the_due_one_waits_for_bytes() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 2, fetches=True))
    later = only(ev.Assign, tell(state, ev.Feed(2, 2)))
    assert later.task.seq == 2
    assert of(ev.Deliver, tell(state, done(later))) == []
    due = only(ev.Assign, tell(state, ev.BytesHere(1, 0, 2)))
    assert [one.seq for one in of(ev.Deliver, tell(state, done(due)))] == [1, 2]


def test_a_batch_that_is_not_divided_waits_for_all_its_bytes() -> None:
    state = started(Kind.WHOLE, workers=1)
    tell(state, ev.Feed(0, 4, fetches=True))
    assert tasks(tell(state, ev.BytesHere(0, 0, 3))) == []
    assert tasks(tell(state, ev.BytesHere(0, 3, 1))) == [(0, 0, 0, 4)]


def test_parts_are_collated_when_all_have_come() -> None:
    state = started(Kind.PARTS, workers=1)
    tell(state, ev.Feed(0, 4, fetches=True))
    first = only(ev.Assign, tell(state, ev.BytesHere(0, 0, 2)))
    tell(state, ev.Prepared(0, first.task.id, 100))
    assert of(ev.Assign, tell(state, done(first))) == []
    second = only(ev.Assign, tell(state, ev.BytesHere(0, 2, 2)))
    tell(state, ev.Prepared(0, second.task.id, 100))
    assert only(ev.Assign, tell(state, done(second))).task.kind is Kind.COLLATE


def test_a_failure_makes_later_bytes_superfluous_and_waits_for_earlier_ones() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 4, fetches=True))
    bad = only(ev.Assign, tell(state, ev.BytesHere(1, 1, 1)))
    assert (
        of(ev.DeliverError, tell(state, failed(bad, 1))) == []
    )  # sample 0 may fail too, and would be told of
    first = only(ev.Assign, tell(state, ev.BytesHere(1, 0, 1)))
    assert only(ev.DeliverError, tell(state, done(first))).error == b"error of 1"
    assert tell(state, ev.BytesHere(1, 2, 2)) == []


def test_a_batch_begun_anew_after_a_failure_still_waits_for_its_bytes() -> None:
    """Samples of another layout than expected came while a later sample failed."""
    state = laid_out(workers=2)
    tell(state, ev.Feed(1, 6, fetches=True))
    odd, bad = of(ev.Assign, tell(state, ev.BytesHere(1, 0, 4)))
    tell(state, failed(bad, 3))
    assert tasks(tell(state, ev.Misfit(odd.worker, odd.task.id, 1))) == [(0, 1, 0, 2), (1, 1, 2, 2)]
    assert tasks(tell(state, ev.BytesHere(1, 4, 2))) == []


def test_a_lost_task_is_done_again_without_fetching_and_others_still_wait() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 4, fetches=True))
    first = only(ev.Assign, tell(state, ev.BytesHere(1, 0, 2)))
    tell(state, lost(first))
    assert tasks(tell(state, ev.WorkerUp(0, 1.0))) == [(0, 1, 0, 2)]


def test_bytes_that_arrive_twice_or_after_an_epoch_was_broken_off_change_nothing() -> None:
    state = laid_out(workers=1)
    tell(state, ev.Feed(1, 2, fetches=True))
    first = only(ev.Assign, tell(state, ev.BytesHere(1, 0, 2)))
    assert tell(state, ev.BytesHere(1, 0, 2)) == []
    tell(state, done(first), ev.Feed(2, 2, fetches=True), ev.Abort())
    assert tell(state, ev.BytesHere(2, 0, 2)) == []


def test_a_batch_begun_anew_keeps_the_bytes_that_are_here() -> None:
    """Its samples cannot travel between workers, so it is prepared as a whole: when all bytes are here."""
    state = started(Kind.PARTS, workers=1)
    tell(state, ev.Feed(0, 4, fetches=True))
    first = only(ev.Assign, tell(state, ev.BytesHere(0, 0, 2)))
    assert tasks(tell(state, ev.Refused(0, first.task.id))) == []
    assert tasks(tell(state, ev.BytesHere(0, 2, 2))) == [(0, 0, 0, 4)]
