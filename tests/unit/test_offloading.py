"""The agent's measurements of remote workers: on a real board, with a core, and without any process."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator

import pytest

from penstock.agent.config import AgentConfig
from penstock.agent.offloading import DRAIN_S, Offloading
from penstock.core import events as ev
from penstock.core.core import CoreConfig, new_state, on_event
from penstock.core.events import Kind, Task
from penstock.core.ledger import Issued
from penstock.core.pools import PoolConfig
from penstock.policy.course_state import Stage, Wish
from penstock.remote.handles import FerryLink
from penstock.wire.arena import Arena, Board
from penstock.wire.frames import Channel

BATCH = 16


class Loop:
    """A training loop that takes batches at a rate, as the board shows it."""

    def __init__(
        self, arena: Arena, link: FerryLink, share: float | str | None = "auto", **config: object
    ) -> None:
        core = CoreConfig(workers=1, kind=Kind.SLOTS, beside=(PoolConfig(0),))
        agent = AgentConfig(core=core, parent=1, remote_workers=2, remote_share=share, **config)  # type: ignore[arg-type]
        self.state = new_state(core)
        self.board = arena.board
        self.offloading = Offloading(agent, self.state, arena.board, link)
        self.now_s = 0.0
        self.late = 0
        """Samples of each batch that local workers do, though remote ones should."""
        self.wish: Wish | None = None
        on_event(self.state, ev.WorkerUp(0, 0.0))

    def look(self) -> None:
        wish = self.offloading.look(self.now_s)
        if wish is not None:
            self.wish = wish
            on_event(self.state, ev.Offload(wish.workers, wish.share))

    def take(self, batches: int, *, seconds: float, waits: float) -> None:
        """Batches that took so long each, a share of which training waited."""
        for _ in range(batches):
            self.now_s += seconds
            row = self.board.agent
            row[Board.BATCHES] += 1
            row[Board.TAKEN] += BATCH
            row[Board.ELAPSED_NS] += int(seconds * 1e9)
            row[Board.WAITED_NS] += int(waits * seconds * 1e9)
            self.board.row(0)[Board.CPU_NS] += int(0.001 * BATCH * 1e9)
            in_trial = self.offloading.course.stage is Stage.TRIAL
            self.state.pools[in_trial].done += BATCH - self.late
            self.state.local.done += self.late
            self.offloading.delivered(self.now_s)
            self.look()

    def arrive(self) -> None:
        """All remote workers that were asked for are there."""
        for worker in self.state.pools[1].members:
            on_event(self.state, ev.WorkerUp(worker.id, self.now_s))


@pytest.fixture
def link() -> Iterator[FerryLink]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        link = FerryLink(Channel(ours))
        link.account["pid"] = os.getpid()  # as a ferry that has started
        yield link


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 20, 8)
    yield made
    made.close()


def in_trial(arena: Arena, link: FerryLink) -> Loop:
    loop = Loop(arena, link)
    loop.look()
    loop.take(40, seconds=0.1, waits=0.8)
    loop.arrive()
    loop.take(10, seconds=0.1, waits=0.8)
    assert loop.offloading.course.stage is Stage.TRIAL
    return loop


@pytest.mark.parametrize("how", ["not yet there", "connecting"])
def test_windows_do_not_count_while_the_ferry_starts(arena: Arena, link: FerryLink, how: str) -> None:
    loop = Loop(arena, link)
    loop.look()
    if how == "not yet there":
        del link.account["pid"]
    for _ in range(10):
        link.account["cpu_ns"] += 200_000_000
        loop.take(6, seconds=0.1, waits=0.9)
    assert loop.offloading.course.local == 0.0
    link.account["pid"] = os.getpid()
    loop.take(40, seconds=0.05, waits=0.5)
    assert loop.offloading.course.local == pytest.approx(BATCH / 0.05)


def test_windows_give_the_rates_of_training_and_of_local_workers(arena: Arena, link: FerryLink) -> None:
    loop = Loop(arena, link)
    loop.look()
    loop.take(40, seconds=0.1, waits=0.5)
    course = loop.offloading.course
    assert course.local == pytest.approx(BATCH / 0.1)
    assert course.training == pytest.approx(2 * BATCH / 0.1, rel=0.01)
    assert course.preparing_s >= 0.001
    assert loop.wish == Wish(0.0, 1, "samples")


def test_nothing_is_asked_for_while_training_does_not_wait(arena: Arena, link: FerryLink) -> None:
    loop = Loop(arena, link)
    loop.look()
    loop.take(100, seconds=0.1, waits=0.01)
    assert loop.wish == Wish(0.0, 0, "samples")


def test_a_trial_gives_remote_workers_everything(arena: Arena, link: FerryLink) -> None:
    loop = in_trial(arena, link)
    assert loop.wish is not None
    assert loop.wish.share == 1.0


def test_what_was_issued_under_another_setting_is_not_measured(arena: Arena, link: FerryLink) -> None:
    """On a slow link the last plan's results arrive long after the next one began."""
    loop = Loop(arena, link)
    loop.look()
    loop.take(40, seconds=0.1, waits=0.8)
    loop.arrive()
    remote = loop.state.pools[1].members[0]
    while loop.offloading.course.stage is not Stage.TRIAL:
        loop.take(1, seconds=0.1, waits=0.8)
    old = Issued(Task(loop.state.next_task, 0, Kind.SLOTS, 0, BATCH), loop.now_s)
    remote.add(old)
    loop.take(int(DRAIN_S / 0.1) - 1, seconds=0.1, waits=0.8)
    course = loop.offloading.course
    assert (course.stage, course.settles, course.trial) == (Stage.TRIAL, True, ())
    remote.remove(old.task.id)
    loop.take(20, seconds=0.1, waits=0.8)
    assert loop.offloading.course != course


