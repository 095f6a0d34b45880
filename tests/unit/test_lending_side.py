"""How a training process has streams to the manager looked for: one thread at a time, and never none while one is wanted."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from penstock.client.lending_side import LendingSide, LendingTies
from tests.forks import start


@pytest.fixture
def ties() -> Iterator[LendingTies]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = LendingTies("a job", ours)
    yield made
    made.close()
    theirs.close()


def test_who_orders_first_starts_the_thread_and_it_ends_when_nothing_is_ordered(ties: LendingTies) -> None:
    assert ties.order()
    assert ties.take_order()
    assert not ties.take_order()
    assert ties.order(), "another thread is needed"


def test_a_stream_that_is_lost_before_its_thread_has_ended_is_replaced(ties: LendingTies) -> None:
    ties.order()
    ties.take_order()
    assert not ties.order(), "the thread is still there"
    assert ties.take_order(), "so it must not end"
    assert not ties.take_order()


def test_nothing_is_looked_for_if_the_other_loader_has_ended_meanwhile(ties: LendingTies) -> None:
    ties.order()
    assert not ties.call_off(lambda: False)
    assert ties.is_busy()
    assert ties.call_off(lambda: True)
    assert not ties.is_busy()
    assert ties.order(), "a later loader starts it anew"


def test_two_loaders_that_hardly_run_together_start_no_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_GROUP", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("penstock.client.lending_side.TOGETHER_S", 0.5)
    training, evaluation = (LendingSide(rank=0, crew="", auto=False) for _ in range(2))
    training.begin()
    evaluation.begin()
    evaluation.close()
    assert training._thread is not None
    training._thread.join(5.0)
    assert not training._ties.is_busy()
    training.close()


def test_a_forked_child_shares_no_cores_with_its_parents_loaders(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_GROUP", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    ours = LendingSide(rank=0, crew="", auto=False)
    ours.begin()

    def child() -> None:
        mine = LendingSide(rank=0, crew="", auto=False)
        mine.begin()
        assert not mine._ties.looking
        assert not ours._ties.looking

    _, status = os.waitpid(start(child), 0)
    ours.close()
    assert os.waitstatus_to_exitcode(status) == 0
