"""Machines with a cache, for tests: in this process or in forked ones, on loopback addresses; and what stands between them."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock import accel
from penstock.cache.keys import sample_key, scope_of
from penstock.cache.memory import MemoryTier
from penstock.cache.peer_events import Came, NotCame, PeerBack, PeerEvent, PeerLimits, PeerWants
from penstock.cache.peer_frames import HELLO, VERSION, AskedSample, PeerMsg, pack_message
from penstock.cache.peers import PeerPort
from penstock.remote.handshake import Role, greet
from tests.cache_service import end
from tests.forks import start

SECRET = "a7" * 32
SCOPE = scope_of("photos")
SOON_S = 20.0
QUICK = PeerLimits(silent_s=0.6, alive_s=0.1, retry_s=(0.01, 0.05), greeting_s=5.0)
MAX_BYTES = 1 << 24
Event = TypeVar("Event", bound=PeerEvent)


def content(sample: int) -> bytes:
    """The bytes of a sample, and of no other."""
    rng = random.Random(f"sample {sample}")
    return rng.randbytes(rng.randrange(1, 60_000))


def lengths_of(sample: int) -> tuple[int, ...]:
    """Every third sample has several ranges."""
    size = len(content(sample))
    return (size,) if sample % 3 else (size // 3, 0, size - size // 3)


def wanted(*samples: int) -> list[AskedSample]:
    """Samples with their ranges: some know their ends, some do not."""
    return [
        (
            sample,
            [(f"/data/ä{sample}", 7 * sample, 7 * sample + n if n % 2 else None) for n in lengths_of(sample)],
        )
        for sample in samples
    ]


class Machine:
    """One machine's memory and port. It answers what it has, and refuses the rest."""

    def __init__(self, node: int, *, secret: str = SECRET, limits: PeerLimits = QUICK, **port: Any) -> None:
        self.tier = MemoryTier(MAX_BYTES)
        self.answers = True
        self.events: list[PeerEvent] = []
        self._came = threading.Condition()
        self.port = PeerPort(
            "127.0.0.1", secret, node=node, room=self.tier, post=self._post, limits=limits, **port
        )

    def _post(self, event: PeerEvent) -> None:
        if isinstance(event, PeerWants) and self.answers:
            self.answer(event)
        with self._came:
            self.events.append(event)
            self._came.notify_all()

    def bring(self, *samples: int) -> None:
        for sample in samples:
            data = content(sample)
            view = self.tier.reserve(sample_key(SCOPE, sample), len(data))
            assert view is not None
            view[:] = data
            assert self.tier.commit(sample_key(SCOPE, sample), accel.crc32(data))

    def answer(self, event: PeerWants) -> None:
        for sample, _ in event.samples:
            self.give(event, sample)

    def give(self, event: PeerWants, sample: int, *, crc: int | None = None) -> None:
        key, owner = sample_key(event.scope, sample), object()
        (place,) = self.tier.lookup([key], owner)
        check = self.tier.check_of(key)
        if place is None or check is None:
            self.tier.leave(owner)
            event.link.refuse(event.scope, sample)
            return
        event.link.give(
            event.scope,
            sample,
            lengths_of(sample),
            check if crc is None else crc,
            self.tier.fd,
            place.offset,
            lambda: self.tier.leave(owner),
        )

    def ask(self, node: int, *samples: int) -> None:
        self.port.ask(node, SCOPE, wanted(*samples), step=3)

    def has(self, sample: int) -> bool:
        """Whether its bytes are here, and right."""
        with self.tier.reading(sample_key(SCOPE, sample)) as data:
            assert data is None or bytes(data) == content(sample)
            return data is not None

    def told(self, kind: type[Event], times: int = 1) -> list[Event]:
        """Wait for so many events of a kind since the last `forget`."""
        with self._came:
            there = self._came.wait_for(lambda: len(self.of(kind)) >= times, SOON_S)
            assert there, f"{len(self.of(kind))} of {times} {kind.__name__}, but {self.events[-5:]}"
            return self.of(kind)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def fates(self, samples: Sequence[int]) -> dict[int, str]:
        """Wait until each sample was told of; return "" for those that came, and why the others did not."""

        def found() -> dict[int, str]:
            fates: dict[int, str] = {}
            for event in self.events:
                for sample, why in (
                    [(event.sample, "")]
                    if isinstance(event, Came)
                    else [(sample, event.why) for sample in event.samples]
                    if isinstance(event, NotCame)
                    else []
                ):
                    assert sample not in fates, f"sample {sample} was told of twice"
                    fates[sample] = why
            return fates

        with self._came:
            there = self._came.wait_for(lambda: found().keys() >= set(samples), SOON_S)
            assert there, f"nothing was told of {set(samples) - found().keys()}"
            return found()

    def forget(self) -> None:
        with self._came:
            self.events.clear()

    def close(self) -> None:
        self.port.close()
        self.tier.close()
        self.__dict__.clear()  # a fixture is kept longer than its test, and with it the memory

    def leased(self) -> int:
        return self.tier.stats()["leased"]


