"""The manager of cores: who joins has a say, who is gone or silent has none, and nobody can make it wait."""

from __future__ import annotations

import json
import selectors
import socket
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.lending.frames import GRANT, LenderFacts, LendMsg, Report
from penstock.lending.manager import MOST_CREWS, Manager
from penstock.node.service import Opening
from penstock.policy.deciding import BEAT_S, PAUSE_S, SILENT_S
from penstock.policy.lending import RankView
from penstock.policy.stragglers import RankSums, Why
from penstock.wire.frames import Channel

BUSY = RankView(home=2, allowed=2, batch_s=1.0, waiting=100, waiting_due=20, busy=2)
FULL = BUSY._replace(ahead=4.0, waiting=0, waiting_due=0, busy=0)


@dataclass
class House:
    """A manager under our clock, and the loaders' ends of its streams."""

    at_s: float = 100.0
    ends: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.manager = Manager(clock=lambda: self.at_s)

    def open(self) -> Channel:
        ours, theirs = socket.socketpair()
        self.ends.append(ours)
        self.manager.welcome(Opening(theirs, b"", []))
        return Channel(ours)

    def join(
        self,
        view: RankView,
        *,
        rank: int = 0,
        crew: str = "c",
        cores: tuple[int, ...] = (),
        auto: bool = False,
        lends: bool = True,
    ) -> Channel:
        channel = self.open()
        facts = LenderFacts(pid=1, rank=rank, crew=crew, cores=cores, auto=auto, lends=lends)
        channel.send(LendMsg.JOIN, facts.pack())
        channel.send(LendMsg.REPORT, Report(view).pack())
        return channel

    def turn(self, passed_s: float = PAUSE_S) -> None:
        self.at_s += passed_s
        for _ in range(2):
            self.manager.turn(0.0)


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.manager.close()
    for end in made.ends:
        end.close()


def granted(channel: Channel) -> list[int]:
    frames = channel.receive(wait=False)
    assert frames is not None, "the stream has ended"
    return [GRANT.unpack(payload)[0] for kind, payload in frames if kind == LendMsg.GRANT]


def test_who_is_ahead_lends_to_who_is_behind(house: House) -> None:
    behind, ahead = house.join(BUSY), house.join(FULL)
    house.turn()
    assert granted(behind)[-1:] == [4]
    assert granted(ahead)[-1:] == [0]
    ahead.send(LendMsg.REPORT, Report(BUSY).pack())
    house.turn()
    assert (granted(behind), granted(ahead)) == ([2], [2])


def test_who_is_gone_takes_its_cores_along(house: House) -> None:
    behind, ahead = house.join(BUSY), house.join(FULL)
    house.turn()
    granted(behind)
    ahead.sock.close()
    house.turn()
    assert granted(behind) == [2]


def test_a_loader_that_is_silent_lends_nothing_more_and_borrows_nothing(house: House) -> None:
    behind, stopped = house.join(BUSY), house.join(FULL)
    house.turn()
    granted(behind)
    for _ in range(int(SILENT_S / BEAT_S) + 2):
        house.turn(BEAT_S)
        behind.send(LendMsg.REPORT, Report(BUSY).pack())
    assert granted(behind)[-1] == 2
    assert granted(stopped)[-1] == 2


def test_one_that_is_silent_and_was_short_causes_no_decisions(house: House) -> None:
    house.join(BUSY)
    other = house.join(FULL)
    for _ in range(int(SILENT_S / BEAT_S) + 3):
        house.turn(BEAT_S)
        other.send(LendMsg.REPORT, Report(FULL).pack())
    house.turn()
    house.turn()
    due_s = house.manager.deciding.due_s
    other.send(LendMsg.REPORT, Report(FULL).pack())
    house.turn()
    assert house.manager.deciding.due_s == due_s > house.at_s + PAUSE_S


def test_it_says_several_times_a_second_that_cores_are_lent(house: House) -> None:
    behind, ahead = house.join(BUSY), house.join(FULL)
    house.turn()
    granted(behind), granted(ahead)
    for _ in range(3):
        house.turn(BEAT_S)
    assert granted(behind) == [4, 4, 4]
    assert granted(ahead) == [0, 0, 0]


def test_loaders_that_have_what_is_theirs_hear_nothing(house: House) -> None:
    one, other = house.join(BUSY), house.join(BUSY)
    house.turn()
    granted(one), granted(other)
    for _ in range(5):
        house.turn(BEAT_S)
    assert granted(one) == granted(other) == []


