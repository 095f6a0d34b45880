"""The free list of the arena."""

from __future__ import annotations

import pytest

from penstock.wire.extents import ALIGN, Extents, aligned, lane_offsets


@pytest.mark.parametrize(("nbytes", "expected"), [(0, 1), (1, 1), (4096, 1), (4097, 2), (8192, 2)])
def test_sizes_are_rounded_up_to_pages_and_nothing_takes_one(nbytes: int, expected: int) -> None:
    assert aligned(nbytes) == expected * ALIGN


def test_the_lowest_extent_that_fits_is_taken() -> None:
    memory = Extents(0, 10 * ALIGN)
    offsets = [memory.alloc(2 * ALIGN) for _ in range(4)]
    memory.release(2 * ALIGN, 2 * ALIGN)
    memory.release(6 * ALIGN, 2 * ALIGN)
    assert (offsets, memory.alloc(1), memory.alloc(3 * ALIGN)) == (
        [0, 2 * ALIGN, 4 * ALIGN, 6 * ALIGN],
        2 * ALIGN,
        6 * ALIGN,
    )


def test_neighbours_are_merged_when_they_come_back() -> None:
    memory = Extents(0, 3 * ALIGN)
    for offset in [memory.alloc(1) for _ in range(3)]:
        assert offset is not None
        memory.release(offset, 1)
    assert memory.alloc(3 * ALIGN) == 0


def test_nothing_fits_into_what_is_not_in_one_piece() -> None:
    memory = Extents(0, 3 * ALIGN)
    _, middle, _ = (memory.alloc(1) for _ in range(3))
    assert middle is not None
    memory.release(0, 1)
    memory.release(2 * ALIGN, 1)
    assert memory.alloc(2 * ALIGN) is None


def test_new_memory_joins_what_was_free_at_the_end() -> None:
    memory = Extents(ALIGN, 2 * ALIGN)
    memory.alloc(1)
    memory.grow(ALIGN)
    assert memory.alloc(2 * ALIGN) == 2 * ALIGN


@pytest.mark.parametrize(("used", "expected"), [(0, 5), (1, 6), (2, 7)])
def test_the_end_that_is_needed_starts_at_the_free_tail(used: int, expected: int) -> None:
    memory = Extents(0, 2 * ALIGN)
    for _ in range(used):
        memory.alloc(1)
    assert memory.end_for(5 * ALIGN) == expected * ALIGN


def test_a_hole_in_the_middle_is_no_tail() -> None:
    memory = Extents(0, 2 * ALIGN)
    memory.alloc(1)
    memory.alloc(1)
    memory.release(0, 1)
    assert memory.end_for(2 * ALIGN) == 4 * ALIGN


def test_free_memory_is_given_up_and_had_back_from_the_lowest_hole_that_fits() -> None:
    memory = Extents(0, 8 * ALIGN)
    for _ in range(4):
        memory.alloc(2 * ALIGN)
    memory.release(0, 2 * ALIGN)
    memory.release(4 * ALIGN, 2 * ALIGN)
    assert memory.give_up() == [(0, 2 * ALIGN), (4 * ALIGN, 6 * ALIGN)]
    assert memory.alloc(1) is None
    assert memory.span_for(1, limit=8 * ALIGN) == (0, ALIGN)
    memory.fill(0, ALIGN)
    assert (memory.alloc(1), memory.holes) == (0, [(ALIGN, 2 * ALIGN), (4 * ALIGN, 6 * ALIGN)])


def test_what_is_given_up_at_the_end_lowers_it() -> None:
    memory = Extents(0, 4 * ALIGN)
    memory.alloc(1)
    memory.alloc(1)
    memory.release(ALIGN, 1)
    assert (memory.give_up(), memory.end, memory.holes) == ([(ALIGN, 4 * ALIGN)], ALIGN, [])


def test_a_hole_too_small_is_filled_when_nothing_else_is_left() -> None:
    memory = Extents(0, 4 * ALIGN)
    offsets = [memory.alloc(1) for _ in range(4)]
    memory.release(ALIGN, 1)
    memory.give_up()
    memory.release(2 * ALIGN, 1)
    assert memory.span_for(2 * ALIGN, limit=4 * ALIGN) == (ALIGN, 2 * ALIGN)
    memory.fill(ALIGN, 2 * ALIGN)
    assert (len(offsets), memory.alloc(2 * ALIGN)) == (4, ALIGN)


def test_the_lanes_of_a_slab_start_on_cache_lines_and_do_not_overlap() -> None:
    starts, end = lane_offsets((100, 8, 1), 3)
    assert (starts, end) == ([0, 320, 384], 448)
