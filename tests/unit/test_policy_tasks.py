"""How a batch is cut into tasks, and how many wait at a worker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.tasks import DEEPEST, FIRST_TASK, QUEUE_S, TASK_S, queue_depth, task_size

COSTS = st.none() | st.floats(0, 100)


@given(sample_s=COSTS, batch=st.integers(0, 10_000), workers=st.integers(1, 500))
def test_a_task_has_a_sample_and_never_more_than_a_workers_share(
    sample_s: float | None, batch: int, workers: int
) -> None:
    size = task_size(sample_s=sample_s, batch=batch, workers=workers)
    assert 1 <= size <= max(1, -(-batch // workers))


@given(st.integers(1, 10_000), st.integers(1, 64), st.floats(1e-7, 1), st.floats(1, 100))
def test_dearer_samples_make_smaller_tasks(batch: int, workers: int, sample_s: float, times: float) -> None:
    cheap = task_size(sample_s=sample_s, batch=batch, workers=workers)
    assert task_size(sample_s=sample_s * times, batch=batch, workers=workers) <= cheap


def test_until_the_cost_is_known_a_task_is_a_tiny_batch() -> None:
    assert task_size(sample_s=None, batch=64, workers=2) == FIRST_TASK
    assert task_size(sample_s=None, batch=4, workers=2) == 2
    assert task_size(sample_s=None, batch=1, workers=7) == 1


@pytest.mark.parametrize(
    ("sample_s", "size"), [(0.0, 32), (1e-6, 32), (TASK_S / 8, 8), (TASK_S, 1), (1.0, 1)]
)
def test_a_task_is_as_much_work_as_hides_the_agent(sample_s: float, size: int) -> None:
    assert task_size(sample_s=sample_s, batch=64, workers=2) == size


@given(st.floats(0, 10), st.floats(1, 100))
def test_longer_tasks_are_queued_less_deeply(task_s: float, times: float) -> None:
    depth = queue_depth(task_s=task_s)
    assert 1 <= queue_depth(task_s=task_s * times) <= depth <= DEEPEST


def test_unknown_and_long_tasks_are_not_queued_ahead() -> None:
    assert queue_depth(task_s=None) == 1
    assert queue_depth(task_s=QUEUE_S) == 1
    assert queue_depth(task_s=QUEUE_S * 0.99) == 2
    assert queue_depth(task_s=0.0) == DEEPEST
