"""A cache service and its clients, for tests: in a thread of this process, in a forked process, or as a node's service."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.cache.client import CacheClient
from penstock.cache.keys import key_of
from penstock.cache.memory import MemoryTier
from penstock.cache.server import CacheServer
from penstock.node.messages import NodeMsg, receive, send
from penstock.node.service import Openings
from tests.forks import start

MAX_BYTES = 1 << 22


def key(number: int) -> bytes:
    return key_of(f"file {number}", 0, None, "1")


def content(number: int) -> bytes:
    """What is cached under a number, and nowhere else."""
    rng = random.Random(number)
    return rng.randbytes(rng.randrange(1, 30_000))


def put(tier: MemoryTier, number: int) -> bool:
    data = content(number)
    view = tier.reserve(key(number), len(data), "a fetcher")
    if view is None:
        return False
    view[:] = data
    return tier.commit(key(number))


def refused() -> bytes:
    raise AssertionError("it is read from the source")


class Served:
    """The node's end of a service's control socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def stream(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            send(self._control, NodeMsg.TAKE, b"", [theirs.fileno()])
        assert receive(self._control, fds=0) is not None
        return ours

    def client(self, **times: float) -> CacheClient:
        return CacheClient(self.stream(), **times)


@contextmanager
def serving(tier: MemoryTier) -> Iterator[Served]:
    """In a thread."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    thread = threading.Thread(target=lambda: CacheServer(tier).run(Openings(theirs)))
    thread.start()
    try:
        yield Served(ours)
    finally:
        ours.close()
        thread.join()
        theirs.close()


# ---- processes


def end(pid: int, number: int = signal.SIGKILL) -> int:
    """End a child, if it has not; return its exit code."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class ForkedService(Served):
    """In a process of its own, which also does what it is told: a call of `Told`, by its name."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders, orders = socket.socketpair()

        def work() -> None:
            control.close()
            self._orders.close()
            tier = MemoryTier(max_bytes)
            threading.Thread(target=obey, args=(orders, Told(tier)), daemon=True).start()
            CacheServer(tier).run(Openings(theirs))

        super().__init__(control)
        self.pid = start(work)
        theirs.close()
        orders.close()

    def tell(self, name: str, *args: int) -> Any:
        self._orders.sendall(json.dumps([name, *args]).encode() + b"\n")
        return json.loads(self._orders.makefile().readline())

    def close(self) -> None:
        end(self.pid)
        self._control.close()
        self._orders.close()


class Told:
    def __init__(self, tier: MemoryTier) -> None:
        self._tier, self._rng = tier, random.Random(0)

    def put(self, first: int, last: int) -> list[bool]:
        return [put(self._tier, number) for number in range(first, last)]

    def evict(self, first: int, last: int) -> list[bool]:
        return [self._tier.evict(key(number)) for number in range(first, last)]

    def half_written(self, number: int) -> bool:
        """Reserve and write one half."""
        data = content(number)
        view = self._tier.reserve(key(number), len(data), "a fetcher")
        if view is not None:
            view[: len(data) // 2] = data[: len(data) // 2]
        return view is not None

    def churn(self, numbers: int, times: int) -> int:
        """Replace what is cached, again and again; return how often there was room."""
        kept = 0
        for _ in range(times):
            self._tier.evict(key(self._rng.randrange(numbers)))
            kept += put(self._tier, self._rng.randrange(numbers))
        return kept

    def stats(self) -> dict[str, int]:
        return self._tier.stats()


def obey(orders: socket.socket, told: Told) -> None:
    for line in orders.makefile():
        name, *args = json.loads(line)
        orders.sendall(json.dumps(getattr(told, name)(*args)).encode() + b"\n")


# ---- a node's service


def cache(openings: Openings) -> None:
    """Caches the numbers 0 to 9."""
    tier = MemoryTier(MAX_BYTES)
    for number in range(10):
        assert put(tier, number)
    CacheServer(tier).run(openings)
    tier.close()
