"""An agent and the manager of cores: it says how it stands when that is news, does as it is told, and goes on alone when nobody tells."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import resource
import selectors
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from penstock.agent.lending import AGAIN_S, SILENT_S, Lending
from penstock.agent.loop import SLOW_TICK_S
from penstock.core import events as ev
from penstock.core.state import State
from penstock.lending.frames import GRANT, LenderFacts, LendMsg, Report
from penstock.node.messages import NodeMsg, send
from penstock.policy.reporting import BEAT_S, PAUSE_S
from penstock.policy.stragglers import RankSums
from penstock.wire.arena import FIELDS, Board
from penstock.wire.frames import Channel
from tests.forks import start
from tests.unit.core_steps import done, laid_out, of, tell

HOME = 2
FACTS = b"the facts of a loader"


@dataclass
class Rank:
    """An agent's side, and the other ends of its sockets."""

    lending: Lending
    supply: socket.socket
    selector: selectors.BaseSelector
    state: State = field(default_factory=lambda: laid_out(workers=HOME))
    board: Board = field(default_factory=lambda: Board(memoryview(bytearray(8 * FIELDS * (1 + HOME))), HOME))
    at_s: float = 100.0
    allowed: list[int | None] = field(default_factory=list)
    lost: int = 0
    managers: list[socket.socket] = field(default_factory=list)

    def open(self, facts: bytes = FACTS) -> Channel:
        """Give it a stream; return the manager's end."""
        ours, theirs = socket.socketpair()
        send(self.supply, NodeMsg.OPENED, facts, [theirs.fileno()])
        theirs.close()
        self.turn()
        self.managers.append(ours)
        return Channel(ours)

    def turn(self) -> None:
        """Let it hear what has arrived."""
        for key, mask in self.selector.select(0):
            key.data(mask)

    def look(self, passed_s: float) -> None:
        self.at_s += passed_s
        self.lending.look_after(self.at_s)
        self.lending.look(self.state, self.board, HOME)

    def count_lost(self) -> None:
        self.lost += 1


@pytest.fixture
def rank() -> Iterator[Rank]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    selector = selectors.DefaultSelector()
    made = Rank(Lending(theirs, lambda: made.at_s), ours, selector)
    made.lending.bind(selector, lambda workers, _: made.allowed.append(workers), made.count_lost)
    yield made
    made.lending.close()
    for sock in (ours, *made.managers):
        sock.close()
    selector.close()


def told(manager: Channel) -> list[tuple[int, bytes]]:
    return manager.receive(wait=False) or []


def test_it_joins_and_says_how_it_stands(rank: Rank) -> None:
    manager = rank.open()
    assert told(manager) == [(LendMsg.JOIN, FACTS)]
    tell(rank.state, ev.Feed(1, 8))
    row, worker = rank.board.agent, rank.board.row(1)
    row[Board.NEXT], row[Board.EPOCH], row[Board.BATCH] = 1, 3, 7
    row[Board.BATCHES], row[Board.WAITED_NS], row[Board.EXTRA_NS] = 5, 2_000_000_000, -1_000_000_000
    worker[Board.SAMPLES], worker[Board.PREPARE_NS], worker[Board.CPU_NS] = 9, 4_000_000_000, 3_000_000_000
    rank.look(PAUSE_S)
    ((kind, payload),) = told(manager)
    assert kind == LendMsg.REPORT
    report = Report.unpack(payload, "a crew")
    assert (report.view.home, report.view.epoch, report.view.taken, report.view.busy) == (HOME, 3, 7, 2)
    assert report.view.waiting == 4
    assert report.sums == RankSums(batches=5, waited_s=2.0, samples=9, busy_s=4.0, cpu_s=3.0, extra_s=-1.0)


def test_what_the_gpu_lane_has_still_to_make_is_not_prepared(rank: Rank) -> None:
    manager = rank.open()
    for assigned in of(ev.Assign, tell(rank.state, ev.Feed(1, 4), ev.Feed(2, 4))):
        tell(rank.state, done(assigned))
    rank.board.agent[Board.NEXT], rank.board.agent[Board.AT_LANE] = 1, 1250
    rank.look(PAUSE_S)
    _, (_, payload) = told(manager)
    assert Report.unpack(payload, "a crew").view.ahead == 0.25


