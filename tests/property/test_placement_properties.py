"""Two lanes on one batch: every task once, nobody waits for nothing, and the threshold finds the best fixed one."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.placement import (
    Deal,
    End,
    Lane,
    Piece,
    Search,
    after_batch,
    deal,
    fixed,
    fixed_lane,
    restarted,
)
from penstock.sim.lanes import play

seconds = st.floats(1e-5, 1.0)
lanes = st.sampled_from([Lane.CPU, Lane.GPU])


@st.composite
def deals(draw: st.DrawFn) -> Deal:
    """A batch with some tasks that only one lane can do."""
    costs = draw(
        st.lists(st.tuples(seconds, seconds, st.sampled_from(["both", "both", "cpu", "gpu"])), max_size=40)
    )
    pieces = [
        Piece(number, None if who == "gpu" else cpu_s, None if who == "cpu" else gpu_s)
        for number, (cpu_s, gpu_s, who) in enumerate(costs)
    ]
    return deal(pieces, reserve=draw(st.integers(0, 45)))


# ---- dealing


@given(deals(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_every_task_is_done_exactly_once_by_a_lane_that_can(
    batch: Deal, workers: int, rng: random.Random
) -> None:
    _, taken = play(batch, workers=workers, took_s=lambda piece, lane: rng.random())
    assert Counter(one.piece.id for one in taken) == Counter(range(batch.left))
    assert all((one.piece.cpu_s if one.lane is Lane.CPU else one.piece.gpu_s) is not None for one in taken)


@given(deals(), st.lists(st.tuples(lanes, st.integers(1, 5))))
def test_a_lane_gets_all_it_asks_for_as_long_as_that_is_left_for_it(
    batch: Deal, asks: list[tuple[Lane, int]]
) -> None:
    for lane, count in asks:
        before = batch.left_for(lane)
        taken, batch = batch.take(lane, count)
        assert len(taken) == min(count, before)


@given(deals(), st.lists(lanes, max_size=60))
def test_cpu_workers_leave_the_last_tasks_to_the_gpu_and_it_takes_them(batch: Deal, asks: list[Lane]) -> None:
    for lane in asks:
        short = len(batch.row) <= batch.reserve and not batch.cpu_only
        taken, batch = batch.take(lane)
        assert not (taken and lane is Lane.CPU and short)
    taken, rest = batch.take(Lane.GPU, 100)
    assert (rest.row, rest.gpu_only) == ((), ())
    assert len(taken) == len(batch.row) + len(batch.gpu_only)


@given(deals(), st.lists(lanes, max_size=60))
def test_the_gpu_takes_nothing_cheaper_than_what_it_leaves_and_cpu_workers_nothing_dearer(
    batch: Deal, asks: list[Lane]
) -> None:
    for lane in asks:
        row = batch.row
        taken, batch = batch.take(lane)
        for piece in taken:
            if piece in row and batch.row:
                assert piece.cpu_s is not None
                costs = [other.cpu_s or 0.0 for other in batch.row]
                assert piece.cpu_s >= max(costs) if lane is Lane.GPU else piece.cpu_s <= min(costs)


@given(deals(), st.lists(st.tuples(lanes, st.booleans()), max_size=60))
def test_what_a_lost_lane_had_is_dealt_again_and_nothing_is_lost_or_doubled(
    batch: Deal, asks: list[tuple[Lane, bool]]
) -> None:
    total, finished = batch.left, list[int]()
    for lane, is_lost in asks:
        taken, batch = batch.take(lane)
        for piece in taken:
            if is_lost:
                batch = batch.put_back(piece)
            else:
                finished.append(piece.id)
    _, rest = play(batch, workers=1, took_s=lambda piece, lane: 1.0)
    assert Counter(finished + [one.piece.id for one in rest]) == Counter(range(total))
    assert list(batch.row) == sorted(
        batch.row, key=lambda piece: (piece.cpu_s, -(piece.gpu_s or 0), piece.id)
    )


@given(deals(), st.integers(1, 4))
def test_without_the_gpu_lane_cpu_workers_do_all_they_can(batch: Deal, workers: int) -> None:
    _, taken = play(batch.without_gpu(), workers=workers, took_s=lambda piece, lane: 1.0, with_gpu=False)
    assert len(taken) == len(batch.row) + len(batch.cpu_only)


# ---- deterministic


@given(st.integers(0, 2**63), st.integers(0, 1000), st.integers(0, 2**40), st.floats(0, 1))
def test_a_fixed_lane_is_a_function_of_seed_epoch_and_position(
    seed: int, epoch: int, position: int, share: float
) -> None:
    lane = fixed_lane(seed, epoch, position, gpu_share=share)
    assert lane is fixed_lane(seed, epoch, position, gpu_share=share)
    assert fixed_lane(seed, epoch, position, gpu_share=0.0) is Lane.CPU
    assert fixed_lane(seed, epoch, position, gpu_share=1.0) is Lane.GPU
    assert lane is Lane.CPU or fixed_lane(seed, epoch, position, gpu_share=(share + 1) / 2) is Lane.GPU


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("stride", [1, 2, 8])
def test_fixed_lanes_have_their_share_in_every_ranks_stripe(share: float, stride: int) -> None:
    found = [fixed_lane(7, 3, stride * at, gpu_share=share) is Lane.GPU for at in range(5000)]
    assert statistics.fmean(found) == pytest.approx(share, abs=0.03)


@given(st.lists(seconds, min_size=1, max_size=30), st.integers(0, 100), st.integers(1, 4))
def test_with_fixed_lanes_timing_changes_nothing_about_who_does_what(
    costs: list[float], seed: int, workers: int
) -> None:
    wanted = {at: fixed_lane(seed, 0, at, gpu_share=0.5) for at in range(len(costs))}
    batch = deal(fixed(Piece(at, cost_s, cost_s / 9), wanted[at]) for at, cost_s in enumerate(costs))
    for rng in (random.Random(1), random.Random(2)):
        _, taken = play(batch, workers=workers, took_s=lambda piece, lane, rng=rng: rng.random())
        assert {one.piece.id: one.lane for one in taken} == wanted


# ---- the threshold

TASKS, BATCHES, MOST = 64, 20, 24
SIZES: dict[str, Callable[[random.Random], float]] = {
    "alike": lambda rng: rng.uniform(0.9, 1.1),
    "photos": lambda rng: rng.lognormvariate(0, 0.5),
    "few huge": lambda rng: 6.0 if rng.random() < 0.1 else rng.uniform(0.6, 0.9),
}


def true_s(size: float, lane: Lane, gpu_s: float) -> float:
    return 0.008 * size if lane is Lane.CPU else 0.0004 + gpu_s * size


def one_batch(rng: random.Random, sizes: str, *, workers: int, gpu_s: float, reserve: int) -> End:
    """A batch whose costs are predicted to 10 % and vary by 15 % from one time to the next."""
    found = [SIZES[sizes](rng) for _ in range(TASKS)]
    pieces = [
        Piece(at, *(true_s(size, lane, gpu_s) * rng.lognormvariate(0, 0.1) for lane in (Lane.CPU, Lane.GPU)))
        for at, size in enumerate(found)
    ]
    end, _ = play(
        deal(pieces, reserve=reserve),
        workers=workers,
        took_s=lambda piece, lane: true_s(found[piece.id], lane, gpu_s) * rng.lognormvariate(0, 0.15),
    )
    return end


@cache
def mean_s(sizes: str, workers: int, gpu_s: float, reserve: int) -> float:
    rng = random.Random(9)
    ends = [one_batch(rng, sizes, workers=workers, gpu_s=gpu_s, reserve=reserve) for _ in range(25)]
    return statistics.fmean(max(end) for end in ends)


def best_s(sizes: str, workers: int, gpu_s: float) -> float:
    """A batch's time with the best fixed threshold, by trying them all."""
    return min(mean_s(sizes, workers, gpu_s, reserve) for reserve in range(MOST + 1))


