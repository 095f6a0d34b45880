"""One share of an iterable dataset, in this process: from the place after any batch, the rest comes; and places never change."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import default_collate

from penstock.dataset.seeding import generators_kept
from penstock.epochs.shares import entry_of, place_of
from penstock.worker.prepare import Recipe
from penstock.worker.streaming import Share, Streamer, StreamPlace
from tests.contract.streams import KINDS, Alive, Counting, Drawing, DrawingItself, DrawingWithPlace

ALL: dict[str, Any] = {**KINDS, "Alive": Alive, "Counting": Counting}


def streamer(
    dataset: Any, share: Share, place: StreamPlace | None = None, *, drop_last: bool = False
) -> Streamer:
    recipe = Recipe(dataset=dataset, collate_fn=default_collate, auto_collation=True, seed=5)
    return Streamer(recipe, drop_last, share, place)


def taken(stream: Streamer, size: int, most: int = 1000) -> list[tuple[Any, StreamPlace]]:
    found: list[tuple[Any, StreamPlace]] = []
    before: StreamPlace | None = stream.started
    while len(found) < most:
        try:
            batch = stream.next_batch(size).tolist()
        except StopIteration:
            break
        place = stream.place().after(before)
        before = place
        found.append((batch, place))
    return found


@given(
    kind=st.sampled_from(sorted(ALL)),
    size=st.integers(0, 12),
    batch=st.integers(1, 4),
    every=st.integers(0, 4),
    drop_last=st.booleans(),
    at=st.integers(0, 12),
    again=st.integers(0, 12),
)
def test_from_the_place_after_any_batch_the_rest_comes(
    kind: str, size: int, batch: int, every: int, drop_last: bool, at: int, again: int
) -> None:
    share = Share(every=every)
    whole = taken(streamer(ALL[kind](size), share, drop_last=drop_last), batch)
    batches = [one for one, _ in whole]
    places = [streamer(ALL[kind](size), share).started, *(place for _, place in whole)]
    at = min(at, len(whole))
    rest = taken(streamer(ALL[kind](size), share, places[at], drop_last=drop_last), batch)
    assert [one for one, _ in rest] == batches[at:]
    assert [place.batches for _, place in rest] == [place.batches for place in places[at + 1 :]]
    again = min(again, len(rest))
    twice = [places[at], *(place for _, place in rest)][again]
    third = taken(streamer(ALL[kind](size), share, twice, drop_last=drop_last), batch)
    assert [one for one, _ in third] == batches[at + again :]


@given(kind=st.sampled_from(sorted(ALL)), at=st.integers(0, 4), every=st.integers(0, 3))
def test_a_place_survives_a_checkpoint(kind: str, at: int, every: int) -> None:
    share = Share(every=every)
    whole = taken(streamer(ALL[kind](10), share), 2)
    place = whole[at][1]
    saved = entry_of(place)
    assert all(saved[key] is not entry_of(place)[key] for key in ("dataset", "iterator") if key in saved)
    rest = taken(streamer(ALL[kind](10), share, place_of(saved)), 2)
    assert [one for one, _ in rest] == [one for one, _ in whole[at + 1 :]]


@given(
    kind=st.sampled_from([Drawing, DrawingWithPlace, DrawingItself]),
    at=st.integers(0, 5),
    other=st.integers(),
)
def test_with_a_seed_draws_are_those_of_the_run_that_was_not_interrupted(
    kind: Any, at: int, other: int
) -> None:
    """But for the first sample of a generator function that goes on: it may draw an order there."""
    share = Share(worker=1, epoch=3, keyed=True)
    with generators_kept():
        whole = taken(streamer(kind(12), share), 2)
        random.seed(other)
        place = whole[at - 1][1] if at else None
        rest = [one for one, _ in taken(streamer(kind(12), share, place), 2)]
    expected = [one for one, _ in whole[at:]]
    assert [[sample[0] for sample in one] for one in rest] == [[s[0] for s in one] for one in expected]
    if kind is DrawingWithPlace and at and rest:
        rest[0][0], expected[0][0] = [], []
    assert rest == expected
