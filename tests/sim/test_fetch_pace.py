"""Which pools and orders keep ranks even: 64 GPUs here, 1,024 with PENSTOCK_FULL=1 or `scripts/bench cache_balance`."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.policy.deadlines import ReadQueue
from penstock.sim.cache_balance import balance
from penstock.sim.fetch_pace import pace
from tests.conftest import FULL

NODES = 128 if FULL else 8


@pytest.mark.parametrize("misses", [0.05, 0.3])
def test_a_pool_per_node_that_looks_ahead_keeps_ranks_even(misses: float) -> None:
    found = balance(nodes=NODES, misses=misses, steps=200 if FULL else 40)
    assert found["pool per rank"].over_ideal > 1.2  # the baseline
    assert found["pool per rank"].uneven > 0.5
    for good in ("pool per node, 8 ahead", "even order, pool per node, 4 ahead"):
        assert found[good].over_ideal <= 1.01
        assert found[good].uneven <= 0.01


def test_the_slowest_rank_sets_the_pace() -> None:
    fetch = np.array([[0.5, 3.0]] * 40)
    alone = pace([fetch], train_s=1.0, ahead=1, pool_ranks=1)
    assert alone.step_s == pytest.approx(3.0, rel=0.05)
    assert alone.uneven == 1.0
    shared = pace([fetch], train_s=1.0, ahead=1, pool_ranks=2)
    assert shared.step_s == pytest.approx(1.75, rel=0.05)
    assert shared.uneven == 0.0


def test_look_ahead_absorbs_a_burst() -> None:
    fetch = np.full((80, 1), 0.5)
    fetch[::8] = 3.0
    assert pace([fetch], train_s=1.0, ahead=1, pool_ranks=1).over_ideal > 1.2
    assert pace([fetch], train_s=1.0, ahead=8, pool_ranks=1).over_ideal == pytest.approx(1.0, abs=0.01)


def test_links_work_beside_each_other() -> None:
    fetch = np.full((20, 4), 0.9)
    assert pace([fetch, fetch], train_s=1.0, ahead=2, pool_ranks=4).step_s == pytest.approx(1.0)
    assert pace([fetch, 2 * fetch], train_s=1.0, ahead=2, pool_ranks=4).step_s == pytest.approx(1.8, rel=0.1)


def test_reads_one_by_one_in_the_order_of_the_queue_keep_the_pace_of_the_model() -> None:
    """A pool that does one read after the other, whatever is open, beside the fluid model."""
    reads = np.random.default_rng(3).poisson(6, size=(60, 4))
    read_s, ahead, ended, at = 0.9 / (4 * 6), 4, 0.0, 0.0
    begun = [0.0] * 60
    left = reads.sum(axis=1)
    queue = ReadQueue()

    def open_window(step: int) -> None:
        for rank in range(4):
            for sample in range(reads[step, rank] if step < 60 else 0):
                queue.add(step, rank, sample)

    for step in range(ahead):
        open_window(step)
    for step in range(60):
        while left[step]:
            left[queue.take().step] -= 1
            at += read_s
        begun[step] = max(ended, at)
        ended = begun[step] + 1.0
        open_window(step + ahead)
        at = max(at, begun[step])
        while len(queue) and at + read_s <= ended:  # reads ahead while training runs
            left[queue.take().step] -= 1
            at += read_s
        if not len(queue):
            at = max(at, ended)
    model = pace([reads * read_s * 4], train_s=1.0, ahead=ahead, pool_ranks=4)
    assert (ended - begun[ahead]) / (60 - ahead) == pytest.approx(model.step_s, rel=0.02)


def test_reads_begin_in_the_order_of_deadlines_and_ranks_take_turns() -> None:
    queue = ReadQueue()
    for step, rank, sample in ((5, 0, 1), (4, 0, 2), (4, 0, 3), (4, 1, 4), (3, 1, 5)):
        queue.add(step, rank, sample)
    assert [queue.take().sample for _ in range(len(queue))] == [5, 2, 4, 3, 1]
    queue.passed(4)
    queue.add(4, 1, 6)
    assert queue.take() == (4, 0, 1, 6)