def test_what_is_no_news_is_said_seldom(rank: Rank) -> None:
    manager = rank.open()
    rank.look(PAUSE_S)
    told(manager)
    for _ in range(int(BEAT_S / PAUSE_S) - 2):
        rank.look(PAUSE_S)
    assert told(manager) == []
    rank.look(BEAT_S)
    assert len(told(manager)) == 1


def test_it_does_as_it_is_told(rank: Rank) -> None:
    manager = rank.open()
    for number in (0, 0, 3):
        manager.send(LendMsg.GRANT, GRANT.pack(number, HOME))
        rank.turn()
    assert rank.allowed == [0, 0, 3]


def test_a_manager_that_comes_later_hears_how_it_stands_and_what_it_is_now(rank: Rank) -> None:
    facts = LenderFacts(pid=1, rank=0, crew="", cores=(0,), auto=True)
    told(rank.open(facts.pack()))
    rank.lending.now_has(auto=False, cores=frozenset({0, 1}))
    rank.managers[0].close()
    rank.turn()
    manager = rank.open(facts.pack())
    rank.look(PAUSE_S / 4)
    (kind, payload), (news, _) = told(manager)
    assert (kind, news) == (LendMsg.JOIN, LendMsg.REPORT)
    assert LenderFacts.unpack(payload) == replace(facts, auto=False, cores=(0, 1))


def test_it_joins_again_when_it_follows_its_cores_no_longer(rank: Rank) -> None:
    facts = LenderFacts(pid=1, rank=0, crew="", cores=(0,), auto=True)
    manager = rank.open(facts.pack())
    told(manager)
    rank.lending.now_has(auto=False, cores=frozenset({0}))
    assert told(manager) == [(LendMsg.JOIN, replace(facts, auto=False).pack())]


def test_it_looks_at_once_when_the_manager_has_changed_something(rank: Rank) -> None:
    manager = rank.open()
    rank.look(PAUSE_S)
    rank.look(PAUSE_S)
    told(manager)
    assert PAUSE_S < rank.lending.patience_s() < math.inf, "it rests"
    manager.send(LendMsg.GRANT, GRANT.pack(1, HOME))
    rank.turn()
    rank.look(PAUSE_S / 4)
    assert rank.lending.patience_s() == math.inf, "it has looked"


def test_a_rank_that_idles_or_falls_short_says_so_soon(rank: Rank) -> None:
    """Also at the end of an epoch, when training asks for no more."""
    manager = rank.open()
    for number in (1, 2, 3):
        begun = of(ev.Assign, tell(rank.state, ev.Feed(number, 4)))
        tell(rank.state, *(done(one) for one in begun[:-1]))
        rank.look(PAUSE_S)
        assert len(told(manager)) == 1 + (number == 1)
        tell(rank.state, done(begun[-1]))
        rank.look(PAUSE_S)
        assert len(told(manager)) == 1
    for taken in (1, 2, 3):
        rank.board.agent[Board.NEXT] = taken
        rank.look(PAUSE_S)
        assert len(told(manager)) == 1


def test_a_manager_that_does_not_read_gets_no_more_reports(rank: Rank) -> None:
    manager = rank.open()

    def news(step: int) -> None:
        rank.board.agent[Board.BATCH] = step
        tell(rank.state, ev.Feed(1 + step, 1))
        rank.look(PAUSE_S)

    channel = rank.lending._channel
    assert channel is not None
    steps = itertools.count()
    while not channel.clogged:
        news(next(steps))
    for _ in range(20):
        news(next(steps))
    assert len(channel._out) == 1
    told(manager)


@pytest.mark.parametrize("nonsense", [b"", b"\1\2\3"])
def test_it_uses_its_own_cores_when_the_manager_ends_or_talks_nonsense(rank: Rank, nonsense: bytes) -> None:
    manager = rank.open()
    manager.send(LendMsg.GRANT, GRANT.pack(0, HOME))
    rank.turn()
    if nonsense:
        manager.send(LendMsg.GRANT, nonsense)
    else:
        manager.sock.close()
    rank.turn()
    assert rank.allowed == [0, None]
    assert rank.lost == 1
    assert rank.open() is not None, "another manager may come"


