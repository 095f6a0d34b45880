"""A cache service and ranks that ask it, for tests: in a thread of this process, or in a forked one; and bytes that say whose they are."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.cache.frames import OVER, CacheMsg, pack_ask, split_landed
from penstock.cache.join_facts import GroupPlan, JoinAnswer, JoinFacts
from penstock.cache.keys import content_key, scope_of
from penstock.cache.memory import MemoryTier
from penstock.cache.service import CacheService
from penstock.config import Cache
from penstock.node.messages import NodeMsg, receive, send
from penstock.node.service import Openings
from penstock.policy.homes import GroupMember, Ownership
from penstock.sources.sources import ByteRange, WholeFiles
from penstock.wire.frames import HEAD, Channel
from penstock.wire.places import Landing
from penstock.worker.placed import MemoryFile, PlacedBytes
from tests.forks import start

SCOPE = scope_of("tests")
ANSWER_S = 60.0


def key(number: int) -> bytes:
    return content_key("tests", [(f"file {number}", 0, None)])


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


def end(pid: int, number: int = signal.SIGKILL) -> int:
    """End a child, if it has not; return its exit code."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---- a dataset


class Numbers:
    """The contents of the numbers 0 to `count` - 1, a file each."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        for number in range(count):
            (folder / str(number)).write_bytes(content(number))

    def ranges(self, number: int) -> list[ByteRange]:
        return [(str(self.folder / str(number)), 0, None)]

    def facts(self, memory: int, **changes: Any) -> JoinFacts:
        return facts_of(self.folder, self.count, memory, **changes)


def facts_of(folder: Path, count: int, memory: int, **changes: Any) -> JoinFacts:
    """`memory`: bytes of the tier."""
    given: dict[str, Any] = {
        "scope": SCOPE.hex(),
        "samples": count,
        "cache": Cache(memory=memory, policy="lru", peers="off"),
        "ring_samples": 16,
        "cwd": str(folder),
        "probes": [[(str(folder / str(number)), 0, None)] for number in range(min(5, count))],
    }
    return JoinFacts(**given | changes)


def plan(room_bytes: int = 1 << 40) -> GroupPlan:
    member = GroupMember(name=0, room_bytes=room_bytes)
    return GroupPlan(owners=Ownership(seed=0, members=(member,), sample_bytes=15_000, gpus=1), node=0)


class Rank:
    """Joins, asks for batches as an agent does, and reads as a worker does."""

    def __init__(self, stream: socket.socket, facts: JoinFacts, *, planned: bool = True) -> None:
        stream.settimeout(ANSWER_S)
        self.channel, self._files = Channel(stream), PlacedBytes(WholeFiles())
        self._said: list[tuple[int, bytes]] = []
        self.joined = JoinAnswer.unpack(self.asked(CacheMsg.JOIN, facts.pack(), CacheMsg.JOINED))
        if planned:
            self.asked(CacheMsg.PLAN, plan().pack(), CacheMsg.PLANNED)
        self._batches: dict[int, Sequence[int]] = {}
        self._landed: dict[int, dict[int, Landing]] = defaultdict(dict)

    def asked(self, kind: CacheMsg, payload: bytes, answer: CacheMsg) -> bytes:
        self.channel.send(kind, payload)
        return self._heard(answer)

    def _heard(self, answer: CacheMsg) -> bytes:
        while True:
            while self._said:
                kind, payload = self._said.pop(0)
                if kind == answer:
                    return payload
                assert kind == CacheMsg.ALIVE, (kind, payload)
            frames = self.channel.receive()
            if frames is None:
                raise ConnectionResetError("the service has ended")
            self._said = frames

    def ask(self, seq: int, numbers: Sequence[int], data: Numbers, *, epoch: int = 0, batch: int = 0) -> None:
        self._batches[seq] = numbers
        payload = pack_ask(seq, epoch, batch, list(numbers), [data.ranges(number) for number in numbers])
        self.channel.send(CacheMsg.ASK, payload)

    def landed(self, seq: int, size: int) -> dict[int, Landing]:
        """Wait until every sample of a batch was told of; return where they are, by their places in the batch."""
        while len(self._landed[seq]) < size:
            told, landings = split_landed(self._heard(CacheMsg.LANDED))
            self._landed[told] |= {each.ordinal: each for each in landings}
        return self._landed[seq]

    def placed(self, seq: int, data: Numbers) -> list[int]:
        """Wait for a batch; return the numbers that the cache has, whose bytes are read from there next."""
        numbers = self._batches[seq]
        landings = [each for each in self.landed(seq, len(numbers)).values() if each.offset >= 0]
        memory = MemoryFile(self.joined.inode, self.joined.pid, self.joined.fd)
        self._files.place(memory, landings, lambda ordinal: data.ranges(numbers[ordinal]))
        return [numbers[each.ordinal] for each in landings]

    def read(self, number: int, data: Numbers) -> bytes:
        return self._files.read(*data.ranges(number)[0])

    def over(self, seq: int, *, used: bool = True) -> None:
        del self._batches[seq]
        self._landed.pop(seq, None)
        self.channel.send(CacheMsg.OVER, OVER.pack(seq, used))

    def close(self) -> None:
        self._files.close()
        self.channel.close()


JOINED = JoinAnswer(pid=1, fd=2, inode=3, sample_bytes=4, room_bytes=5, address="127.0.0.1:9#a")


def framed(kind: int, payload: bytes) -> bytes:
    return HEAD.pack(len(payload), kind) + payload


# ---- services


class Served:
    """The node's end of a service's control socket."""

    def __init__(self, control: socket.socket) -> None:
        control.settimeout(20.0)
        self._control = control

    def stream(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            send(self._control, NodeMsg.TAKE, b"", [theirs.fileno()])
        assert receive(self._control, fds=0) is not None
        return ours


def stats_of(service: CacheService) -> dict[str, int]:
    """Of the memory tiers, from any thread."""
    found: dict[str, int] = {}
    for dataset in list(service._datasets.values()):
        for name, value in dataset.tier.stats().items():
            found[name] = found.get(name, 0) + value
    return found


class ServedHere(Served):
    """In a thread."""

    def __init__(self, control: socket.socket, service: CacheService) -> None:
        super().__init__(control)
        self._service = service

    def stats(self) -> dict[str, int]:
        return stats_of(self._service)


@contextmanager
def serving() -> Iterator[ServedHere]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    service = CacheService()

    def run() -> None:
        try:
            service.run(Openings(theirs))
        finally:
            service.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ServedHere(ours, service)
    finally:
        ours.close()
        thread.join()
        theirs.close()


class ForkedService(Served):
    """In a process of its own, which also says what its memory tiers hold."""

    def __init__(self) -> None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders, orders = socket.socketpair()

        def work() -> None:
            control.close()
            self._orders.close()
            service = CacheService()
            threading.Thread(target=tell, args=(orders, service), daemon=True).start()
            service.run(Openings(theirs))

        super().__init__(control)
        self.pid = start(work)
        theirs.close()
        orders.close()

    def stats(self) -> dict[str, int]:
        self._orders.sendall(b"?")
        found: dict[str, int] = json.loads(self._orders.makefile().readline())
        return found

    def close(self) -> None:
        end(self.pid)
        self._control.close()
        self._orders.close()


def tell(orders: socket.socket, service: CacheService) -> None:
    while orders.recv(1):
        orders.sendall(json.dumps(stats_of(service)).encode() + b"\n")
