"""Strangers at a machine's port, and those who hold the secret and send nonsense: dropped in time, with nothing kept for them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.cache.peer_events import Came, PeerBack, PeerLimits, PeerWants
from penstock.cache.peer_frames import HEAD, HELLO, MAX_REQUEST, VERSION, PeerMsg, pack_message, pack_requests
from penstock.remote.handshake import HELLO as GREETING
from penstock.remote.handshake import MAGIC, Role, greet
from penstock.remote.handshake import VERSION as GREETING_VERSION
from tests.fault.programs import until
from tests.peers_here import (
    QUICK,
    SCOPE,
    SECRET,
    SOON_S,
    Between,
    Machine,
    ended,
    machines,
    patient_kernel,
    raw_asker,
    wanted,
)

BRIEF = PeerLimits(greeting_s=0.5, strangers=4, retry_s=QUICK.retry_s)


@pytest.fixture
def home() -> Iterator[Machine]:
    made = Machine(1, limits=BRIEF)
    yield made
    made.close()


def stranger(home: Machine) -> socket.socket:
    host, _, port = home.port.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=SOON_S)


def check_serves(home: Machine) -> None:
    """A machine that holds the secret gets what it asks for."""
    asker = Machine(0)
    try:
        home.bring(7)
        asker.port.join(1, home.port.address)
        asker.told(PeerBack)
        asker.ask(1, 7)
        asker.told(Came)
        assert asker.has(7)
    finally:
        asker.close()


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 500], ids=["silence", "http", "noise"]
)
def test_a_stranger_is_dropped_in_time(home: Machine, said: bytes) -> None:
    with stranger(home) as sock:
        sock.sendall(said)
        assert ended(sock)
    assert home.events == []
    check_serves(home)


def test_who_holds_another_secret_is_refused_and_never_asked() -> None:
    home, other = Machine(1, limits=BRIEF), Machine(0, secret="0b" * 32)
    try:
        other.port.join(1, home.port.address)
        until(
            lambda: "does not prove" in other.port._homes[1]._why_down,
            within_s=SOON_S,
            why="it was not refused",
        )
        other.ask(1, 1)
        assert "does not prove" in other.fates([1])[1]
        assert (home.events, home.port._links) == ([], {})
    finally:
        other.close()
        home.close()


def test_a_replayed_connection_asks_for_nothing(home: Machine) -> None:
    between, said = Between(home.port), bytearray()
    asker = Machine(0)
    try:
        home.bring(1)
        between.heard = lambda to_asker, data: said.extend(b"" if to_asker else data)
        asker.port.join(1, home.port.address)
        asker.told(PeerBack)
        asker.ask(1, 1)
        asker.told(Came)
        asker.port.close()
        home.forget()
        assert len(said) > Between.GREETING // 2
        with socket.create_connection(between.to, timeout=SOON_S) as sock:
            sock.sendall(said)
            while sock.recv(4096):  # its hello, which anybody may have
                pass
        assert home.of(PeerWants) == []
    except ConnectionResetError:
        assert home.of(PeerWants) == []
    finally:
        asker.close()
        between.close()


def test_strangers_that_drip_keep_nobody_out_and_are_bounded(home: Machine) -> None:
    """Many connections, each a byte at a time: the oldest ones go when there are too many, so that a machine of the job still gets in."""
    before = threading.active_count()
    with ExitStack() as held:
        socks = [held.enter_context(stranger(home)) for _ in range(40)]
        hello = GREETING.pack(MAGIC, GREETING_VERSION, Role.ASKER, bytes(32))
        for sock in socks[-4:]:
            sock.sendall(hello[:5])
        until(
            lambda: threading.active_count() <= before + BRIEF.strangers,
            within_s=BRIEF.greeting_s + SOON_S,
            why="strangers are not bounded",
        )
        check_serves(home)
        began = time.monotonic()
        assert all(map(ended, socks))
        assert time.monotonic() - began < BRIEF.greeting_s + 5.0


def test_more_strangers_than_are_let_wait_close_the_oldest(home: Machine) -> None:
    slow = Machine(1, limits=PeerLimits(greeting_s=60.0, strangers=4))
    try:
        with ExitStack() as held:
            socks = [held.enter_context(stranger(slow)) for _ in range(12)]
            assert all(ended(sock) for sock in socks[:8])
            check_serves(slow)
    finally:
        slow.close()


def greeted(home: Machine, held: ExitStack) -> socket.socket:
    sock = held.enter_context(stranger(home))
    greet(sock, SECRET, role=Role.ASKER, address=home.port.address, within_s=SOON_S)
    return sock


@pytest.mark.parametrize(
    "hello",
    [
        pack_message(PeerMsg.HELLO, HELLO.size, HELLO.pack(VERSION, 0, 5)),
        pack_message(PeerMsg.HELLO, HELLO.size, HELLO.pack(VERSION + 1, 0, 1)),
        pack_message(PeerMsg.HELLO, HELLO.size, HELLO.pack(VERSION, 1 << 31, 1)),
        pack_message(PeerMsg.GOT, 1),
    ],
    ids=["for another machine", "another version", "a strange number", "no hello"],
)
def test_who_comes_for_another_machine_is_dropped(home: Machine, hello: bytes) -> None:
    with ExitStack() as held:
        sock = greeted(home, held)
        sock.settimeout(SOON_S)
        sock.sendall(hello)
        (frame,), _ = pack_requests(SCOPE, 0, wanted(1))
        try:
            sock.sendall(frame)
            assert ended(sock)
        except ConnectionError:
            pass
    assert home.events == []


@pytest.mark.parametrize("size", [MAX_REQUEST + 1, 0xFFFFFFFF])
def test_a_request_of_any_length_is_dropped_before_memory_is_taken_for_it(home: Machine, size: int) -> None:
    with raw_asker(home) as sock:
        sock.sendall(HEAD.pack(PeerMsg.ASK, size, 0))
        assert ended(sock)
    check_serves(home)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'["00", 0, []]',
        b'["0011223344556677", -1, []]',
        b'["0011223344556677", 0, [[-1, []]]]',
        b'["0011223344556677", 0, [[18446744073709551616, []]]]',
        b'["0011223344556677", 0, [[true, []]]]',
        b'["0011223344556677", 0, [[1, [["a", 5, 4]]]]]',
        b'["0011223344556677", 0, [[1, [[2, 5, 6]]]]]',
        b'["0011223344556677", 0, [[1, [["a", 0.5, 6]]]]]',
        b'["0011223344556677", 0, {"1": []}]',
        b'["0011223344556677", 0, [' + b",".join([b"[1,[]]"] * 1025) + b"]]",
        b'["0011223344556677", 0, [[1, [' + b",".join([b'["a",0,1]'] * 257) + b"]]]]",
        bytes(range(155, 255)),
    ],
    ids=lambda said: repr(said[:40]),
)
def test_a_request_that_means_nothing_ends_its_connection_alone(home: Machine, said: bytes) -> None:
    with raw_asker(home) as sock:
        sock.sendall(pack_message(PeerMsg.ASK, len(said), said))
        assert ended(sock)
    assert home.of(PeerWants) == []
    check_serves(home)


def test_who_asks_without_end_and_takes_no_answers_is_dropped() -> None:
    home = Machine(1, limits=PeerLimits(silent_s=60.0, link_samples=8))
    try:
        with raw_asker(home, receives=4096) as sock:
            frames = [pack_requests(SCOPE, 0, wanted(*range(n, n + 100)))[0][0] for n in range(0, 1000, 100)]
            sock.sendall(frames[0])
            home.told(PeerWants)
            patient_kernel(home)

            def flood() -> None:
                for _ in range(300):
                    for frame in frames:
                        sock.sendall(frame)

            with pytest.raises(ConnectionError):
                flood()
    finally:
        home.close()


def test_who_takes_more_than_was_sent_is_dropped(home: Machine) -> None:
    with raw_asker(home) as sock:
        sock.sendall(pack_message(PeerMsg.GOT, 1))
        assert ended(sock)


def test_a_port_that_is_closed_lets_its_strangers_go() -> None:
    with ExitStack() as held:
        with machines(2) as made:
            socks = [held.enter_context(stranger(made[0])) for _ in range(3)]
        assert all(map(ended, socks))
