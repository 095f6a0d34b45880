"""How a training process has streams to the manager looked for: one thread at a time, and never none while one is wanted."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.client.lending_side import LendingTies


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
