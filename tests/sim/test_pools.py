"""Pools of unequal workers under the virtual clock: together as fast as the sum of them, and nobody waits for the slow ones.

Two pools reach the sum of their paces where batches are asked for far enough ahead: a slow or distant pool must be given work that
is not due before it can have done it. That is its latency, what it has queued, and two of its tasks, in samples of both pools. And
results have a place when their task is given out (slots): otherwise they ask for one, another way there and back that no queue hides.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import replace

import pytest

from penstock.core import events as ev
from penstock.core.events import Kind
from penstock.policy.tasks import AHEAD_TASK_S, QUEUE_S
from penstock.sim import FakePool, Scenario, World
from tests.conftest import FULL

SETTINGS = 102 if FULL else 36
PARTS = 6
"""Tests that the settings are dealt out to, for the sake of parallel runs."""
TASKS = 12
"""Tasks that each worker of the slow pool does at least while its pace is measured."""
SPREAD = 1.5
"""The dearest sample costs so many times the mean."""


def drawn_pool(rng: random.Random, *slower: float) -> FakePool:
    return FakePool(
        workers=rng.randint(1, 4),
        slower=rng.choice(slower),
        latency_s=rng.choice((0.0, 0.001, 0.02, 0.2)),
        jitter=rng.choice((0.0, 0.3)),
    )


def far_enough_ahead(seed: int) -> tuple[Scenario, float]:
    """Two pools with a window that suffices, and the sum of their paces in samples a second."""
    rng = random.Random(f"pace {seed}")
    pool, workers = drawn_pool(rng, 1.0, 1.5, 3.0, 10.0, 30.0), rng.randint(1, 4)
    batch_size, sample_s = rng.choice((16, 32, 64)), rng.choice((0.004, 0.01, 0.02))
    cost_s = sample_s * pool.slower
    rate = workers / sample_s + pool.workers / cost_s
    task_s = max(cost_s, AHEAD_TASK_S)
    ahead_s = 2 * pool.latency_s * (1 + pool.jitter) + QUEUE_S + 2 * task_s
    window = 3 + math.ceil(2 * ahead_s * rate / batch_size)
    batches = 4 * window + math.ceil(TASKS * (task_s + pool.latency_s) * rate / batch_size)
    scenario = Scenario(
        seed=seed, workers=workers, pools=(pool,), sample_s=sample_s, batch_size=batch_size, window=window, batches=batches,
        train_s=0.0, delay_s=0.00005, start_s=0.001, limit_bytes=1 << 23,
    )  # fmt: skip
    return scenario, rate


def share_reached(scenario: Scenario, rate: float) -> float:
    """Of `rate`: how fast batches came, without the beginning, and without the end where there is nothing to do ahead."""
    world = World(scenario, remembers=True).run()
    times = [
        at_s for at_s, _, actions in world.history for action in actions if isinstance(action, ev.Deliver)
    ]
    first, last = 2 * scenario.window, len(times) - scenario.window
    return (last - first) * scenario.batch_size / (times[last] - times[first]) / rate


@pytest.mark.parametrize("part", range(PARTS))
def test_two_pools_reach_the_sum_of_their_paces(part: int) -> None:
    reached = {seed: share_reached(*far_enough_ahead(seed)) for seed in range(part, SETTINGS, PARTS)}
    assert {seed: share for seed, share in reached.items() if share < 0.95} == {}


def any_window(seed: int) -> Scenario:
    """A pool that is slow: where it is about as fast as the local one, its queue is as good as theirs."""
    rng = random.Random(f"delay {seed}")
    return Scenario(
        seed=seed, kind=rng.choice((Kind.SLOTS, Kind.SLOTS, Kind.PARTS, Kind.WHOLE)), workers=rng.randint(1, 4),
        pools=(drawn_pool(rng, 2.0, 3.0, 5.0, 10.0, 30.0),), sample_s=rng.choice((0.001, 0.004, 0.02)), batch_size=rng.choice((8, 16, 64)), batches=40,
        window=rng.choice((1, 2, 3, 8, 24)), train_s=rng.choice((0.0, 0.0, 0.003, 0.05)), delay_s=0.00005, start_s=0.001,
        limit_bytes=1 << 23,
    )  # fmt: skip


def longest_wait(scenario: Scenario) -> tuple[float, float]:
    """How long a batch that was due waited for the slow pool alone, and how long one of that pool's tasks takes at most."""
    world = World(scenario, remembers=True).run()
    pool = scenario.pools[0]
    tasks: dict[int, tuple[bool, ev.Task]] = {}
    here: dict[int, float] = defaultdict(float)
    """When the local workers had done all that they did of a batch."""
    away: dict[int, float] = defaultdict(float)
    waited, due_s, most = 0.0, 0.0, 0
    for at_s, event, actions in world.history:
        if isinstance(event, (ev.Done, ev.Dropped)) and event.task in tasks:
            is_away, task = tasks[event.task]
            if task.kind is not Kind.COLLATE:
                (away if is_away else here)[task.seq] = at_s
        for action in actions:
            if isinstance(action, ev.Assign):
                is_away = action.worker >= scenario.workers
                tasks[action.task.id] = (is_away, action.task)
                if is_away and action.task.kind is not Kind.COLLATE:
                    most = max(most, action.task.samples)
            elif isinstance(action, ev.Deliver):
                waited = max(waited, away[action.seq] - max(due_s, here[action.seq]))
                due_s = at_s
    # A result that has no place yet asks for it, and is written when it has one: another way there and back.
    writes_s = most * scenario.sample_s * pool.slower / 10
    task_s = (
        most * scenario.sample_s * pool.slower * SPREAD + writes_s + 2 * pool.latency_s * (1 + pool.jitter)
    )
    return waited, task_s + 10 * scenario.delay_s


@pytest.mark.parametrize("part", range(PARTS))
def test_a_slow_pool_delays_the_batch_that_is_due_by_one_of_its_tasks_at_most(part: int) -> None:
    waits = {seed: longest_wait(any_window(seed)) for seed in range(part, SETTINGS, PARTS)}
    assert {seed: wait for seed, wait in waits.items() if wait[0] > wait[1]} == {}


def test_a_slow_pool_that_could_only_hold_up_batches_is_left_out() -> None:
    slow = FakePool(4, slower=30.0, latency_s=0.2)
    scenario = Scenario(
        seed=0,
        workers=2,
        batches=200,
        batch_size=16,
        window=2,
        sample_s=0.004,
        train_s=0.0,
        limit_bytes=1 << 22,
    )
    alone, beside = (
        World(scenario).run().agenda.now_s,
        World(replace(scenario, pools=(slow,))).run().agenda.now_s,
    )
    assert beside < 1.05 * alone + 2 * (4 * 0.004 * 30 * SPREAD + 0.2)
