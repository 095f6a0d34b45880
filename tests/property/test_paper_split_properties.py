"""The paper's division: every task once, from both ends; a search that moves, stops and resumes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.paper_split import TURNS, BatchTasks, Reserve, Side, after_batch

SIDES = st.sampled_from(list(Side))
SIZES = st.lists(st.floats(0, 1e6), max_size=70)


@given(SIZES, st.integers(0, 80), st.lists(SIDES, max_size=200))
def test_every_task_is_dealt_once_and_none_is_stranded(
    sizes: list[float], reserved: int, asking: list[Side]
) -> None:
    batch = BatchTasks(sizes, reserved)
    taken = [task for side in asking if (task := batch.take(side)) is not None]
    while (task := batch.take(Side.GPU)) is not None:
        taken.append(task)
    assert sorted(taken) == list(range(len(sizes)))


@given(SIZES, st.integers(0, 80), st.lists(SIDES, max_size=200))
def test_workers_take_the_rest_once_the_gpu_cannot_work(
    sizes: list[float], reserved: int, asking: list[Side]
) -> None:
    batch = BatchTasks(sizes, reserved)
    taken = [task for side in asking if (task := batch.take(side)) is not None]
    batch.reserved = 0
    while (task := batch.take(Side.WORKERS)) is not None:
        taken.append(task)
    assert sorted(taken) == list(range(len(sizes)))


@given(SIZES, st.integers(0, 80), st.lists(SIDES, max_size=200))
def test_workers_take_the_smallest_and_the_gpu_the_largest(
    sizes: list[float], reserved: int, asking: list[Side]
) -> None:
    batch = BatchTasks(sizes, reserved)
    taken: dict[Side, list[float]] = {side: [] for side in Side}
    for side in asking:
        if (task := batch.take(side)) is not None:
            taken[side].append(sizes[task])
    assert taken[Side.WORKERS] == sorted(taken[Side.WORKERS])
    assert taken[Side.GPU] == sorted(taken[Side.GPU], reverse=True)
    assert max(taken[Side.WORKERS], default=0) <= min(taken[Side.GPU], default=1e6)


@given(SIZES, st.integers(0, 80))
def test_what_is_reserved_is_left_by_workers(sizes: list[float], reserved: int) -> None:
    batch = BatchTasks(sizes, reserved)
    while batch.take(Side.WORKERS) is not None:
        pass
    assert batch.left == min(reserved, len(sizes))


@given(st.lists(st.tuples(SIDES, st.integers(0, 64), st.integers(1, 4)), max_size=300))
def test_the_reserve_moves_by_one_and_within_the_batch(batches: list[tuple[Side, int, int]]) -> None:
    reserve, most = Reserve(), 0
    for last, tasks, workers in batches:
        before, most = reserve, max(most, tasks)
        reserve = after_batch(reserve, last=last, tasks=tasks, workers=workers)
        assert 0 <= reserve.tasks <= most
        assert reserve.tasks <= max(before.tasks, tasks)
        assert before.is_found or reserve.is_found or abs(reserve.tasks - before.tasks) <= 1
        if before.is_found and before.workers == workers:
            assert reserve == before, "a search that is over does not move"


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_search_finds_where_both_sides_finish_together(best: int, start: int) -> None:
    """Workers finish last if too little is reserved, the GPU if too much."""
    reserve = Reserve(start, workers=4)
    for _ in range(60 + 2 * TURNS):
        last = Side.WORKERS if reserve.tasks < best else Side.GPU
        reserve = after_batch(reserve, last=last, tasks=64, workers=4)
    # At 0 the GPU is last for good, and nothing turns.
    assert reserve.is_found or best == 0
    assert abs(reserve.tasks - best) <= 1


@given(st.integers(0, 60), st.integers(0, 60))
def test_other_workers_resume_the_search_from_where_it_was(before: int, after: int) -> None:
    reserve = Reserve(workers=4)
    for workers, best in ((4, before), (8, after)):
        found = reserve.tasks
        reserve = after_batch(reserve, last=Side.GPU, tasks=64, workers=workers)
        if workers == 8:
            assert reserve == Reserve(found, 8)
        for _ in range(60 + 2 * TURNS):
            last = Side.WORKERS if reserve.tasks < best else Side.GPU
            reserve = after_batch(reserve, last=last, tasks=64, workers=workers)
        assert abs(reserve.tasks - best) <= 1


def test_one_turn_does_not_end_the_search() -> None:
    reserve = Reserve(5, workers=4)
    for last in (Side.WORKERS, Side.WORKERS, Side.GPU, Side.WORKERS, Side.WORKERS, Side.WORKERS):
        reserve = after_batch(reserve, last=last, tasks=64, workers=4)
    assert not reserve.is_found
    assert reserve.tasks == 9
