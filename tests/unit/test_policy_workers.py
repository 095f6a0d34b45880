"""What `num_workers="auto"` and `slab_bytes="auto"` come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.workers import arena_limit, auto_workers


@pytest.mark.parametrize(
    ("affinity", "quota", "local_world", "workers"),
    [
        (8, None, 1, 8),
        (8, 2.0, 1, 2),
        (8, 2.9, 1, 2),
        (8, 0.5, 1, 1),
        (2, 64.0, 1, 2),
        (64, None, 8, 8),
        (9, None, 2, 4),
        (2, None, 8, 1),
        (16, 9.5, 4, 2),
    ],
)
def test_auto_is_a_ranks_share_of_the_cores_it_may_use(
    affinity: int, quota: float | None, local_world: int, workers: int
) -> None:
    assert auto_workers(affinity=affinity, quota=quota, ranks=local_world) == workers


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (2, 2), (4, 3), (8, 6), (16, 13), (64, 61)])
def test_a_gpu_lane_has_cores_of_its_own(cores: int, workers: int) -> None:
    assert auto_workers(affinity=cores, quota=None, ranks=1, lane=True) == workers
    assert auto_workers(affinity=4 * cores, quota=None, ranks=4, lane=True) == workers


@given(st.integers(1, 512), st.none() | st.floats(0.01, 600), st.integers(0, 64))
def test_there_is_always_one_and_never_more_than_the_machine_gives(
    affinity: int, quota: float | None, local_world: int
) -> None:
    workers = auto_workers(affinity=affinity, quota=quota, ranks=local_world)
    assert 1 <= workers <= affinity
    assert workers * local_world <= max(affinity, local_world)


def test_batches_of_all_ranks_together_may_fill_a_quarter_of_the_memory() -> None:
    assert arena_limit(memory_bytes=64 << 30, local_world=1) == 16 << 30
    assert arena_limit(memory_bytes=64 << 30, local_world=8) == 2 << 30
