"""How a training process has streams to the manager looked for: one thread at a time, and never none while one is wanted."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from penstock.client.lending_side import OFF, ON, WATCH, LendingSide, LendingTies, serve_orders, switched
from penstock.errors import ConfigError
from penstock.forks import no_forks
from penstock.node.link import NodeLink
from penstock.node.messages import NodeMsg, close_all, receive, send
from tests.fault.programs import until
from tests.forks import start

FACTS = b"the facts of a loader"
BLOCKED_S = 0.2
"""What does not happen for so long is taken for held up."""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Of the socket by which an agent gets streams: the training process's and the agent's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def agent(ends: tuple[socket.socket, socket.socket]) -> socket.socket:
    return ends[1]


@pytest.fixture
def ties(ends: tuple[socket.socket, socket.socket]) -> Iterator[LendingTies]:
    made = LendingTies("a job", ends[0])
    yield made
    made.close()


@pytest.fixture
def node(ties: LendingTies) -> Iterator[socket.socket]:
    """A node process, as far as the ties know; the test answers for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ties._link = NodeLink(ours, os.getpid())
    yield theirs
    theirs.close()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process is there to share cores with; loaders of this one do not run together for long enough."""
    for name in ("PENSTOCK_GROUP", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("penstock.client.lending_side.TOGETHER_S", 60.0)


def made_side() -> LendingSide:
    return LendingSide(rank=0, crew="", auto=False)


def test_who_orders_first_starts_the_thread_and_it_ends_when_nothing_is_ordered(ties: LendingTies) -> None:
    assert ties.order()
    assert not ties.looks_again()
    assert ties.order(), "another thread is needed"


def test_a_stream_that_is_lost_before_its_thread_has_ended_is_replaced(ties: LendingTies) -> None:
    ties.order()
    assert not ties.order(), "the thread is still there"
    assert ties.looks_again(), "so it must not end"
    assert not ties.looks_again()


def test_nothing_is_looked_for_if_the_other_loader_has_ended_meanwhile(ties: LendingTies) -> None:
    ties.order()
    assert not ties.call_off(lambda: False)
    assert ties.is_busy()
    assert ties.call_off(lambda: True)
    assert not ties.is_busy()
    assert ties.order(), "a later loader starts it anew"


@pytest.mark.usefixtures("alone")
def test_two_loaders_that_hardly_run_together_start_no_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.lending_side.TOGETHER_S", 0.5)
    training, evaluation = made_side(), made_side()
    training.begin()
    evaluation.begin()
    assert training._ties.is_busy()
    evaluation.close()
    until(lambda: not training._ties.is_busy(), within_s=5.0, why="the thread does not end")
    training.close()


@pytest.mark.usefixtures("alone")
def test_a_loader_has_company_only_while_another_runs() -> None:
    training = made_side()
    training.begin()
    for _ in range(3):
        evaluation = made_side()
        evaluation.begin()
        assert not training._is_alone()
        evaluation.close()
        assert training._is_alone()
    training.close()


@pytest.mark.usefixtures("alone")
def test_a_loader_begins_while_others_are_closed() -> None:
    """By another thread or by garbage collection, at any point."""
    running = [made_side() for _ in range(40)]
    for side in running:
        side.begin()
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            side = made_side()
            side.begin()
            side.close()

    before = sys.getswitchinterval()
    thread = threading.Thread(target=come_and_go)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        until_s = time.monotonic() + 1.0
        while time.monotonic() < until_s:
            running[0]._others()
    finally:
        sys.setswitchinterval(before)
        over.set()
        thread.join(10.0)
        for side in running:
            side.close()


@pytest.mark.usefixtures("alone")
def test_a_forked_child_shares_no_cores_with_its_parents_loaders() -> None:
    ours = made_side()
    ours.begin()

    def child() -> None:
        mine = made_side()
        mine.begin()
        assert not mine._ties.is_busy()
        assert not ours._ties.is_busy()

    _, status = os.waitpid(start(child), 0)
    ours.close()
    assert os.waitstatus_to_exitcode(status) == 0


# ---- what goes wrong


@contextmanager
def no_threads() -> Iterator[None]:
    """None can be started: there is no memory for their stacks."""
    before = threading.stack_size(1 << 50)
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=int).start()
        yield
    finally:
        threading.stack_size(before)


def test_a_loader_works_on_if_no_thread_can_be_started() -> None:
    side = made_side()
    with no_threads():
        side.on_lost()
    assert not side._ties.is_busy()
    assert side._ties.order(), "it is looked for again when there are threads"
    side.close()


def test_a_thread_that_fails_is_not_taken_for_one_that_looks() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ties = LendingTies("no name of a job \ud800", ours)
    assert ties.order()
    with pytest.raises(UnicodeEncodeError):
        serve_orders(ties, FACTS)
    assert not ties.is_busy()
    assert ties.order(), "another thread is needed"
    ties.close()
    theirs.close()


# ---- streams


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_process_that_is_forked_while_a_stream_is_opened_gets_no_copy(
    ties: LendingTies, node: socket.socket, agent: socket.socket
) -> None:
    """It would keep the stream open when the agent has ended."""
    thread = threading.Thread(target=serve_orders, args=(ties, FACTS))
    ties.order()
    thread.start()
    receive(node, fds=0)
    os.waitpid(start(lambda: None), 0)  # forks need not wait for the node
    manager, stream = socket.socketpair()
    with manager:
        with no_forks(), stream:  # as a thread does that is about to fork
            send(node, NodeMsg.OPENED, b"", [stream.fileno()])
            agent.settimeout(BLOCKED_S)
            with pytest.raises(TimeoutError):
                receive(agent, fds=1)
        agent.settimeout(10.0)
        message = receive(agent, fds=1)
        assert message is not None
        assert message.payload == FACTS
        thread.join(10.0)
        close_all(message.fds)
        manager.settimeout(10.0)
        assert manager.recv(1) == b"", "nobody else has it"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_no_process_is_forked_while_a_stream_is_passed_on(ties: LendingTies, node: socket.socket) -> None:
    forked = threading.Event()

    def fork() -> None:
        os.waitpid(start(lambda: None), 0)
        forked.set()

    thread = threading.Thread(target=fork)
    manager, stream = socket.socketpair()
    with manager:
        with stream:
            send(node, NodeMsg.OPENED, b"", [stream.fileno()])
        with ExitStack() as passed_on, ties.link().open("lending", no_forks_until=passed_on):
            thread.start()
            assert not forked.wait(BLOCKED_S)
        assert forked.wait(10.0)
    thread.join(10.0)


# ---- the user's switch


def test_a_wrong_switch_is_told_all_right_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LENDING", "yes")
    with pytest.raises(ConfigError, match="got 'yes'") as caught:
        switched()
    words = str(caught.value).replace(",", " ").split()
    assert {*filter(None, OFF + WATCH + ON)} <= {*words}
