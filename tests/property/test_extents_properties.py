"""The free list of the arena under any order of taking, giving back and growing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.extents import ALIGN, Extents, aligned

START = 3 * ALIGN

steps = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(0, 6 * ALIGN)),
        st.tuples(st.just("release"), st.integers(0, 100)),
        st.tuples(st.just("grow"), st.integers(1, 4)),
        st.tuples(st.just("give up"), st.just(0)),
        st.tuples(st.just("fill"), st.integers(0, 6 * ALIGN)),
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
        elif step == "give up":
            given = memory.give_up()
            assert memory.free == 0
            assert all(
                end <= offset or offset + aligned(nbytes) <= start
                for start, end in given
                for offset, nbytes in held
            )
        elif step == "fill":
            span = memory.span_for(value, limit=memory.end)
            if span is not None:
                memory.fill(*span)
        elif held:
            memory.release(*held.pop(value % len(held)))
        pages = [page for offset, nbytes in held for page in range(offset, offset + aligned(nbytes), ALIGN)]
        assert len(pages) == len(set(pages))
        assert all(START <= page < memory.end for page in pages)
        assert memory.used == len(pages) * ALIGN
        holes = sum(end - start for start, end in memory.holes)
        assert memory.used + memory.free + holes == memory.end - START


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


@given(steps, st.integers(0, 6 * ALIGN))
def test_what_is_asked_for_is_had_by_filling_and_never_beyond_the_limit(
    steps: list[tuple[str, int]], need: int
) -> None:
    memory = Extents(START)
    for step, value in steps:
        if step == "alloc":
            while (offset := memory.alloc(value)) is None and (span := memory.span_for(value, 10**6)):
                memory.fill(*span)
            assert offset is not None
        elif step == "give up":
            memory.give_up()
    limit = memory.end
    offset = memory.alloc(need)
    while offset is None and (span := memory.span_for(need, limit)):
        memory.fill(*span)
        offset = memory.alloc(need)
    assert memory.end <= limit
    if offset is None:
        assert memory.holes == [], "all that there is was tried"
