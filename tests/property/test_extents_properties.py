"""The free list of the arena under any order of taking, giving back and growing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.store.extents import ALIGN, Extents, aligned

START = 3 * ALIGN

steps = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(0, 6 * ALIGN)),
        st.tuples(st.just("release"), st.integers(0, 100)),
        st.tuples(st.just("grow"), st.integers(1, 4)),
    ),
    max_size=60,
)


@given(steps)
def test_extents_never_overlap_and_always_add_up(steps: list[tuple[str, int]]) -> None:
    memory = Extents(START)
    held: list[tuple[int, int]] = []
    for step, value in steps:
        if step == "alloc":
            offset = memory.alloc(value)
            if offset is not None:
                held.append((offset, value))
        elif step == "grow":
            memory.grow(value * ALIGN)
        elif held:
            memory.release(*held.pop(value % len(held)))
        pages = [page for offset, nbytes in held for page in range(offset, offset + aligned(nbytes), ALIGN)]
        assert len(pages) == len(set(pages))
        assert all(START <= page < memory.end for page in pages)
        assert memory.used == len(pages) * ALIGN
        assert memory.used + memory.free == memory.end - START


@given(steps, st.integers(0, 6 * ALIGN))
def test_after_growing_to_the_end_that_is_needed_there_is_room(
    steps: list[tuple[str, int]], need: int
) -> None:
    memory = Extents(START)
    for step, value in steps:
        if step == "alloc":
            memory.alloc(value)
        elif step == "grow":
            memory.grow(value * ALIGN)
    if memory.alloc(need) is None:
        end = memory.end_for(need)
        memory.grow(end - memory.end)
        assert memory.alloc(need) == end - aligned(need)


@given(steps)
def test_when_all_is_given_back_it_is_one_piece_again(steps: list[tuple[str, int]]) -> None:
    memory = Extents(START, 8 * ALIGN)
    held = [(memory.alloc(value), value) for step, value in steps if step == "alloc"]
    for offset, value in reversed(held):
        if offset is not None:
            memory.release(offset, value)
    assert memory.alloc(8 * ALIGN) == START