@pytest.mark.parametrize("first", [BUSY, FULL])
def test_whoever_needs_cores_gets_them_after_a_time_in_which_nobody_did(
    house: House, first: RankView
) -> None:
    one, other = house.join(first._replace(ahead=4.0)), house.join(FULL)
    for _ in range(3):
        house.turn(BEAT_S)
    granted(one), granted(other)
    house.turn()
    one.send(LendMsg.REPORT, Report(BUSY).pack())
    house.turn()
    assert (granted(one), granted(other)) == ([4], [0])


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (LendMsg.REPORT, b"short"),
        (LendMsg.REPORT, Report(BUSY._replace(waiting=-1)).pack()),
        (LendMsg.REPORT, Report(BUSY._replace(ahead=float("nan"))).pack()),
        (LendMsg.REPORT, Report(BUSY._replace(batch_s=float("inf"))).pack()),
        (LendMsg.REPORT, Report(BUSY._replace(home=2_000_000_000)).pack()),
        (LendMsg.REPORT, Report(BUSY, RankSums(batches=-1)).pack()),
        (LendMsg.REPORT, Report(BUSY, RankSums(extra_s=float("inf"))).pack()),
        (LendMsg.JOIN, Report(BUSY).pack()),
        (LendMsg.GRANT, GRANT.pack(5, 5)),
        (99, b""),
    ],
)
def test_who_talks_nonsense_is_dropped_and_nobody_else(house: House, kind: LendMsg, payload: bytes) -> None:
    good, bad = house.join(BUSY), house.join(FULL)
    house.turn()
    bad.send(kind, payload)
    house.turn()
    bad.sock.settimeout(5)
    assert bad.receive() is not None  # what it was told before
    assert bad.receive() is None
    assert granted(good)[-1] == 2


GOOD = {"pid": 1, "rank": 0, "crew": "c", "cores": [0], "auto": False, "lends": True}


@pytest.mark.parametrize(
    "facts",
    [
        {"pid": 1},
        {**GOOD, "crew": ["c"]},
        {**GOOD, "cores": [[0]]},
        {**GOOD, "cores": 1},
        {**GOOD, "rank": "a"},
        {**GOOD, "auto": 1},
        {**GOOD, "more": 1},
        "[" * 20_000,
    ],
)
def test_facts_that_are_none_are_nonsense(house: House, facts: Any) -> None:
    good, channel = house.join(BUSY), house.open()
    channel.send(LendMsg.JOIN, facts.encode() if isinstance(facts, str) else json.dumps(facts).encode())
    house.turn()
    assert channel.receive() is None
    assert granted(good) == [2]


def test_a_loader_that_follows_its_cores_no_longer_has_what_the_user_says(house: House) -> None:
    one = house.join(BUSY, crew="", cores=(0,), auto=True)
    house.turn()
    assert granted(one)[-1] == 1
    facts = LenderFacts(pid=1, rank=0, crew="", cores=(0,), auto=False)
    one.send(LendMsg.JOIN, facts.pack())
    house.turn()
    assert granted(one) == [2]


def test_loaders_that_want_nothing_cause_no_decisions(house: House) -> None:
    one, other = house.join(FULL), house.join(FULL)
    house.turn()
    due_s = house.manager.deciding.due_s
    for _ in range(4):
        one.send(LendMsg.REPORT, Report(FULL).pack())
        other.send(LendMsg.REPORT, Report(FULL).pack())
        house.turn()
    assert house.manager.deciding.due_s == due_s > house.at_s + PAUSE_S
    one.send(LendMsg.REPORT, Report(BUSY).pack())
    house.turn()
    assert house.manager.deciding.due_s > due_s


def test_whoever_comes_to_idle_lends_to_those_that_are_short_already(house: House) -> None:
    short, other = house.join(BUSY), house.join(BUSY)
    house.turn()
    granted(short), granted(other)
    other.send(LendMsg.REPORT, Report(FULL).pack())
    house.turn()
    assert (granted(short), granted(other)) == ([4], [0])


