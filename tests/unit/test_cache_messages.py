"""What ranks tell the cache service, and it them: whatever arrives instead is refused, and costs at most the stream."""

from __future__ import annotations

import json
import os
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cache.frames import (
    MOST_FRAME,
    BadFrame,
    CacheMsg,
    pack_ask,
    pack_landed,
    split_ask,
    split_landed,
    split_over,
)
from penstock.cache.join_facts import GroupPlan, JoinAnswer, JoinFacts
from penstock.wire.frames import HEAD
from penstock.wire.places import Landing, split_places
from tests.cache_service import (
    JOINED,
    Numbers,
    Rank,
    ServedHere,
    content,
    facts_of,
    framed,
    plan,
    serving,
)
from tests.fault.programs import until

ROOM = 2 << 20
RANGES = [[("/data/ä", 0, None)], [("b", 5, 7), ("b\udcff", 7, 9)]]
ASK = pack_ask(7, 1, 2, [3, 1], RANGES)
LANDINGS = [Landing(0, 1 << 40, (5, 0)), Landing(3, -1), Landing(1, 0, ())]
SPLITS: list[Callable[[bytes], object]] = [
    split_ask,
    split_over,
    split_landed,
    JoinFacts.unpack,
    GroupPlan.unpack,
    JoinAnswer.unpack,
]
NAMES = ["ask", "over", "landed", "join", "plan", "joined"]


def facts() -> JoinFacts:
    return facts_of(Path("/data"), 5, ROOM, settings={"A": "1"}, stamps={"a": "b"}, secret="a7" * 32)


# ---- what was packed


def test_messages_are_what_was_packed() -> None:
    assert split_ask(ASK) == (7, 1, 2, [3, 1], RANGES)
    assert split_ask(pack_ask(0, 0, 0, [], [])) == (0, 0, 0, [], [])
    assert split_landed(pack_landed(7, LANDINGS)) == (7, LANDINGS)
    assert list(split_places(b"")) == []
    assert JoinFacts.unpack(facts().pack()) == facts()
    assert GroupPlan.unpack(plan().pack()) == plan()
    assert JoinAnswer.unpack(JOINED.pack()) == JOINED


# ---- nonsense


@pytest.mark.parametrize("split", SPLITS, ids=NAMES)
@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_other_bytes_are_refused(split: Callable[[bytes], object], data: bytes) -> None:
    refused_or_read(split, data)


@pytest.mark.parametrize(
    ("split", "data"),
    list(
        zip(
            SPLITS,
            [ASK, bytes(9), pack_landed(7, LANDINGS), facts().pack(), plan().pack(), JOINED.pack()],
            strict=True,
        )
    ),
    ids=NAMES,
)
def test_cut_off_messages_are_refused(split: Callable[[bytes], object], data: bytes) -> None:
    for end in range(len(data)):
        refused_or_read(split, data[:end])
    split(data)


def refused_or_read(split: Callable[[bytes], object], data: bytes) -> None:
    try:
        split(data)
    except BadFrame:
        return


@pytest.mark.parametrize(
    "numbers",
    [[0], [0, 0], [0, 0, 1], [0, 0, -1], [0, 0, -3], [0, 0, 1 << 62], [0, 0, 1, 5, 0]],
    ids=["one", "two", "no length", "before itself", "for ever", "huge", "rest"],
)
def test_places_of_other_lengths_are_refused(numbers: list[int]) -> None:
    """Among them those after which splitting would go on for ever."""
    with pytest.raises(BadFrame):
        split_landed(bytes(8) + array("q", numbers).tobytes())


@pytest.mark.parametrize(
    "said",
    [
        "[[1], []]",
        "[[1], [[], []]]",
        '[["1"], [[]]]',
        "[[true], [[]]]",
        "[[1.0], [[]]]",
        "[1, [[]]]",
        "[[1]]",
        "{}",
        '[[1], [[["a", 0]]]]',
        '[[1], [[["a", 0.5, 1]]]]',
        "[[1], [[[1, 0, 1]]]]",
        '[[1], [[["a", 0, 9223372036854775808]]]]',
        '[[1], [[["a", 0, "1"]]]]',
        "[" * 100_000,
    ],
    ids=range(14),
)
def test_a_batch_without_the_ranges_of_each_sample_is_refused(said: str) -> None:
    with pytest.raises(BadFrame):
        split_ask(bytes(24) + said.encode())


