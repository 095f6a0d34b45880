"""The books of one batch: what is to do, what failed, when it is complete."""

from __future__ import annotations

import pytest

from penstock.core.events import Kind
from penstock.core.ledger import Batch, Slab


def batch(size: int = 8, kind: Kind = Kind.SLOTS) -> Batch:
    return Batch(0, size, kind, todo=[(0, size)])


def test_work_is_taken_from_the_front() -> None:
    one = batch(8)
    assert [one.take(3), one.take(3), one.take(3)] == [(0, 3), (3, 3), (6, 2)]
    assert one.todo == []


def test_work_that_comes_back_is_taken_first_where_it_stands_first() -> None:
    one = batch(8)
    start, count = one.take(2)
    one.take(2)
    one.give_back(start, count)
    assert one.take(4) == (0, 2)


def test_a_poisoned_sample_goes_alone() -> None:
    one = batch(8)
    one.poisoned.add(2)
    assert [one.take(4) for _ in range(3)] == [(0, 2), (2, 1), (3, 4)]


def test_a_failure_makes_what_stands_behind_it_needless() -> None:
    one = batch(8)
    one.fail(3, b"third")
    assert one.todo == [(0, 3)]


def test_work_behind_a_failure_does_not_come_back() -> None:
    one = batch(8)
    one.take(8)
    one.fail(3, b"third")
    one.give_back(2, 4)
    one.give_back(6, 2)
    assert one.todo == [(2, 1)]


@pytest.mark.parametrize("order", [(2, 5), (5, 2)])
def test_the_smallest_failure_counts(order: tuple[int, int]) -> None:
    one = batch(8)
    for ordinal in order:
        one.fail(ordinal, b"%d" % ordinal)
    assert one.error == (2, b"2")


@pytest.mark.parametrize("kind", [Kind.WHOLE, Kind.STREAM])
def test_what_one_worker_makes_fails_as_a_whole(kind: Kind) -> None:
    one = batch(8, kind)
    one.fail(5, b"fifth")
    assert one.todo == []


def test_a_batch_that_starts_over_remembers_nothing_but_its_poison() -> None:
    one = batch(4)
    one.take(4)
    one.fail(1, b"first")
    one.poisoned.add(2)
    one.restart(Kind.WHOLE)
    assert (one.kind, one.todo, one.error, one.poisoned) == (Kind.WHOLE, [(0, 4)], None, {2})


def test_a_batch_is_complete_when_nothing_is_to_do_or_under_way() -> None:
    one = batch(2)
    assert not one.complete
    one.take(2)
    one.slab = Slab(0, 100)
    one.live.add(7)
    assert not one.complete
    one.live.clear()
    assert one.complete


def test_a_failed_batch_is_complete_without_memory_once_nothing_before_the_failure_is_open() -> None:
    one = batch(4)
    one.fail(0, b"first")
    assert one.complete


def test_parts_await_their_collate_only_when_all_are_written() -> None:
    one = batch(4, Kind.PARTS)
    one.take(4)
    one.parts = {0: Slab(0, 100), 2: Slab(4096, 100, pins=1)}
    assert not one.awaits_collate
    one.parts[2].pins = 0
    assert one.awaits_collate
    assert not one.complete