def test_there_may_be_fewer_cores_than_before(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [house.join(FULL, crew="", cores=(0, 1, 2, 3), auto=True) for _ in range(2)]
    house.turn()
    assert [granted(one)[-1] for one in both] == [2, 2]
    monkeypatch.setattr("penstock.lending.manager.cpu_quota", lambda: 2.0)
    house.turn(BEAT_S)
    assert [granted(one) for one in both] == [[1], [1]]


def test_who_does_not_read_is_told_no_more_and_delays_nobody(house: House) -> None:
    deaf, good = house.join(BUSY), house.join(FULL)
    kept_bytes = []
    tracemalloc.start()
    for turn in range(4_000):
        deaf.send(LendMsg.REPORT, Report(BUSY).pack())
        good.send(LendMsg.REPORT, Report(FULL if turn % 2 else BUSY).pack())
        house.turn()
        assert len(granted(good)) <= 2
        if turn % 1_000 == 999:
            kept_bytes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert kept_bytes[-1] - kept_bytes[-2] < 10_000


def test_loaders_bound_to_different_cores_do_not_lend_to_each_other(house: House) -> None:
    behind, near = house.join(BUSY, cores=(0, 1)), house.join(FULL, cores=(0, 1, 2))
    far = house.join(FULL, cores=(8, 9))
    free = house.join(FULL, cores=tuple(range(10)))
    house.turn()
    assert [granted(one)[-1] for one in (behind, near, far, free)] == [4, 0, 2, 2]


def test_loaders_that_follow_the_cores_share_them(house: House) -> None:
    both = [house.join(BUSY, crew="", cores=(0, 1), auto=True) for _ in range(2)]
    house.turn()
    assert [granted(one)[-1] for one in both] == [1, 1]


def test_loaders_that_follow_the_cores_leave_those_that_do_not_their_own(house: House) -> None:
    given = house.join(BUSY._replace(home=4, busy=4), crew="", cores=(0, 1))
    follow = [house.join(BUSY, crew="", cores=(0, 1), auto=True) for _ in range(2)]
    house.turn()
    assert [granted(one)[-1] for one in (given, *follow)] == [4, 1, 1]


@pytest.mark.parametrize("crew", ["", "c"])
def test_of_loaders_that_follow_too_few_cores_each_has_one(house: House, crew: str) -> None:
    behind = BUSY._replace(taken=10)
    all_of_them = [house.join(view, crew=crew, cores=(0,), auto=True) for view in (BUSY, behind, behind)]
    for _ in range(5):
        house.turn(BEAT_S)
        for one in all_of_them:
            one.send(LendMsg.REPORT, Report(BUSY).pack())
    assert all(granted(one)[-1] >= 1 for one in all_of_them)


def test_it_tells_how_cores_are_lent(house: House) -> None:
    house.join(BUSY, rank=0), house.join(FULL, rank=1)
    house.turn()
    for _ in range(10):
        house.turn(BEAT_S / 2)
    asks = house.open()
    asks.send(LendMsg.STATS)
    house.turn()
    ((kind, payload),) = asks.receive() or []
    assert kind == LendMsg.STATED
    stats = json.loads(payload)
    borrower, lender = stats["loaders"]
    assert (borrower["rank"], borrower["workers"], borrower["allowed"]) == (0, 2, 4)
    assert (lender["rank"], lender["workers"], lender["allowed"]) == (1, 2, 0)
    assert borrower["borrowed_s"] == pytest.approx(lender["lent_s"]) == pytest.approx(2.0, rel=0.2)
    assert stats["cores"] == 4
    assert stats["moves"] == 2


def asked(house: House) -> dict[str, Any]:
    asks = house.open()
    asks.send(LendMsg.STATS)
    house.turn()
    ((_, payload),) = asks.receive() or []
    stats: dict[str, Any] = json.loads(payload)
    return stats


def test_it_tells_who_holds_up_the_others_though_one_of_them_has_left(house: House) -> None:
    late, early = house.join(BUSY, rank=0), house.join(FULL, rank=1)
    for count in range(1, 41):
        late.send(LendMsg.REPORT, Report(BUSY, RankSums(count, count / 10, count / 20)).pack())
        early.send(LendMsg.REPORT, Report(FULL, RankSums(count, count / 10, 0.0)).pack())
        house.turn()
    early.sock.close()
    house.turn()
    (crew,) = asked(house)["crews"].values()
    assert [one["batches"] for one in crew["ranks"]] == [39, 39]
    assert (crew["slowest"]["rank"], crew["slowest"]["share"]) == (0, pytest.approx(0.5))
    assert crew["slowest"]["why"] == Why.SINGLE


def test_loaders_that_only_watch_are_compared_and_keep_their_cores(house: House) -> None:
    late, early = house.join(BUSY, rank=0, lends=False), house.join(FULL, rank=1, lends=False)
    house.turn()
    assert (granted(late), granted(early)) == ([2], [2])
    assert list(asked(house)["crews"]) == ["c"]


def test_numbers_of_crews_that_are_gone_are_not_kept_for_ever(house: House) -> None:
    for number in range(3 * MOST_CREWS):
        house.join(BUSY, crew=f"crew {number}").sock.close()
        house.turn()
    assert len(asked(house)["crews"]) <= MOST_CREWS


def test_the_selector_has_nothing_left_when_all_are_gone(house: House) -> None:
    for channel in (house.join(BUSY), house.join(FULL)):
        house.turn()
        channel.sock.close()
    house.turn()
    assert isinstance(house.manager.selector, selectors.BaseSelector)
    assert not house.manager.selector.get_map()