ODD = [None, -1, 1 << 70, 0.5, True, "x", [], {}, [[]], {"a": 1}, "\x00"]


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (GroupPlan, {"batch_size": 0}),
        (GroupPlan, {"world": 1 << 40}),
        (GroupPlan, {"node": 1}),
        (JoinFacts, {"samples": -1}),
        (JoinFacts, {"port": 1 << 16}),
        (JoinAnswer, {"room_bytes": 1 << 63}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else next(iter(value)),
)
def test_numbers_that_would_not_fit_are_refused(kind: Any, changes: dict[str, int]) -> None:
    good = {JoinFacts: facts(), GroupPlan: plan(), JoinAnswer: JOINED}[kind]
    with pytest.raises(BadFrame):
        kind.unpack(json.dumps(json.loads(good.pack()) | changes).encode())


@pytest.mark.parametrize("kind", [JoinFacts, GroupPlan, JoinAnswer])
def test_a_value_of_another_kind_is_refused_or_means_the_same_to_all(kind: Any) -> None:
    """What is let through can be packed again: it is of the right kind."""
    good = {JoinFacts: facts(), GroupPlan: plan(), JoinAnswer: JOINED}[kind]
    said = json.loads(good.pack())
    refused = 0
    for name in said:
        for odd in ODD:
            try:
                found = kind.unpack(json.dumps(said | {name: odd}).encode())
            except BadFrame:
                refused += 1
                continue
            assert kind.unpack(found.pack()) == found
    assert refused > len(said) * len(ODD) / 2
    for other in (b"[]", b"1", b'"x"', b"{}", b"[" * 100_000, json.dumps(said | {"more": 1}).encode()):
        with pytest.raises(BadFrame):
            kind.unpack(other)


# ---- the service


@pytest.fixture
def data(tmp_path: Path) -> Numbers:
    return Numbers(tmp_path, 20)


@pytest.fixture
def served() -> Iterator[ServedHere]:
    with serving() as made:
        yield made


def works(served: ServedHere, data: Numbers) -> None:
    """A rank joins and is served."""
    rank = Rank(served.stream(), data.facts(ROOM))
    rank.ask(0, range(20), data)
    assert sorted(rank.placed(0, data)) == list(range(20))
    assert [rank.read(number, data) for number in range(20)] == [content(number) for number in range(20)]
    rank.close()
    until(lambda: served.stats()["leased"] == 0, within_s=5.0, why="the leases of who has left stay")


def dropped(stream: socket.socket) -> None:
    """Wait for the end of a stream."""
    until_s = time.monotonic() + 20
    stream.settimeout(20)
    while stream.recv(1 << 16):
        assert time.monotonic() < until_s, "it is not dropped"
    stream.close()


def changed_plan(**changes: Any) -> bytes:
    return json.dumps(json.loads(plan().pack()) | changes).encode()


