"""Frames over a socket: whole, in order, wherever the stream is cut; and keys that can be packed, sliced and unpacked."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire import frames as wire
from penstock.wire.frames import HEAD, INTS, MAX_FRAME, OBJECTS, Channel, Msg, slice_keys
from penstock.wire.pickles import pack_keys, unpack_keys, unpack_positions

FRAMES = st.lists(st.tuples(st.sampled_from(list(Msg)), st.binary(max_size=40)), max_size=8)


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    with one, other:
        yield Channel(one), Channel(other)


def encoded(frames: list[tuple[Msg, bytes]]) -> bytes:
    return b"".join(HEAD.pack(len(payload), kind) + payload for kind, payload in frames)


@settings(deadline=None)
@given(frames=FRAMES, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_frames_arrive_whole_wherever_the_stream_is_cut(
    frames: list[tuple[Msg, bytes]], cuts: list[int]
) -> None:
    data = encoded(frames)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    one, other = socket.socketpair()
    with one, other:
        channel, arrived = Channel(other), []
        for start, end in pairwise(edges):
            one.sendall(data[start:end])
            more = channel.receive(wait=False)
            assert more is not None
            arrived += more
    assert arrived == frames


def test_a_frame_may_consist_of_several_chunks(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(Msg.DONE, b"ab", b"", b"c")
    ends[0].send(Msg.UP)
    assert ends[1].receive() == [(Msg.DONE, b"abc"), (Msg.UP, b"")]


def test_waiting_for_a_frame_does_not_return_half_of_it() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(encoded([(Msg.DONE, b"abcdef")])[:10])
        assert Channel(other).receive(wait=False) == []


def test_nothing_has_arrived_is_not_the_end(ends: tuple[Channel, Channel]) -> None:
    assert ends[1].receive(wait=False) == []
    ends[0].close()
    assert ends[1].receive(wait=False) is None
    assert ends[1].receive() is None


def test_what_was_sent_before_the_end_is_read_first(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(Msg.UP)
    ends[0].close()
    assert ends[1].receive() == [(Msg.UP, b"")]
    assert ends[1].receive() is None


def test_a_frame_over_the_limit_is_refused_before_anything_is_allocated() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(HEAD.pack(MAX_FRAME + 1, Msg.DONE))
        with pytest.raises(ValueError, match=f"{MAX_FRAME + 1} bytes is over the limit"):
            Channel(other).receive(wait=False)


def test_posting_never_blocks_and_what_does_not_fit_follows_in_order(ends: tuple[Channel, Channel]) -> None:
    sender, receiver = ends
    sender.sock.setblocking(False)
    frames = [(Msg.WARN, bytes([n]) * 100_000) for n in range(20)]
    for kind, payload in frames:
        sender.post(kind, payload)
    assert sender.clogged
    arrived: list[tuple[int, bytes]] = []
    while len(arrived) < len(frames):
        arrived += receiver.receive(wait=False) or []
        sender.flush()
    assert arrived == frames
    assert not sender.clogged
    assert sender.flush()


def test_posting_to_someone_who_is_gone_is_forgotten(ends: tuple[Channel, Channel]) -> None:
    ends[0].sock.setblocking(False)
    ends[1].close()
    ends[0].post(Msg.WARN, b"nobody hears")
    assert not ends[0].clogged


@given(st.lists(st.binary(max_size=8000), max_size=30), st.integers(1, 5000))
@settings(deadline=None, max_examples=30)
def test_a_slow_reader_gets_everything(payloads: list[bytes], bites: int) -> None:
    one, other = socket.socketpair()
    with one, other:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        one.setblocking(False)
        sender, reader = Channel(one), Channel(other)
        for payload in payloads:
            sender.post(Msg.SPAN, payload)
        arrived: list[tuple[int, bytes]] = []
        while len(arrived) < len(payloads):
            reader._split(other.recv(bites), arrived)
            sender.flush()
    assert [payload for _, payload in arrived] == payloads


# ---- messages


def test_every_message_has_its_own_number() -> None:
    assert len({msg.value for msg in Msg}) == len(Msg)


@pytest.mark.parametrize(
    ("struct", "values"),
    [
        (wire.ASSIGN, (2**40, 2**41, -1, 2**62, 7, -1, 2**40, 3, 2**30, -1, 4, 1, True)),
        (wire.DONE, (2**40, 10**12, True, False, 3)),
        (wire.FEED, (2**40, -3, 2**62, 2**20, 2**40, 2**30, 1)),
        (wire.SPAN, (3, 2, 2**40, -1, 2**60, 2**40, 7)),
        (wire.BATCH, (2**40, 2**50, 2**50, -1, 0)),
    ],
)
def test_numbers_of_any_plausible_size_fit(struct: Any, values: tuple[Any, ...]) -> None:
    assert struct.unpack(struct.pack(*values)) == values


@given(st.lists(st.integers(0, 2**62), max_size=20).map(tuple), st.binary(max_size=30))
def test_sizes_and_what_follows_them_come_apart_again(sizes: tuple[int, ...], rest: bytes) -> None:
    assert wire.split_sizes(wire.pack_sizes(sizes) + rest) == (sizes, rest)


# ---- keys


INT64 = st.integers(-(2**63), 2**63 - 1)
OTHER = st.one_of(
    st.text(max_size=8),
    st.tuples(INT64, st.text(max_size=3)),
    st.integers(2**63, 2**70),
    st.none(),
    st.booleans(),
)
KEYS = st.lists(INT64, max_size=12) | st.lists(INT64 | OTHER, max_size=12)


@given(keys=KEYS, data=st.data())
def test_a_task_gets_its_keys_out_of_the_batchs(keys: list[Any], data: Any) -> None:
    start = data.draw(st.integers(0, len(keys)))
    count = data.draw(st.integers(0, len(keys) - start))
    kind, packed = pack_keys(keys)
    assert unpack_keys(kind, packed) == keys
    part = unpack_keys(kind, slice_keys(kind, packed, start, count))
    assert part == keys[start : start + count]
    assert list(map(type, part)) == list(map(type, keys[start : start + count]))


@given(pairs=st.lists(st.tuples(INT64, INT64), max_size=12), data=st.data())
def test_a_task_of_a_dealt_batch_gets_its_keys_and_positions(pairs: list[Any], data: Any) -> None:
    start = data.draw(st.integers(0, len(pairs)))
    count = data.draw(st.integers(0, len(pairs) - start))
    kind, packed = pack_keys([key for key, _ in pairs], [position for _, position in pairs])
    part = slice_keys(kind, packed, start, count)
    assert wire.count_keys(kind, part) == count
    keys, positions = unpack_keys(kind, part), unpack_positions(kind, part)
    assert positions is not None
    assert list(zip(keys, positions, strict=True)) == pairs[start : start + count]


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ([1, -2, 3], INTS),
        ([], INTS),
        ([1, True], OBJECTS),
        ([1, np.int64(2)], OBJECTS),
        ([2**63], OBJECTS),
        (["a"], OBJECTS),
        ([[1, 2], (3,)], OBJECTS),
    ],
)
def test_only_plain_whole_numbers_travel_as_an_array(keys: list[Any], kind: int) -> None:
    assert pack_keys(keys)[0] == kind


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_joined_keys_come_apart_again(blobs: list[bytes]) -> None:
    assert wire.split_keys(wire.join_keys(blobs)) == blobs
