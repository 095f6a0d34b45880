"""What remote workers cannot read is done here; and remote workers that take whole batches."""

from __future__ import annotations

from penstock.core import events as ev
from penstock.core.events import Kind
from penstock.core.state import State
from tests.unit.core_steps import of, tell
from tests.unit.test_core_pools import two_pools

HERE, THERE = 0, 1


def queued(state: State, worker: int) -> list[ev.Task]:
    return [issued.task for issued in state.workers[worker].tasks.values()]


def finish_all(state: State, worker: int, at_s: float) -> list[ev.Action]:
    """The worker does all that it has."""
    out: list[ev.Action] = []
    for task in queued(state, worker):
        out += tell(state, ev.Done(worker, task.id, 0.001 * task.samples, at_s))
    return out


def test_what_a_remote_worker_cannot_read_is_done_here() -> None:
    state = two_pools(here=1, far=1, slower=0.1, fed=1)
    given = queued(state, THERE)
    assert given
    for task in given:
        tell(state, ev.Unreached(THERE, task.id))
    assert not queued(state, THERE)
    out: list[ev.Action] = []
    for at_s in range(1, 9):
        out += finish_all(state, HERE, float(at_s))
        assert not queued(state, THERE)
    assert [batch.seq for batch in of(ev.Deliver, out)] == [0]


def test_remote_workers_of_later_batches_go_on() -> None:
    state = two_pools(here=1, far=1, slower=0.1, fed=4)
    first = queued(state, THERE)[0]
    tell(state, ev.Unreached(THERE, first.id))
    tell(state, *(ev.Feed(seq, 8) for seq in range(4, 8)))
    assert {task.seq for task in queued(state, THERE)} - {first.seq}
    assert first.seq not in {task.seq for task in queued(state, THERE)} - {first.seq}


def test_a_pool_that_takes_whole_batches_takes_no_part_of_one() -> None:
    state = two_pools(here=1, far=2, slower=1.0, whole=True)
    tell(state, *(ev.Feed(seq, 8) for seq in range(6)))
    tasks = [*queued(state, 1), *queued(state, 2)]
    assert tasks
    assert all((task.start, task.samples, task.kind) == (0, 8, Kind.SLOTS) for task in tasks)


def test_a_batch_without_a_layout_is_collated_by_a_pool_that_takes_whole_batches() -> None:
    state = two_pools(here=1, far=1, slower=1.0)
    state.kind = Kind.WHOLE
    tell(state, *(ev.Feed(seq, 8) for seq in range(3)))
    assert not queued(state, THERE)
    tell(state, ev.TakeWhole(1, True))
    tell(state, *(ev.Feed(seq, 8) for seq in range(3, 6)))
    assert {task.kind for task in queued(state, THERE)} == {Kind.WHOLE}


def test_a_whole_batch_that_cannot_leave_its_machine_is_made_here() -> None:
    state = two_pools(here=1, far=1, slower=0.1, whole=True)
    state.kind = Kind.WHOLE
    tell(state, *(ev.Feed(seq, 8) for seq in range(3)))
    task = queued(state, THERE)[0]
    tell(state, ev.Refused(THERE, task.id))
    assert task.seq not in {one.seq for one in queued(state, THERE)}
    assert state.batches[task.seq].kind is Kind.WHOLE


def test_the_due_batch_goes_on_here_when_a_part_of_it_is_lost_there() -> None:
    state = two_pools(here=1, far=1, slower=0.001, whole=True)
    tell(state, ev.Feed(0, 8))
    whole = queued(state, THERE)
    if whole:  # the faster pool has it
        tell(state, ev.WorkerLost(THERE, -1, -1, "is gone"))
    out: list[ev.Action] = []
    for at_s in range(1, 9):
        out += finish_all(state, HERE, float(at_s))
    assert [batch.seq for batch in of(ev.Deliver, out)] == [0]