def test_it_takes_back_what_it_has_lent_when_the_manager_is_silent(rank: Rank) -> None:
    manager = rank.open()
    rank.look(0.1)
    manager.send(LendMsg.GRANT, GRANT.pack(0, HOME))
    rank.turn()
    for _ in range(int(SILENT_S / 0.1) - 1):
        rank.look(0.1)
    assert rank.allowed == [0]
    manager.send(LendMsg.GRANT, GRANT.pack(0, HOME))
    rank.turn()
    for _ in range(int(SILENT_S / 0.1) + 2):
        rank.look(0.1)
    assert rank.allowed == [0, 0, None]
    assert rank.lost == 1


def test_an_idle_agent_that_looks_seldom_notices_a_silent_manager_too(rank: Rank) -> None:
    """One that has lent all its cores has nothing else to do."""
    manager = rank.open()
    rank.look(SLOW_TICK_S)
    manager.send(LendMsg.GRANT, GRANT.pack(0, HOME))
    rank.turn()
    for _ in range(3):
        rank.look(1.01 * SLOW_TICK_S)
    assert rank.allowed == [0, None]
    assert rank.lost == 1


def test_time_in_which_the_agent_was_stopped_is_not_the_managers_silence(rank: Rank) -> None:
    manager = rank.open()
    rank.look(0.1)
    manager.send(LendMsg.GRANT, GRANT.pack(0, HOME))
    rank.turn()
    rank.look(60.0)
    rank.look(0.1)
    assert rank.allowed == [0]


def test_a_manager_need_not_say_anything_to_whom_it_owes_nothing(rank: Rank) -> None:
    manager = rank.open()
    manager.send(LendMsg.GRANT, GRANT.pack(HOME, HOME))
    rank.turn()
    for _ in range(int(3 * SILENT_S / 0.1)):
        rank.look(0.1)
    assert rank.allowed == [HOME]
    assert not rank.lost


def test_news_that_came_too_soon_after_a_report_is_said_without_another_event(rank: Rank) -> None:
    manager = rank.open()
    rank.look(PAUSE_S)
    assert len(told(manager)) == 2
    assert rank.lending.patience_s() > 1.0, "there is nothing to say"
    tell(rank.state, ev.Feed(1, 8))
    rank.look(0.0)
    assert told(manager) == []
    rank.look(rank.lending.patience_s())
    assert len(told(manager)) == 1


# ---- streams


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing more."""
    free, (soft, hard) = os.dup(0), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_asks_again_for_a_stream_that_it_could_not_receive_but_not_at_once(rank: Rank) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(rank.supply, NodeMsg.OPENED, FACTS, [theirs.fileno()])
    with no_descriptors():
        rank.turn()
    asked = []
    for passed_s in (0.9 * AGAIN_S, 0.2 * AGAIN_S, 2 * AGAIN_S):
        rank.look(passed_s)
        asked.append(rank.lost)
    assert asked == [0, 1, 1]
    assert told(rank.open()) == [(LendMsg.JOIN, FACTS)]


def test_it_asks_for_no_other_stream_when_one_has_come(rank: Rank) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(rank.supply, NodeMsg.OPENED, FACTS, [theirs.fileno()])
    with no_descriptors():
        rank.turn()
    rank.open()
    rank.look(2 * AGAIN_S)
    assert not rank.lost


@contextlib.contextmanager
def copied() -> Iterator[None]:
    """Another process has copies of all that is open."""
    pid = start(signal.pause)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_manager_sees_that_it_leaves_though_another_process_has_the_stream(rank: Rank) -> None:
    first = rank.open()
    with copied():
        second = rank.open()
        told(first)
        assert first.receive(wait=False) is None
    with copied():
        rank.lending.close()
        told(second)
        assert second.receive(wait=False) is None


def test_a_worker_that_is_forked_closes_its_copy_and_no_more(rank: Rank) -> None:
    manager = rank.open()
    _, status = os.waitpid(start(rank.lending.close), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    told(manager)
    assert manager.receive(wait=False) == []
    manager.send(LendMsg.GRANT, GRANT.pack(1, HOME))
    rank.turn()
    assert rank.allowed == [1]
