"""A loader's membership of the cache, whose thread looks for a service."""

from __future__ import annotations

import gc
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cache.join_facts import JoinFacts
from penstock.client.cache_side import CacheSide
from penstock.config import Cache
from penstock.dataset.offers import ReadSeam
from tests.cache_service import SCOPE
from tests.fault.programs import until

SOON_S = 10.0


class SilentNode:
    """A link to a node whose service takes streams and never answers."""

    def __init__(self) -> None:
        self.streams: list[socket.socket] = []
        self.closed = threading.Event()

    def alive(self) -> bool:
        return True

    def open(self, _: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.streams.append(theirs)
        return ours

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def node() -> Iterator[SilentNode]:
    made = SilentNode()
    yield made
    for stream in made.streams:
        stream.close()


def searching(node: SilentNode) -> CacheSide:
    """A loader's side that looks for a service, for an agent that is there."""
    facts = JoinFacts(scope=SCOPE.hex(), samples=10, cache=Cache(memory="4MiB"), ring_samples=1, cwd="/")
    side = CacheSide(facts, ReadSeam(holder=object(), ranges=lambda _: (), files=()))
    link: Any = node
    side._ties.link, (side._ties.supply, agent) = link, socket.socketpair()
    agent.close()
    side.renew()
    until(lambda: node.streams, within_s=SOON_S, why="nothing is asked")
    return side


def test_a_loader_that_is_dropped_while_a_service_is_looked_for_ends_at_once(node: SilentNode) -> None:
    side = searching(node)
    thread, held = side._thread, weakref.ref(side)
    assert thread is not None
    del side
    gc.collect()
    assert held() is None, "its thread keeps it"
    assert node.closed.is_set()
    thread.join(SOON_S)
    assert not thread.is_alive()


def test_a_loader_that_is_closed_does_not_wait_for_a_service_that_does_not_answer(node: SilentNode) -> None:
    side = searching(node)
    thread, began_s = side._thread, time.monotonic()
    assert thread is not None
    side.close()
    thread.join(SOON_S)
    assert not thread.is_alive()
    assert time.monotonic() - began_s < SOON_S