NONSENSE = {
    "length": b"\xff" * 64,
    "too long": HEAD.pack(MOST_FRAME + 1, CacheMsg.ASK),
    "nothing": HEAD.pack(0, 99),
    "unknown dataset": framed(CacheMsg.ASK, ASK),
    "join": framed(CacheMsg.JOIN, b"hello"),
    "deep join": framed(CacheMsg.JOIN, b"[" * 100_000),
    "stats": framed(CacheMsg.STATS, b"\xff"),
}
JOINED_NONSENSE = {
    "ask": framed(CacheMsg.ASK, b"hello"),
    "twice": 2 * framed(CacheMsg.ASK, ASK),
    "over": framed(CacheMsg.OVER, b"1234"),
    "kind": framed(77, bytes(4)),
    "plan": framed(CacheMsg.PLAN, changed_plan(batch_size=0)),
    "deep plan": framed(CacheMsg.PLAN, b"[" * 100_000),
    "length": b"\xff" * 64,
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_stranger_who_sends_nonsense_is_dropped_and_nobody_else_notices(
    served: ServedHere, data: Numbers, nonsense: str, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = served.stream()
    stranger.sendall(NONSENSE[nonsense])
    dropped(stranger)
    works(served, data)
    assert "a rank is dropped" in caplog.text


@pytest.mark.parametrize("nonsense", JOINED_NONSENSE)
def test_a_rank_who_sends_nonsense_is_dropped_with_its_leases(
    served: ServedHere, data: Numbers, nonsense: str, caplog: pytest.LogCaptureFixture
) -> None:
    rank = Rank(served.stream(), data.facts(ROOM))
    rank.ask(0, range(20), data)
    assert len(rank.placed(0, data)) == 20
    rank.channel.sock.sendall(JOINED_NONSENSE[nonsense])
    dropped(rank.channel.sock)
    works(served, data)
    assert "a rank is dropped" in caplog.text


@pytest.mark.parametrize(
    ("epoch", "batch", "samples"),
    [(1 << 62, 1 << 62, [1]), (-1, 0, [1]), (0, 0, [20]), (0, 0, [-1]), (0, 0, [1 << 80])],
)
def test_a_batch_that_is_in_no_plan_is_left_to_its_worker(
    served: ServedHere, data: Numbers, epoch: int, batch: int, samples: list[int]
) -> None:
    rank = Rank(served.stream(), data.facts(ROOM))
    rank.ask(0, samples, data, epoch=epoch, batch=batch)
    assert rank.placed(0, data) == []
    rank.close()
    works(served, data)


@pytest.mark.parametrize("where", [(0, -5), (-5, None), (10, 5), ((1 << 63) - 1, None), (0, (1 << 63) - 1)])
def test_ranges_that_no_file_has_are_left_to_their_worker(
    served: ServedHere, data: Numbers, where: tuple[int, int | None]
) -> None:
    rank = Rank(served.stream(), data.facts(ROOM))
    payload = pack_ask(5, 0, 0, [1], [[(str(data.folder / "1"), *where)]])
    rank.channel.send(CacheMsg.ASK, payload)
    assert all(each.offset == -1 for each in rank.landed(5, 1).values())
    rank.close()
    works(served, data)


def test_who_asks_and_never_reads_holds_up_nobody(served: ServedHere, data: Numbers) -> None:
    ranges = [data.ranges(number) for number in range(20)]
    with (
        closing(Rank(served.stream(), data.facts(ROOM))) as deaf,
        closing(Rank(served.stream(), data.facts(ROOM))) as rank,
    ):
        deaf.channel.sock.settimeout(2.0)

        def ask_on() -> None:
            for seq in range(3_000):
                deaf.channel.send(CacheMsg.ASK, pack_ask(seq, 0, 0, [*range(20)], ranges))

        with pytest.raises(TimeoutError):
            ask_on()
        rank.ask(0, range(20), data)
        assert sorted(rank.placed(0, data)) == list(range(20))
    until(lambda: served.stats()["leased"] == 0, within_s=5.0, why="its leases stay")


def test_any_kind_of_facts_and_plans_costs_at_most_their_stream(served: ServedHere, data: Numbers) -> None:
    joins = json.loads(data.facts(ROOM).pack())
    plans = json.loads(plan().pack())
    for name in joins:
        for odd in ODD:
            stream = served.stream()
            other = joins | {"scope": os.urandom(8).hex()} | {name: odd}
            stream.sendall(framed(CacheMsg.JOIN, json.dumps(other).encode()))
            stream.close()
    for name in [*plans, *plans["owners"]]:
        for odd in ODD:
            rank = Rank(served.stream(), data.facts(ROOM, scope=os.urandom(8).hex()), planned=False)
            asked = (
                plans | {name: odd} if name in plans else plans | {"owners": plans["owners"] | {name: odd}}
            )
            rank.channel.sock.sendall(framed(CacheMsg.PLAN, json.dumps(asked).encode()))
            rank.close()
    works(served, data)
