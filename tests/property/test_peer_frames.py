"""Messages between caches: what is packed is split into the same, and anything else is refused by one exception."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.peer_frames import (
    ANSWER,
    ANSWER_BYTES,
    HEAD,
    MAX_REQUEST,
    MAX_SAMPLE,
    MOST_ANSWERS,
    MOST_RANGES,
    BadPeerFrame,
    PeerAnswer,
    PeerMsg,
    answers_bytes,
    lengths_bytes,
    pack_answer,
    pack_answers,
    pack_lengths,
    pack_requests,
    payload_bytes,
    split_answers,
    split_lengths,
    split_message,
    split_request,
)

SCOPE = b"scope  8"
numbers = st.integers(0, (1 << 63) - 1)
names = st.text(st.characters(codec=None), max_size=20)  # lone surrogates too, as odd file names have
ranges = st.tuples(names, numbers, st.none() | numbers).map(
    lambda one: one if one[2] is None or one[1] <= one[2] else (one[0], one[2], one[1])
)
samples = st.lists(st.tuples(numbers, st.lists(ranges, max_size=4)), max_size=6)
lengths = st.lists(st.integers(0, MAX_SAMPLE // MOST_RANGES), max_size=5)
keys = st.binary(min_size=16, max_size=16)
checks = st.integers(0, (1 << 32) - 1)


def packed(key: bytes, check: int, sizes: list[int]) -> bytes:
    """A message with one answer, and what stands before the answer's bytes."""
    return pack_answers([pack_answer(PeerMsg.SAMPLE, key, check, sizes)]) + pack_lengths(sizes)


def split(data: bytes) -> tuple[PeerAnswer, tuple[int, ...]]:
    head, rest = data[: HEAD.size], data[HEAD.size :]
    size = answers_bytes(head)
    (answer,) = split_answers(head, rest[:size])
    return answer, split_lengths(answer, rest[size:])


def damaged(data: bytes, draw: st.DataObject) -> bytes:
    at = draw.draw(st.integers(0, len(data) - 1))
    size = draw.draw(st.integers(1, 4))
    other = draw.draw(st.binary(min_size=size, max_size=size))
    return (data[:at] + other + data[at + size :])[: len(data)]


@given(wanted=samples, step=numbers)
def test_a_request_says_what_was_asked(
    wanted: list[tuple[int, list[tuple[str, int, int | None]]]], step: int
) -> None:
    frames, too_long = pack_requests(SCOPE, step, wanted)
    assert too_long == []
    found = []
    for frame in frames:
        head, payload = frame[: HEAD.size], frame[HEAD.size :]
        assert payload_bytes(head) == len(payload)
        assert split_message(head, payload) == (PeerMsg.ASK, len(payload))
        scope, same_step, some = split_request(payload)
        assert (scope, same_step) == (SCOPE, step)
        found += some
    assert found == wanted


@given(wanted=samples.filter(bool), draw=st.data())
def test_a_damaged_request_is_refused(
    wanted: list[tuple[int, list[tuple[str, int, int | None]]]], draw: st.DataObject
) -> None:
    (frame,), _ = pack_requests(SCOPE, 0, wanted)
    changed = damaged(frame, draw)
    if changed in (frame, frame[:1] + changed[1:4] + frame[4:]):  # three bytes of a head are not used
        return
    with pytest.raises(BadPeerFrame):
        split_message(changed[: HEAD.size], changed[HEAD.size :])


@given(key=keys, check=checks, sizes=lengths)
def test_an_answer_says_what_was_given(key: bytes, check: int, sizes: list[int]) -> None:
    data = packed(key, check, sizes)
    answer, found = split(data)
    assert answer == (PeerMsg.SAMPLE, len(sizes), key, check, sum(sizes))
    assert found == tuple(sizes)
    assert len(data) == ANSWER_BYTES + lengths_bytes(answer)


@given(some=st.lists(st.tuples(keys, checks, lengths), min_size=1, max_size=MOST_ANSWERS))
def test_answers_that_travel_together_say_what_was_given(some: list[tuple[bytes, int, list[int]]]) -> None:
    data = pack_answers([pack_answer(PeerMsg.SAMPLE, *one) for one in some])
    assert answers_bytes(data[: HEAD.size]) == len(data) - HEAD.size
    assert split_answers(data[: HEAD.size], data[HEAD.size :]) == [
        (PeerMsg.SAMPLE, len(sizes), key, check, sum(sizes)) for key, check, sizes in some
    ]


@given(key=keys, check=checks, sizes=lengths, draw=st.data())
def test_a_damaged_answer_is_refused(key: bytes, check: int, sizes: list[int], draw: st.DataObject) -> None:
    data = packed(key, check, sizes)
    changed = damaged(data, draw)
    if changed in (data, data[:1] + changed[1:4] + data[4:]):  # three bytes of a head are not used
        return
    with pytest.raises(BadPeerFrame):
        split(changed)


@pytest.mark.parametrize(("count", "nbytes"), [(1, MAX_SAMPLE + 1), (MOST_RANGES + 1, 5), (1, (1 << 64) - 1)])
def test_an_answer_of_a_length_that_cannot_be_is_refused(count: int, nbytes: int) -> None:
    data = pack_answers([ANSWER.pack(PeerMsg.SAMPLE, count, bytes(16), 0, nbytes)])
    with pytest.raises(BadPeerFrame):
        split(data)


@given(
    kind=st.integers(0, 255),
    size=st.integers(0, (1 << 32) - 1) | st.integers(0, 600).map(ANSWER.size.__mul__),
)
def test_a_home_never_sends_more_heads_than_there_is_room_for(kind: int, size: int) -> None:
    with contextlib.suppress(BadPeerFrame):
        assert answers_bytes(HEAD.pack(kind, size, 0)) in range(1, MOST_ANSWERS * ANSWER.size + 1)


@pytest.mark.parametrize(
    "said",
    [["00", 0, []], [SCOPE.hex(), -1, []], [SCOPE.hex(), 0, [[1 << 63, []]]], [SCOPE.hex(), 0, [[True, []]]]],
)
def test_a_request_for_what_cannot_be_is_refused(said: object) -> None:
    with pytest.raises(BadPeerFrame):
        split_request(json.dumps(said).encode())


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda one: json.dumps(one).encode())
)
def test_anything_is_a_request_or_refused(data: bytes) -> None:
    try:
        _, _, wanted = split_request(data)
    except BadPeerFrame:
        return
    assert all(type(sample) is int for sample, _ in wanted)


@given(st.binary(min_size=16, max_size=16), st.integers(0, 255))
def test_a_head_never_asks_for_more_than_a_request(key: bytes, kind: int) -> None:
    head = bytes([kind]) + key[1 : HEAD.size]
    with contextlib.suppress(BadPeerFrame):
        assert payload_bytes(head) <= MAX_REQUEST
