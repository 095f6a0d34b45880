"""Workers of unequal pools: who gets what, by what each pool has shown of itself."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import events as ev
from penstock.core.core import FRUITLESS_DEATHS, CoreConfig, new_state
from penstock.core.events import Kind
from penstock.core.pools import PoolConfig
from penstock.core.state import State
from tests.unit.core_steps import PAGE, of, only, tasks, tell


def two_pools(
    *, here: int = 1, far: int = 1, fed: int = 0, slower: float = 10.0, latency_s: float = 0.0, **pool: Any
) -> State:
    """Local workers that take a millisecond a sample and others that take longer; batches of eight samples."""
    beside = (PoolConfig(far, **pool),)
    state = new_state(CoreConfig(workers=here, kind=Kind.SLOTS, limit_bytes=1000 * PAGE, beside=beside))
    tell(state, ev.LayoutKnown(0, (1024,)))
    state.layout, state.sample_bytes = 0, 1024.0
    tell(state, *(ev.WorkerUp(worker.id, 0.0) for worker in state.workers))
    for pool_, cost_s in zip(state.pools, (0.001, 0.001 * slower), strict=True):
        pool_.sample_s = pool_.pace_s = cost_s
    state.pools[1].latency_s = latency_s
    tell(state, *(ev.Feed(seq, 8) for seq in range(fed)))
    return state


def batches_of(state: State, worker: int) -> set[int]:
    return {issued.task.seq for issued in state.workers[worker].tasks.values()}


def test_numbers_of_workers_are_dealt_out_in_the_order_of_coming() -> None:
    state = two_pools(here=2, far=1)
    assert [worker.pool.number for worker in state.workers] == [0, 0, 1]
    assert of(ev.Start, tell(state, ev.ResizePool(3))) == [ev.Start(3)]
    assert of(ev.Start, tell(state, ev.ResizePool(2, pool=1))) == [ev.Start(4)]
    assert [(worker.pool.number, worker.place) for worker in state.workers] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (0, 2),
        (1, 1),
    ]


def test_a_pool_that_grows_again_has_its_own_workers_back() -> None:
    state = two_pools(here=1, far=2)
    assert of(ev.Stop, tell(state, ev.ResizePool(1, pool=1))) == [ev.Stop(2)]
    tell(state, ev.WorkerLost(2, -1, -1, "has ended"), ev.ResizePool(2))
    assert of(ev.Start, tell(state, ev.ResizePool(2, pool=1))) == [ev.Start(2)]


def test_surplus_is_counted_by_pool() -> None:
    state = two_pools(here=2, far=2)
    assert of(ev.Stop, tell(state, ev.ResizePool(1))) == [ev.Stop(1)]
    assert of(ev.Stop, tell(state, ev.ResizePool(0, pool=1))) == [ev.Stop(2), ev.Stop(3)]


def test_a_slow_worker_takes_what_is_due_later_and_leaves_what_is_due_to_the_fast() -> None:
    state = two_pools(here=1, far=1, slower=30.0, fed=12)
    assert 0 in batches_of(state, 0)
    assert batches_of(state, 1)
    assert min(batches_of(state, 1)) * 8 * 0.001 >= 0.030 - 0.008


def test_a_distant_worker_is_given_work_for_its_round_trip() -> None:
    near, far = (two_pools(here=1, far=1, slower=1.0, latency_s=way_s, fed=64) for way_s in (0.0, 0.1))
    assert near.workers[1].load * 0.001 < 0.04
    assert far.workers[1].load * 0.001 >= 0.1


def test_behind_a_slow_link_no_more_is_on_its_way_than_it_delivers() -> None:
    """Its workers are fast, their results arrive one in 10 ms: twice those of a way there and back, 0.12 s, may be on their way."""
    state = two_pools(fed=200, slower=10.0, latency_s=0.1)
    state.pools[1].sample_s = 0.0001
    tell(state, ev.Feed(200, 8))
    assert 12 <= state.workers[1].load <= 2 * 12 + 8


def test_a_slow_worker_idles_where_it_could_only_hold_up_what_there_is() -> None:
    state = two_pools(here=2, far=1, slower=30.0, latency_s=0.2, fed=2)
    assert not state.workers[1 + 1].tasks


def test_a_slow_worker_does_what_is_due_when_it_is_alone() -> None:
    state = two_pools(here=1, far=1, slower=30.0)
    tell(state, ev.WorkerLost(0, -1, -1, "was killed"))
    assert [seq for _, seq, *_ in tasks(tell(state, ev.Feed(0, 1)))] == [0]


def test_tasks_are_sized_by_the_cost_in_their_own_pool() -> None:
    state = two_pools(here=1, far=1, slower=8.0, fed=64)
    here, away = (next(iter(state.workers[worker].tasks.values())).task.samples for worker in (0, 1))
    assert away < here


def test_the_bytes_that_a_pool_owes_are_bounded() -> None:
    state = two_pools(here=1, far=4, slower=1.0, fed=64, queue_bytes=8 * 1024)
    assert 0 < state.pools[1].owed_bytes <= 8 * 1024
    assert sum(worker.load for worker in state.workers[1:]) == 8


def test_a_pools_latency_is_learned_and_is_no_part_of_its_pace() -> None:
    state = two_pools(here=1, far=1)
    state.pools[1].pace_s = state.pools[1].sample_s = None
    first = next(assign for assign in of(ev.Assign, tell(state, ev.Feed(0, 64, 1.0))) if assign.worker == 1)
    took_s = 0.010 * first.task.samples
    tell(state, ev.Done(1, first.task.id, took_s, 1.2 + took_s))
    assert state.pools[1].latency_s == pytest.approx(0.2)
    assert state.pools[1].pace_s == pytest.approx(0.010)


def test_a_worker_of_another_pool_that_never_does_anything_is_given_up_and_the_rest_goes_on() -> None:
    state = two_pools(here=1, far=1)
    state.workers[1].up = False
    for _ in range(FRUITLESS_DEATHS):
        assert of(ev.Start, tell(state, ev.WorkerLost(1, -1, -1, "was killed"))) == [ev.Start(1)]
    assert tell(state, ev.WorkerLost(1, -1, -1, "was killed")) == []
    assert state.fatal is None
    assert only(ev.Start, tell(state, ev.ResizePool(1, pool=1))) == ev.Start(1), "until it is asked for again"


def test_what_is_due_and_waits_in_a_slow_queue_is_taken_back_by_the_fast() -> None:
    state = two_pools(here=1, far=1, slower=10.0)
    state.workers[0].up = False
    assert len(of(ev.Assign, tell(state, ev.Feed(0, 8)))) >= 2, "there is nobody else"
    while state.batches[0].todo:
        state.pools[1].queue_s *= 2
        tell(state, ev.Released(99))
    actions = tell(state, ev.WorkerUp(0, 0.0))
    assert of(ev.Cancel, actions)
    assert {assign.worker for assign in of(ev.Assign, actions)} == {0}
    assert sum(not issued.cancelled for issued in state.workers[1].tasks.values()) == 1
