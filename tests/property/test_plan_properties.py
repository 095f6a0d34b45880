"""Whatever the length, batch, world and point of resume: every index exactly once, and every rank in step."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.plan.epoch import EpochPlan
from penstock.plan.permutation import MAX_N, Permutation
from penstock.plan.seeds import SeedStream
from tests.owners import some_costs, some_owners

SEEDS = st.integers(-(2**63), 2**64 - 1)
WORLDS = st.integers(1, 9)


@st.composite
def plans(draw: st.DrawFn, drop_last: bool | None = None) -> EpochPlan:
    """A plan of rank 0; lengths on both sides of where the shuffle changes its method."""
    length = draw(st.integers(0, 300) | st.integers(4000, 5000))
    times = draw(st.sampled_from([1, 1, 2, 3, 7]))
    owners = st.none() | some_owners(length)
    return EpochPlan(
        length=length,
        batch_size=draw(st.integers(1 + length // 150, 50)),
        drop_last=draw(st.booleans()) if drop_last is None else drop_last,
        shuffle=draw(st.booleans()),
        seed=draw(SEEDS),
        epoch=draw(st.integers(0, 1000)),
        world=draw(WORLDS),
        times=times,
        kept=draw(st.integers(0, length)),
        even=draw(owners) if times == 1 else None,
        deal=draw(owners | some_costs(length)),
    )


def ranks(plan: EpochPlan) -> list[EpochPlan]:
    return [replace(plan, rank=rank) for rank in range(plan.world)]


def delivered(plan: EpochPlan, batches: int) -> np.ndarray:
    """Positions that all ranks have delivered after so many batches of each."""
    parts = [share.positions(batch) for share in ranks(plan) for batch in range(batches)]
    return np.concatenate([np.arange(0), *parts])


@given(key=SEEDS, n=st.integers(1, 20_000))
def test_a_permutation_is_a_bijection(key: int, n: int) -> None:
    order = Permutation(key, n)(np.arange(n))
    assert np.array_equal(np.bincount(order, minlength=n), np.ones(n))


@given(key=SEEDS, n=st.integers(1, MAX_N), places=st.lists(st.integers(0, MAX_N), max_size=50))
def test_a_permutation_can_be_undone_at_any_place(key: int, n: int, places: list[int]) -> None:
    order, wanted = Permutation(key, n), np.array([place % n for place in places], dtype=np.int64)
    numbers = order(wanted)
    assert np.all((numbers >= 0) & (numbers < n))
    assert np.array_equal(order.inverse(numbers), wanted)


@given(plan=plans())
def test_all_ranks_are_in_step(plan: EpochPlan) -> None:
    first, *others = [[share.size_of(batch) for batch in range(share.batches)] for share in ranks(plan)]
    assert all(sizes == first for sizes in others)
    assert sum(first) == plan.samples
    assert all(size == plan.batch_size for size in first[:-1])
    assert all(size == plan.batch_size or not plan.drop_last for size in first[-1:])


@given(plan=plans(drop_last=False))
def test_every_index_is_delivered_exactly_once_but_for_the_padding(plan: EpochPlan) -> None:
    positions = delivered(plan, plan.batches)
    counts = np.bincount(plan.keys(positions), minlength=plan.length)
    assert np.array_equal(np.sort(positions), np.arange(positions.size))
    assert 0 <= positions.size - plan.length < plan.world
    assert plan.length == 0 or counts.min() >= 1
    assert np.array_equal(np.sort(plan.keys(positions[positions < plan.length])), np.arange(plan.length))


@given(plan=plans(drop_last=True))
def test_dropping_repeats_nothing_and_drops_less_than_a_batch_of_each_rank(plan: EpochPlan) -> None:
    positions = delivered(plan, plan.batches)
    assert np.array_equal(np.sort(positions), np.arange(positions.size))
    assert 0 <= plan.length - positions.size < plan.batch_size * plan.world
    assert len(set(plan.keys(positions).tolist())) == positions.size


@given(plan=plans(drop_last=False), worlds=st.lists(WORLDS, min_size=1, max_size=4), data=st.data())
def test_stops_and_resumes_in_other_worlds_and_groups_lose_and_repeat_nothing(
    plan: EpochPlan, worlds: list[int], data: st.DataObject
) -> None:
    parts, last = [], plan
    plan = replace(plan, order_world=plan.world)
    for world in worlds:
        done = data.draw(st.integers(0, plan.batches))
        parts.append(delivered(plan, done))
        deal = data.draw(st.just(plan.deal) | some_owners(plan.length) | some_costs(plan.length))
        plan = replace(plan, origin=plan.after(done), world=world, deal=deal)
        last = plan if plan.batches else last
    positions = np.concatenate([*parts, delivered(plan, plan.batches)])
    padding = -(last.length - last.origin) % last.world
    assert np.array_equal(
        np.sort(positions), np.arange(plan.length + padding)
    )  # no draw is made twice either
    assert np.all(np.bincount(plan.keys(positions), minlength=plan.length) >= 1)


@given(plan=plans(drop_last=True), worlds=st.lists(WORLDS, min_size=1, max_size=4), data=st.data())
def test_stops_and_resumes_that_drop_deliver_the_beginning_of_the_order_once(
    plan: EpochPlan, worlds: list[int], data: st.DataObject
) -> None:
    parts = []
    for world in worlds:
        done = data.draw(st.integers(0, plan.batches))
        parts.append(delivered(plan, done))
        plan = replace(plan, origin=plan.after(done), world=world)
    positions = np.concatenate([*parts, delivered(plan, plan.batches)])
    assert np.array_equal(np.sort(positions), np.arange(positions.size))
    assert 0 <= plan.length - positions.size < plan.batch_size * 9


@given(plan=plans(), data=st.data())
def test_a_resume_in_the_same_world_delivers_what_was_left(plan: EpochPlan, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, plan.batches))
    rest = replace(plan, origin=plan.after(done))
    assert rest.batches == plan.batches - done
    for batch in range(rest.batches):
        assert np.array_equal(rest.positions(batch), plan.positions(done + batch))


@given(plan=plans())
def test_the_rest_begins_later_with_every_batch_and_ends_at_the_length(plan: EpochPlan) -> None:
    begins = [plan.after(done) for done in range(plan.batches + 1)]
    assert begins[0] == plan.origin
    assert all(one < other for one, other in pairwise(begins))
    assert plan.batches == 0 or begins[-1] == plan.length


@given(plan=plans(), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_a_batch_cut_into_tasks_is_the_same_batch(plan: EpochPlan, cuts: list[int]) -> None:
    for batch in range(min(plan.batches, 3)):
        size = plan.size_of(batch)
        edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
        tasks = [plan.positions(batch, start, stop - start) for start, stop in pairwise(edges)]
        keys = np.concatenate([plan.keys(task) for task in tasks])
        assert np.array_equal(keys, plan.keys(plan.positions(batch)))


@given(plan=plans())
def test_global_batches_are_the_same_dealt_or_not(plan: EpochPlan) -> None:
    for batch in range(min(plan.batches, 3)):
        dealt, not_dealt = (
            np.concatenate([share.positions(batch) for share in ranks(each)])
            for each in (plan, replace(plan, deal=None))
        )
        assert np.array_equal(np.sort(dealt), np.sort(not_dealt))


@given(plan=plans(), data=st.data())
def test_the_batch_and_place_of_a_position_are_known(plan: EpochPlan, data: st.DataObject) -> None:
    if plan.batches:
        share = replace(plan, rank=data.draw(st.integers(0, plan.world - 1)))
        batch = data.draw(st.integers(0, plan.batches - 1))
        ordinal = data.draw(st.integers(0, plan.size_of(batch) - 1))
        assert plan.seat(int(share.positions(batch)[ordinal])) == (share.first_of(batch), ordinal)


@given(plan=plans())
def test_the_same_numbers_give_the_same_plan(plan: EpochPlan) -> None:
    again = replace(plan)
    assert again == plan
    assert np.array_equal(again.keys(np.arange(plan.length)), plan.keys(np.arange(plan.length)))
    assert np.array_equal(plan.find(plan.keys(np.arange(plan.length))), np.arange(plan.length))


@given(seed=SEEDS, epoch=st.integers(0, 10**6), position=st.integers(0, MAX_N), key=st.integers(0, MAX_N))
def test_neighbours_in_any_one_value_have_other_seeds(seed: int, epoch: int, position: int, key: int) -> None:
    stream = SeedStream(seed, epoch)
    seeds = [
        stream.sample(position, key),
        stream.sample(position + 1, key),
        stream.sample(position, key + 1),
        SeedStream(seed + 1, epoch).sample(position, key),
        SeedStream(seed, epoch + 1).sample(position, key),
        stream.batch(position),
    ]
    assert len(set(seeds)) == len(seeds)
