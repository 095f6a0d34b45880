"""How many workers an agent has: those the user has asked for, and spare ones for borrowed cores."""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.agent.config import AgentConfig
from penstock.agent.lending import Lending
from penstock.agent.staffing import Staffing
from penstock.core import events as ev
from penstock.core.events import Kind
from penstock.core.pools import PoolConfig
from penstock.core.state import CoreConfig, State
from penstock.lending.frames import GRANT, LenderFacts, LendMsg
from penstock.node.messages import NodeMsg, send
from penstock.wire.arena import AS_CORES, Arena, Board
from penstock.wire.frames import Channel, Msg
from tests.unit.core_steps import of, started, tell

HOME, MOST_WORKERS = 4, 32
FACTS = LenderFacts(
    pid=os.getpid(), rank=0, crew="", cores=tuple(sorted(os.sched_getaffinity(0))), auto=False
)


class House:
    """An agent without processes: its core, its staffing, and the manager's end of its stream."""

    def __init__(self, facts: LenderFacts = FACTS, **config: Any) -> None:
        self.spares: list[bool] = []
        """Of each worker that is started: whether it is spare."""
        self.selector = selectors.DefaultSelector()
        self.state: State = started(workers=HOME, **config)
        self.arena = Arena.create(1 << 20, MOST_WORKERS)
        supply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        config = AgentConfig(core=CoreConfig(workers=HOME, kind=Kind.SLOTS), parent=os.getpid())
        self.staffing = Staffing(config, self.state, self.arena, self, Lending(theirs))
        self.staffing.bind()
        ours, stream = socket.socketpair()
        send(supply, NodeMsg.OPENED, facts.pack(), [stream.fileno()])
        stream.close()
        supply.close()
        self.manager = Channel(ours)
        self.turn()

    def happen(self, event: ev.Event) -> None:
        starts = of(ev.Start, tell(self.state, event))
        self.spares += [self.state.workers[start.worker].is_spare for start in starts]

    def tell(self, kind: Msg, *chunks: bytes) -> None:
        pass

    def turn(self) -> None:
        for key, mask in self.selector.select(0):
            key.data(mask)

    def grant(self, workers: int, own: int = HOME) -> None:
        self.manager.send(LendMsg.GRANT, GRANT.pack(workers, own))
        self.turn()

    def want(self, workers: int) -> None:
        """Let the user ask for so many workers."""
        self.arena.board.agent[Board.WANTED] = workers
        self.staffing.look_after(1.0, [])

    @property
    def size(self) -> int:
        return self.state.local.size

    @property
    def at_work(self) -> int:
        return self.state.local.helpers

    def close(self) -> None:
        self.staffing.close()
        self.manager.close()
        self.selector.close()
        self.arena.close()


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.close()


def test_workers_for_borrowed_cores_stay_and_rest(house: House) -> None:
    house.grant(7)
    assert (house.size, house.at_work) == (7, 7)
    house.grant(2)
    assert (house.size, house.at_work) == (7, 2)


def test_a_share_of_the_cores_is_neither_lent_nor_borrowed(house: House) -> None:
    row = house.arena.board.agent
    house.grant(1, own=1)
    time.sleep(0.01)
    house.staffing.look_after(1.0, [])
    assert (house.at_work, row[Board.OWN], row[Board.EXTRA_NS]) == (1, 1, 0)
    house.grant(2, own=1)
    time.sleep(0.01)
    house.staffing.look_after(1.0, [])
    assert row[Board.EXTRA_NS] > 0


def test_surplus_workers_end_when_the_user_wants_fewer(house: House) -> None:
    house.grant(HOME)
    house.want(1)
    assert (house.size, house.at_work) == (1, 1)
    house.grant(1)
    assert (house.size, house.at_work) == (1, 1)


def test_those_for_borrowed_cores_end_too_until_the_manager_grants_some_again(house: House) -> None:
    house.grant(7)
    house.want(2)
    assert (house.size, house.at_work) == (2, 2)
    house.grant(7)
    assert (house.size, house.at_work) == (7, 7)


def test_more_workers_begin_at_once_unless_cores_are_lent(house: House) -> None:
    house.grant(HOME)
    house.want(6)
    assert (house.size, house.at_work) == (6, 6)
    house.grant(1)
    house.want(8)
    assert (house.size, house.at_work) == (8, 1)


def test_a_worker_for_the_first_core_that_is_borrowed_is_spare_when_it_starts(house: House) -> None:
    house.grant(HOME + 2)
    assert house.spares == [True, True]
    house.want(HOME + 3)
    assert house.spares == [True, True, False]


def test_once_a_spare_worker_has_failed_no_more_are_asked_for(house: House) -> None:
    house.grant(7)
    house.happen(ev.InitFailed(5, b"init"))
    assert (house.size, house.at_work) == (5, 5)
    house.grant(2)
    house.grant(8)
    assert (house.size, house.at_work) == (5, 5)


def test_places_of_spare_workers_that_failed_are_staffed_when_the_user_wants_more(house: House) -> None:
    house.grant(7)
    house.happen(ev.InitFailed(HOME, b"init"))
    house.want(6)
    assert (house.size, house.at_work) == (6, 6)
    house.grant(8)
    assert (house.size, house.at_work) == (6, 6)
    assert [worker.is_spare for worker in house.state.workers] == [False] * 6 + [True]


def test_workers_elsewhere_need_room_on_the_board_too() -> None:
    house = House(beside=(PoolConfig(MOST_WORKERS - HOME - 3),))
    house.grant(HOME + 4)
    assert house.size == HOME
    house.grant(HOME + 3)
    assert house.size == HOME + 3
    house.want(HOME + 4)
    assert house.size == HOME + 3
    house.close()


def joined_as(house: House) -> list[LenderFacts]:
    """What the manager has heard of it since."""
    frames = house.manager.receive(wait=False) or []
    return [LenderFacts.unpack(payload) for kind, payload in frames if kind == LendMsg.JOIN]


def test_a_new_agent_says_what_the_training_process_has_changed_since_the_start() -> None:
    """It is of a loader that began with "auto"."""
    house = House(replace(FACTS, auto=True))
    house.want(HOME)
    assert [one.auto for one in joined_as(house)] == [True, False]
    house.close()


def test_the_manager_hears_that_the_number_follows_the_cores_or_does_so_no_longer(house: House) -> None:
    assert joined_as(house) == [FACTS]
    house.want(HOME + 1)
    assert joined_as(house) == []
    house.want(AS_CORES)
    (facts,) = joined_as(house)
    assert facts.auto
    assert set(facts.cores) == os.sched_getaffinity(0)
    house.want(3)
    assert [one.auto for one in joined_as(house)] == [False]