def test_what_local_workers_do_in_a_trial_is_not_counted_for_remote_ones(
    arena: Arena, link: FerryLink
) -> None:
    loop = in_trial(arena, link)
    loop.late = BATCH // 2
    loop.take(60, seconds=0.1, waits=0.8)
    (plan,) = loop.offloading.course.tried
    assert plan.remote == pytest.approx(BATCH / 2 / 0.1, rel=0.05)
    assert plan.handling_s < 0.0005, "a sample costs a local worker 1 ms"


def test_a_trial_that_completes_nothing_ends(arena: Arena, link: FerryLink) -> None:
    loop = in_trial(arena, link)
    on_event(loop.state, ev.Feed(0, BATCH, loop.now_s))
    for _ in range(100):
        loop.now_s += 0.05
        loop.look()
    assert loop.offloading.course.stage is Stage.LOCAL
    assert loop.wish is not None
    assert loop.wish.share == 0.0


def test_a_loop_that_does_not_ask_is_no_stall(arena: Arena, link: FerryLink) -> None:
    loop = in_trial(arena, link)
    for _ in range(100):
        loop.now_s += 0.05
        loop.look()
    assert loop.offloading.course.stage is Stage.TRIAL


def test_what_was_decided_goes_on_in_the_next_agent(arena: Arena, link: FerryLink) -> None:
    loop = in_trial(arena, link)
    told = json.loads(loop.offloading.report(loop.now_s))
    following = Loop(arena, link, course=told["course"])
    assert following.offloading.course.local == loop.offloading.course.local
    following.look()
    assert following.wish == Wish(0.0, 2, "samples")


def test_a_fixed_share_is_only_reported(arena: Arena, link: FerryLink) -> None:
    loop = Loop(arena, link, share=0.3)
    loop.look()
    loop.take(40, seconds=0.1, waits=0.9)
    assert loop.wish is None
    assert json.loads(loop.offloading.report(loop.now_s))["stats"]["reason"] == "the share is fixed at 30%"
