"""How a batch is cut into tasks, and how many wait at a worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.tasks import (
    AHEAD_TASK_S,
    DUE_TASK_S,
    FIRST_TASK,
    QUEUE_S,
    ROUNDS,
    queue_samples,
    task_size,
)

COSTS = st.none() | st.floats(0, 100)
SHARES = st.floats(0, 1)


@given(sample_s=COSTS, batch=st.integers(0, 10_000), left=SHARES, workers=st.integers(1, 500))
def test_a_task_has_a_sample_and_never_more_than_a_workers_share(
    sample_s: float | None, batch: int, left: float, workers: int
) -> None:
    size = task_size(sample_s=sample_s, batch=batch, left=round(left * batch), workers=workers)
    assert 1 <= size <= max(1, -(-batch // workers))


@given(st.integers(1, 10_000), st.integers(1, 64), st.floats(1e-7, 1), st.floats(1, 100))
def test_dearer_samples_make_smaller_tasks(batch: int, workers: int, sample_s: float, times: float) -> None:
    cheap = task_size(sample_s=sample_s, batch=batch, left=batch, workers=workers)
    assert task_size(sample_s=sample_s * times, batch=batch, left=batch, workers=workers) <= cheap


def test_until_the_cost_is_known_a_task_is_a_tiny_batch() -> None:
    assert task_size(sample_s=None, batch=64, left=64, workers=2) == FIRST_TASK
    assert task_size(sample_s=None, batch=4, left=4, workers=2) == 2
    assert task_size(sample_s=None, batch=1, left=1, workers=7) == 1


@pytest.mark.parametrize(
    ("sample_s", "size"), [(0.0, 32), (1e-6, 32), (DUE_TASK_S / 8, 8), (DUE_TASK_S, 1), (1.0, 1)]
)
def test_a_task_is_as_much_work_as_hides_the_agent(sample_s: float, size: int) -> None:
    assert task_size(sample_s=sample_s, batch=64, left=1, workers=2) == size


@given(sample_s=COSTS, batch=st.integers(1, 10_000), left=SHARES, workers=st.integers(1, 500))
def test_batches_that_nobody_waits_for_are_divided_no_finer(
    sample_s: float | None, batch: int, left: float, workers: int
) -> None:
    of_it = {"sample_s": sample_s, "batch": batch, "left": round(left * batch), "workers": workers}
    due, ahead = task_size(**of_it), task_size(**of_it, due=False)
    assert due <= ahead <= max(1, -(-batch // workers))


def test_what_is_not_due_comes_in_larger_tasks() -> None:
    assert task_size(sample_s=AHEAD_TASK_S / 16, batch=64, left=1, workers=2, due=False) == 16


@given(st.floats(1e-6, 1), st.integers(1, 4096), st.integers(1, 64))
def test_a_batch_is_begun_with_large_tasks_and_ended_with_small_ones(
    sample_s: float, batch: int, workers: int
) -> None:
    left, sizes = batch, []
    while left > 0:
        sizes.append(task_size(sample_s=sample_s, batch=batch, left=left, workers=workers))
        left -= sizes[-1]
    assert sizes == sorted(sizes, reverse=True)
    finest = task_size(sample_s=sample_s, batch=batch, left=0, workers=workers)
    assert sizes[-1] == finest or left == 0
    # A worker that has begun the last task of a round has no more to do than what others share.
    assert all(
        size == finest or size * ROUNDS * workers <= before + ROUNDS * workers
        for size, before in zip(sizes, lefts(batch, sizes), strict=True)
    )


def lefts(batch: int, sizes: list[int]) -> list[int]:
    """What was to do before each."""
    return [batch - sum(sizes[:at]) for at in range(len(sizes))]


@given(st.floats(0, 10), st.floats(1, 100))
def test_fewer_samples_wait_where_they_are_dear(sample_s: float, times: float) -> None:
    assert 0 < queue_samples(sample_s=sample_s * times) <= queue_samples(sample_s=sample_s)


def test_a_worker_has_as_much_before_it_as_bridges_the_agents_absence() -> None:
    assert queue_samples(sample_s=QUEUE_S / 20) == pytest.approx(20)


@given(st.floats(1e-5, 0.02), st.floats(0, 1000))
def test_most_of_what_was_asked_for_waits_for_whoever_is_free_first(sample_s: float, asked: float) -> None:
    queued = queue_samples(sample_s=sample_s, asked=asked)
    assert queued <= queue_samples(sample_s=sample_s)
    assert queued <= max(asked / 2, DUE_TASK_S / sample_s)
    assert queued >= min(asked / 4, queue_samples(sample_s=sample_s))


def test_nothing_is_queued_behind_tasks_of_unknown_cost() -> None:
    assert queue_samples(sample_s=None) == 0