@contextmanager
def machines(count: int = 2, *, limits: PeerLimits = QUICK, **port: Any) -> Iterator[list[Machine]]:
    """Machines that know each other: each has reached all others."""
    made = [Machine(node, limits=limits, **port) for node in range(count)]
    try:
        for asker in made:
            for node, home in enumerate(made):
                if home is not asker:
                    asker.port.join(node, home.port.address)
        for asker in made:
            asker.told(PeerBack, count - 1)
            asker.forget()
        yield made
    finally:
        for each in made:
            each.close()


class ForkedHome:
    """Machine 1 in a process of its own, which has the samples 0 to 19."""

    def __init__(self, *, port: int = 0, answers: bool = True, samples: int = 20) -> None:
        told, tells = os.pipe()

        def work() -> None:
            home = Machine(1, port=port)
            home.answers = answers
            home.bring(*range(samples))
            os.write(tells, home.port.address.encode())
            signal.pause()

        self.pid = start(work)
        os.close(tells)
        self.address = os.read(told, 100).decode()
        os.close(told)

    def kill(self) -> None:
        if self.pid:
            end(self.pid)
            self.pid = 0


class Between:
    """A relay between askers and a home, which from now on knows itself by the relay's address. It changes what passes after the greetings."""

    GREETING = 2 * (43 + 32)
    """A hello and a proof from each end."""

    def __init__(self, home: PeerPort) -> None:
        host, _, port = home.address.rpartition(":")
        self.to = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        home.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.change: Callable[[bool, bytes], bytes | None] = lambda _, data: data
        """(to the asker?, bytes) → what is passed on; None cuts the connection."""
        self.heard: Callable[[bool, bytes], object] = lambda _, data: data
        """Is told all that arrives, greetings too."""
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        threads = []
        while True:
            try:
                asker, _ = self._listener.accept()
            except OSError:
                break
            home = socket.create_connection(self.to)
            threads.append(threading.Thread(target=self._pass, args=(asker, home)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _pass(self, asker: socket.socket, home: socket.socket) -> None:
        seen = {asker: 0, home: 0}
        self._open += [asker, home]
        with asker, home, contextlib.suppress(OSError):
            while True:
                ready, _, _ = select.select([asker, home], [], [])
                for source in ready:
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    self.heard(source is home, data)
                    greeting = max(0, self.GREETING // 2 - seen[source])
                    seen[source] += len(data)
                    passed: bytes | None = data[greeting:]
                    if passed:
                        passed = self.change(source is home, passed)
                    if passed is None:
                        return
                    (asker if source is home else home).sendall(data[:greeting] + passed)

    def close(self) -> None:
        for sock in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SOON_S)


def seconds(act: Callable[[], Any]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began


@contextmanager
def raw_asker(home: Machine, *, node: int = 0, to: int = 1, receives: int = 0) -> Iterator[socket.socket]:
    """A connection that holds the secret and keeps no rules. `receives`: bytes that its socket takes while nobody reads."""
    with socket.socket() as sock:
        if receives:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        host, _, port = home.port.address.rpartition(":")
        sock.settimeout(SOON_S)
        sock.connect((host, int(port)))
        greet(sock, SECRET, role=Role.ASKER, address=home.port.address, within_s=SOON_S)
        hello = HELLO.pack(VERSION, node, to)
        sock.sendall(pack_message(PeerMsg.HELLO, len(hello), hello))
        yield sock


def patient_kernel(home: Machine) -> None:
    """Take the kernel's own deadline of 3 s from a connection that takes nothing: what is tested is ours."""
    home.port._links[0]._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)


def ended(sock: socket.socket) -> bool:
    """Wait until the other end closes the connection; True if it sent nothing before."""
    try:
        return not sock.recv(1)
    except ConnectionResetError:
        return True
