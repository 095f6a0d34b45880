"""The share of a pool: how much of the work it may get, and what local workers do meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core import events as ev
from penstock.core.core import CoreConfig, new_state
from penstock.core.events import Kind
from penstock.core.pools import PoolConfig
from penstock.core.scheduling import is_shared
from penstock.core.state import State
from tests.unit.core_steps import PAGE, of, tasks, tell

SIZE = 16


def shared(
    share: float | None, *, here: int = 1, far: int = 2, kind: Kind = Kind.SLOTS, **config: Any
) -> State:
    """Workers here and elsewhere, all equally fast; the layout is known."""
    beside = (PoolConfig(far, share=share),)
    state = new_state(CoreConfig(workers=here, kind=kind, limit_bytes=1000 * PAGE, beside=beside, **config))
    tell(state, ev.LayoutKnown(0, (1024,)))
    state.layout, state.sample_bytes = 0, 1024.0
    tell(state, *(ev.WorkerUp(worker.id, 0.0) for worker in state.workers))
    for pool in state.pools:
        pool.sample_s = pool.pace_s = 0.001
    state.pools[1].latency_s = 0.001
    return state


class Work:
    """All workers do what they are given, one task each in turn; training takes every batch at once."""

    def __init__(self, state: State, batches: int = 8) -> None:
        self.state, self.at_s, self.fed = state, 0.0, 0
        self.given = [0 for _ in state.pools]
        self.delivered: list[int] = []
        self.steps: list[tuple[int, int, int, int]] = []
        self.largest = 0
        for _ in range(batches):
            self.feed()

    def feed(self) -> None:
        self.fed += 1
        self.tell(ev.Feed(self.fed - 1, SIZE, self.at_s))

    def tell(self, *events: ev.Event) -> None:
        actions = tell(self.state, *events)
        self.steps += tasks(actions)
        for assign in of(ev.Assign, actions):
            self.given[self.state.workers[assign.worker].pool.number] += assign.task.samples
            self.largest = max(self.largest, assign.task.samples)
        for deliver in of(ev.Deliver, actions):
            self.delivered.append(deliver.seq)
            self.tell(ev.Released(deliver.seq))
            self.feed()

    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.at_s += 0.004
            for worker in self.state.workers:
                if worker.tasks:
                    issued = next(iter(worker.tasks.values()))
                    took_s = 0.001 * issued.task.samples
                    if issued.cancelled:
                        self.tell(ev.Dropped(worker.id, issued.task.id))
                    else:
                        self.tell(ev.Done(worker.id, issued.task.id, took_s, self.at_s))

    def count_anew(self) -> None:
        self.given = [0 for _ in self.given]


@given(
    changes=st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9]), st.integers(0, 3), st.integers(1, 40)),
        min_size=1,
    ),
    task_size=st.sampled_from([0, 1, 3, 7]),
)
def test_a_pool_gets_at_most_its_share_of_what_is_issued_from_a_change_on_within_one_task(
    changes: list[tuple[float, int, int]], task_size: int
) -> None:
    work = Work(shared(None, task_size=task_size))
    for share, workers, rounds in changes:
        work.count_anew()
        work.tell(ev.Offload(workers, share))
        work.tell(
            *(ev.WorkerUp(one.id, work.at_s) for one in work.state.workers if not (one.up or one.surplus))
        )
        work.go_on(rounds)
        remote = work.given[1]
        assert remote <= share * sum(work.given) + (work.largest if share else 0)
    assert work.delivered == list(range(len(work.delivered)))


def test_a_pool_with_a_share_gets_it_where_local_workers_are_the_limit() -> None:
    work = Work(shared(0.5, here=1, far=4))
    work.go_on(200)
    assert work.given[1] / sum(work.given) == pytest.approx(0.5, abs=0.05)


def test_share_0_gives_it_nothing_new() -> None:
    work = Work(shared(0.0))
    work.go_on(50)
    assert work.given[1] == 0
    assert len(work.delivered) > 5


def steps_of(state: State) -> list[tuple[int, int, int, int]]:
    """What workers were given in 50 rounds."""
    work = Work(state)
    work.go_on(50)
    return work.steps


@pytest.mark.parametrize("far", [1, 3])
def test_beside_workers_that_get_nothing_local_ones_get_what_they_would_alone(far: int) -> None:
    alone, beside = shared(0.0, far=0), shared(0.0, far=far)
    assert not is_shared(beside)
    assert steps_of(beside) == steps_of(alone)


def test_beside_workers_that_never_come_local_ones_get_what_they_would_alone() -> None:
    alone, beside = shared(None, far=0), shared(None, far=3)
    for worker in beside.pools[1].members:
        worker.up = False
    assert steps_of(beside) == steps_of(alone)


def test_workers_that_get_nothing_new_are_planned_with_until_their_tasks_are_done() -> None:
    work = Work(shared(0.5))
    assert work.state.workers[1].tasks
    work.tell(ev.Offload(2, 0.0))
    assert is_shared(work.state)
    work.go_on(50)
    assert not is_shared(work.state)


def test_workers_that_get_nothing_are_asked_to_end_when_they_are_too_many() -> None:
    assert of(ev.Stop, tell(shared(0.0, far=2), ev.ResizePool(1, pool=1))) == [ev.Stop(2)]


def test_at_share_1_local_workers_take_nothing() -> None:
    work = Work(shared(1.0))
    work.go_on(50)
    assert work.given[0] == 0
    assert len(work.delivered) > 5


def test_at_share_1_local_workers_do_what_only_they_can() -> None:
    work = Work(shared(1.0, kind=Kind.WHOLE))
    assert work.given[1] == 0
    assert work.given[0] > 0


def test_at_share_1_local_workers_do_everything_when_nobody_else_is_left() -> None:
    work = Work(shared(1.0))
    for worker in work.state.pools[1].members:
        work.tell(ev.WorkerLost(worker.id, -1, -1, "was cut off"))
    work.count_anew()
    work.go_on(50)
    assert work.given[1] == 0
    assert len(work.delivered) > 5


def test_at_share_1_a_due_batch_goes_to_local_workers_when_a_remote_one_is_lost() -> None:
    work = Work(shared(1.0))
    first = next(
        worker
        for worker in work.state.pools[1].members
        if any(one.task.seq == 0 for one in worker.tasks.values())
    )
    assert work.given[0] == 0
    work.tell(ev.WorkerLost(first.id, -1, -1, "was cut off"))
    local = work.state.workers[0]
    assert {issued.task.seq for issued in local.tasks.values()} == {0}


def test_at_share_1_local_workers_step_in_when_all_others_are_late() -> None:
    work = Work(shared(1.0))
    beats = tuple(0 for _ in work.state.workers)
    work.tell(ev.Tick(0.3, beats))
    assert work.state.workers[0].tasks
    assert work.given[0] > 0


def test_a_worker_in_transit_cannot_catch_up_for_an_absence() -> None:
    work = Work(shared(0.5, far=1))
    (worker,) = work.state.pools[1].members
    work.tell(ev.WorkerLost(worker.id, -1, -1, "was cut off"))
    work.go_on(200)
    work.tell(ev.WorkerUp(worker.id, work.at_s))
    assert work.state.pools[1].credit <= SIZE


def test_without_workers_elsewhere_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that is not used must not slow down scheduling."""
    state = shared(0.0, far=2)
    for worker in state.pools[1].members:
        worker.up = False
    monkeypatch.setattr("penstock.core.scheduling.Outlook", lambda _: pytest.fail("pools were compared"))
    work = Work(state)
    work.go_on(40)
    assert len(work.delivered) > 8
    assert work.given[1] == 0