def searched(
    search: Search, rng: random.Random, sizes: str, *, workers: int, gpu_s: float, batches: int = BATCHES
) -> Search:
    for _ in range(batches):
        end = one_batch(rng, sizes, workers=workers, gpu_s=gpu_s, reserve=search.reserve)
        search = after_batch(search, end, tasks=TASKS)
    return search


def excess(search: Search, sizes: str, workers: int, gpu_s: float) -> float:
    """By how much a batch takes longer than with the best fixed threshold."""
    found = mean_s(sizes, workers, gpu_s, min(search.reserve, MOST))
    return found / best_s(sizes, workers, gpu_s) - 1.0


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("workers", "gpu_s"), [(4, 0.0005), (8, 0.001), (12, 0.0005)])
def test_the_threshold_is_within_20_batches_as_good_as_the_best_fixed_one(
    sizes: str, workers: int, gpu_s: float
) -> None:
    found = [
        searched(Search(), random.Random(seed), sizes, workers=workers, gpu_s=gpu_s) for seed in range(10)
    ]
    late = [excess(search, sizes, workers, gpu_s) for search in found]
    assert all(search.settled for search in found)
    assert statistics.fmean(late) < 0.04
    assert mean_s(sizes, workers, gpu_s, 0) / best_s(sizes, workers, gpu_s) - 1 > statistics.fmean(late)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_threshold_follows_other_workers_and_a_slower_lane(sizes: str) -> None:
    rng = random.Random(5)
    search = searched(Search(), rng, sizes, workers=4, gpu_s=0.0005)
    for workers, gpu_s in ((12, 0.0005), (12, 0.0015), (4, 0.0005)):
        search = searched(restarted(search), rng, sizes, workers=workers, gpu_s=gpu_s)
        assert excess(search, sizes, workers, gpu_s) < 0.06


def test_a_change_that_nobody_tells_of_is_noticed_by_its_strays() -> None:
    rng = random.Random(6)
    search = searched(Search(), rng, "photos", workers=8, gpu_s=0.0005)
    assert search.settled
    search = searched(search, rng, "photos", workers=8, gpu_s=0.004, batches=40)
    assert excess(search, "photos", 8, 0.004) < 0.08


def test_a_threshold_that_is_settled_stays_while_nothing_changes() -> None:
    rng = random.Random(7)
    search = searched(Search(), rng, "photos", workers=8, gpu_s=0.001)
    assert searched(search, rng, "photos", workers=8, gpu_s=0.001, batches=200).reserve == search.reserve


def test_a_gpu_lane_that_is_slower_than_a_worker_gets_no_reserve() -> None:
    search = Search()
    for _ in range(4):
        search = after_batch(search, End(cpu_s=1.0, gpu_s=2.0), tasks=TASKS)
    assert search == Search(0, settled=True, tried=search.tried)


@given(st.lists(st.floats(-1, 1), max_size=60), st.integers(0, 12))
def test_the_threshold_moves_by_one_or_settles_and_stays_between_none_and_all(
    late: list[float], tasks: int
) -> None:
    search = Search()
    for one in late:
        before = search
        search = after_batch(search, End(1.0 + max(0.0, one), 1.0 + max(0.0, -one)), tasks=tasks)
        assert 0 <= search.reserve <= tasks + 1
        assert abs(search.reserve - before.reserve) <= 1 or search.settled
