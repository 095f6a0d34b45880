"""Greetings over real connections: only two ends with one key and one address get past them, and nobody learns anything from trying."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any, NamedTuple

import pytest

from penstock.remote.handshake import (
    HELLO,
    MAGIC,
    PROOF_BYTES,
    VERSION,
    GreetingRefused,
    Role,
    greet,
    new_key,
)

KEY = "5e" * 32
SOON_S = 10.0
BRIEF_S = 0.6
PAIR = FERRY, WORKER = Role.FERRY, Role.WORKER


class Ends(NamedTuple):
    ferry: socket.socket
    worker: socket.socket
    address: str

    def of(self, role: Role) -> tuple[socket.socket, socket.socket]:
        """(this end, the other end)"""
        return (self.ferry, self.worker) if role is FERRY else (self.worker, self.ferry)


@contextmanager
def connected() -> Iterator[Ends]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        host, port = listener.getsockname()
        with (
            closing(socket.create_connection((host, port))) as ferry,
            closing(listener.accept()[0]) as worker,
        ):
            for end in (ferry, worker):
                end.settimeout(SOON_S)
            yield Ends(ferry, worker, f"{host}:{port}")


@pytest.fixture
def ends() -> Iterator[Ends]:
    with connected() as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def start(
    pool: ThreadPoolExecutor,
    sock: socket.socket,
    role: Role,
    address: str,
    *,
    key: str = KEY,
    within_s: float = SOON_S,
) -> Future[bytes]:
    """Greet in a thread; as a caller must, close a connection that was refused."""

    def run() -> bytes:
        try:
            return greet(sock, key, role=role, address=address, within_s=within_s)
        except GreetingRefused:
            sock.shutdown(socket.SHUT_RDWR)
            raise

    return pool.submit(run)


def both(pool: ThreadPoolExecutor, ends: Ends, **ferry: Any) -> tuple[Future[bytes], Future[bytes]]:
    worker = start(pool, ends.worker, WORKER, ends.address)
    return start(pool, ends.ferry, FERRY, ferry.pop("address", ends.address), **ferry), worker


def refusal(greeting: Future[bytes]) -> str:
    with pytest.raises(GreetingRefused, match=r".") as caught:
        greeting.result(SOON_S)
    said = str(caught.value)
    assert KEY not in said
    assert KEY[:8] not in said
    return said


def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (chunk := sock.recv(count - len(data))):
        data += chunk
    return data


def rest(sock: socket.socket) -> bytes:
    """All that the other end says until it closes."""
    data = b""
    while True:
        try:
            chunk = sock.recv(1 << 16)
        except ConnectionResetError:
            return data
        if not chunk:
            return data
        data += chunk


def hello(role: Role, nonce: bytes = b"n" * 32, *, magic: bytes = MAGIC, version: int = VERSION) -> bytes:
    return HELLO.pack(magic, version, role, nonce)


def other(role: Role) -> Role:
    return WORKER if role is FERRY else FERRY


# ---- those who may


def test_two_ends_with_one_key_get_one_secret_of_their_own(pool: ThreadPoolExecutor) -> None:
    secrets = set()
    for _ in range(2):
        with connected() as ends:
            mine, theirs = (greeting.result(SOON_S) for greeting in both(pool, ends))
            assert mine == theirs
            assert len(mine) == 32
            secrets.add(mine)
    assert len(secrets) == 2
    assert bytes.fromhex(KEY) not in secrets


def test_what_follows_a_greeting_is_left_to_its_reader(ends: Ends, pool: ThreadPoolExecutor) -> None:
    ends.ferry.settimeout(7.5)
    worker = start(pool, ends.worker, WORKER, ends.address)
    greet(ends.ferry, KEY, role=FERRY, address=ends.address, within_s=SOON_S)
    ends.ferry.sendall(b"frames")
    worker.result(SOON_S)
    ends.worker.sendall(b"answers")
    assert (read(ends.worker, 6), read(ends.ferry, 7)) == (b"frames", b"answers")
    assert (ends.ferry.gettimeout(), ends.worker.gettimeout()) == (7.5, SOON_S)


def test_a_key_is_new_each_time_and_long_enough() -> None:
    keys = {new_key() for _ in range(20)}
    assert len(keys) == 20
    assert all(len(bytes.fromhex(key)) == 32 for key in keys)


@pytest.mark.parametrize("key", ["", "5e" * 31, "5e" * 33, "secret of no hex" * 4])
def test_what_is_no_key_is_an_error_that_does_not_repeat_it(ends: Ends, key: str) -> None:
    with pytest.raises(ValueError, match="64 hex digits") as caught:
        greet(ends.ferry, key, role=FERRY, address=ends.address, within_s=SOON_S)
    assert not key or key not in str(caught.value)


# ---- those who may not


def test_a_wrong_key_is_refused_at_both_ends(ends: Ends, pool: ThreadPoolExecutor) -> None:
    ferry, worker = both(pool, ends, key=new_key())
    assert re.search("another key.* Start the remote workers again", refusal(worker))
    assert "closed the connection before it had proved itself" in refusal(ferry)


def test_a_ferry_refuses_a_worker_with_a_wrong_key(ends: Ends, pool: ThreadPoolExecutor) -> None:
    """Even one that asks for no proof."""
    ferry = start(pool, ends.ferry, FERRY, ends.address)
    read(ends.worker, HELLO.size)
    ends.worker.sendall(hello(WORKER) + b"p" * PROOF_BYTES)
    assert "the worker at the other end of" in refusal(ferry)


def test_a_worker_proves_nothing_to_a_stranger(ends: Ends, pool: ThreadPoolExecutor) -> None:
    worker = start(pool, ends.worker, WORKER, ends.address)
    ends.ferry.sendall(hello(FERRY) + b"p" * PROOF_BYTES)
    assert "holds another key" in refusal(worker)
    assert len(rest(ends.ferry)) == HELLO.size


def test_a_worker_says_nothing_before_it_is_spoken_to(ends: Ends, pool: ThreadPoolExecutor) -> None:
    worker = start(pool, ends.worker, WORKER, ends.address, within_s=BRIEF_S)
    assert rest(ends.ferry) == b""
    assert "in time" in refusal(worker)


@pytest.mark.parametrize("at", [0, 1, 9, 10, 11, 42])
@pytest.mark.parametrize("role", PAIR)
def test_a_changed_bit_is_refused(ends: Ends, pool: ThreadPoolExecutor, role: Role, at: int) -> None:
    """Of the hello, and of the proof, on the way to one end: a relay changes them."""
    for part in ("hello", "proof"):
        with connected() as first, connected() as second:
            greetings = start(pool, first.ferry, FERRY, "a:1"), start(pool, second.worker, WORKER, "a:1")
            for step in ("hello", "proof"):
                for to, source, target in (
                    (WORKER, first.worker, second.ferry),
                    (FERRY, second.ferry, first.worker),
                ):
                    data = bytearray(read(source, HELLO.size if step == "hello" else PROOF_BYTES))
                    if data and (step, to) == (part, role):
                        data[at % len(data)] ^= 1
                    with suppress(OSError):  # it may have closed already
                        target.sendall(data) if data else target.shutdown(socket.SHUT_WR)
            refusal(greetings[0] if role is FERRY else greetings[1])


@contextmanager
def relay(ends: Ends, pool: ThreadPoolExecutor) -> Iterator[tuple[Ends, dict[Role, bytes]]]:
    """Ends that are connected through a third, who writes down what each says."""
    said = {FERRY: b"", WORKER: b""}

    def carry(role: Role, source: socket.socket, target: socket.socket) -> None:
        with ExitStack() as stack:
            stack.callback(lambda: quiet(lambda: target.shutdown(socket.SHUT_WR)))
            while chunk := quiet(lambda: source.recv(100)):
                said[role] += chunk
                quiet(lambda: target.sendall(chunk))

    with connected() as second:
        carried = [
            pool.submit(carry, FERRY, ends.worker, second.ferry),
            pool.submit(carry, WORKER, second.ferry, ends.worker),
        ]
        yield Ends(ends.ferry, second.worker, second.address), said
        for end in (ends.ferry, second.worker):
            quiet(lambda end=end: end.shutdown(socket.SHUT_RDWR))  # type: ignore[misc]
        for done in carried:
            done.result(SOON_S)


def quiet(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except OSError:
        return None


def recorded(pool: ThreadPoolExecutor) -> dict[Role, bytes]:
    """What two ends with the key said to each other."""
    with connected() as ends, relay(ends, pool) as (joined, said):
        worker = start(pool, joined.worker, WORKER, "a:1")
        ferry = start(pool, joined.ferry, FERRY, "a:1")
        assert ferry.result(SOON_S) == worker.result(SOON_S)
    assert [len(said[role]) for role in PAIR] == [HELLO.size + PROOF_BYTES] * 2
    return said


@pytest.mark.parametrize("role", PAIR)
def test_a_replay_is_refused(ends: Ends, pool: ThreadPoolExecutor, role: Role) -> None:
    said = recorded(pool)
    here, there = ends.of(role)
    greeting = start(pool, here, role, "a:1")
    there.sendall(said[other(role)])
    assert "holds another key" in refusal(greeting)


def test_a_reflection_is_refused(ends: Ends, pool: ThreadPoolExecutor) -> None:
    """Who sends a ferry's own words back to it, with the role changed, proves nothing."""
    ferry = start(pool, ends.ferry, FERRY, ends.address)
    nonce = HELLO.unpack(read(ends.worker, HELLO.size))[3]
    ends.worker.sendall(hello(WORKER, nonce))
    ends.worker.sendall(read(ends.worker, PROOF_BYTES))
    assert "holds another key" in refusal(ferry)


@pytest.mark.parametrize("role", PAIR)
def test_an_end_of_the_same_role_is_refused(ends: Ends, pool: ThreadPoolExecutor, role: Role) -> None:
    here, there = ends.of(role)
    greeting = start(pool, here, role, ends.address)
    there.sendall(hello(role))
    assert f"is no {other(role).name.lower()}. Start" in refusal(greeting)


def test_a_relay_from_another_address_is_refused(ends: Ends, pool: ThreadPoolExecutor) -> None:
    """The ferry connects to a third, who passes all on to the worker and back."""
    with relay(ends, pool) as (joined, _):
        worker = start(pool, joined.worker, WORKER, joined.address)
        ferry = start(pool, joined.ferry, FERRY, ends.address)
        assert "another address" in refusal(worker)
        assert "another address" in refusal(ferry)


@pytest.mark.parametrize("role", PAIR)
def test_another_version_is_refused_by_its_number(ends: Ends, pool: ThreadPoolExecutor, role: Role) -> None:
    here, there = ends.of(role)
    greeting = start(pool, here, role, ends.address)
    there.sendall(hello(other(role), version=VERSION + 1))
    assert f"speaks version {VERSION + 1} of the greeting, this one {VERSION}: install" in refusal(greeting)


GARBAGE = {
    "a request of http": b"GET / HTTP/1.1\r\nHost: a\r\nAccept: */*\r\nUser-Agent: curl\r\n\r\n",
    "a greeting of tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "noise": os.urandom(200),
    "zeros": bytes(200),
}


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("role", PAIR)
def test_garbage_is_refused(ends: Ends, pool: ThreadPoolExecutor, role: Role, kind: str) -> None:
    here, there = ends.of(role)
    greeting = start(pool, here, role, ends.address)
    there.sendall(GARBAGE[kind])
    assert "is not Penstock: check the address" in refusal(greeting)


@pytest.mark.parametrize("role", PAIR)
def test_a_flood_is_not_read(ends: Ends, pool: ThreadPoolExecutor, role: Role) -> None:
    here, there = ends.of(role)
    stop = threading.Event()

    def flood() -> None:
        there.settimeout(0.05)
        there.sendall(hello(other(role)) + b"p" * PROOF_BYTES + b"the rest")
        while not stop.is_set():
            quiet(lambda: there.send(bytes(1 << 20)))

    with ExitStack() as stack:
        stack.callback(stop.set)
        pool.submit(flood)
        with pytest.raises(GreetingRefused, match="holds another key"):
            greet(here, KEY, role=role, address=ends.address, within_s=SOON_S)
        assert read(here, 8) == b"the rest"


@pytest.mark.parametrize(
    "sent", [0, 1, HELLO.size - 1, HELLO.size, HELLO.size + 1, HELLO.size + PROOF_BYTES - 1]
)
@pytest.mark.parametrize("role", PAIR)
def test_an_end_that_closes_too_early_is_refused_at_once(
    ends: Ends, pool: ThreadPoolExecutor, role: Role, sent: int
) -> None:
    here, there = ends.of(role)
    greeting = start(pool, here, role, ends.address)
    there.sendall((hello(other(role)) + b"p" * PROOF_BYTES)[:sent])
    there.shutdown(socket.SHUT_WR)
    assert "closed the connection before it had proved itself" in refusal(greeting)


@pytest.mark.parametrize("sent", [0, 1, HELLO.size, HELLO.size + PROOF_BYTES - 1])
@pytest.mark.parametrize("role", PAIR)
def test_an_end_that_falls_silent_is_refused_in_time(
    ends: Ends, pool: ThreadPoolExecutor, role: Role, sent: int
) -> None:
    here, there = ends.of(role)
    greeting = start(pool, here, role, ends.address, within_s=BRIEF_S)
    there.sendall((hello(other(role)) + b"p" * PROOF_BYTES)[:sent])
    assert "did not prove itself in time: check that" in refusal(greeting)


@pytest.mark.parametrize("role", PAIR)
def test_an_end_that_drips_is_refused_in_time(ends: Ends, pool: ThreadPoolExecutor, role: Role) -> None:
    """A byte now and then: each comes soon, all of them do not."""
    here, there = ends.of(role)
    began = time.monotonic()
    greeting = start(pool, here, role, ends.address, within_s=BRIEF_S)
    for byte in hello(other(role)) + b"p" * PROOF_BYTES:
        if greeting.done():
            break
        quiet(lambda byte=byte: there.sendall(bytes([byte])))  # type: ignore[misc]
        time.sleep(0.1)
    took_s = time.monotonic() - began
    assert "in time" in refusal(greeting)
    assert took_s < 4, "74 bytes take more than seven seconds"


def test_a_connection_that_is_gone_is_refused(ends: Ends) -> None:
    ends.worker.close()
    with pytest.raises(GreetingRefused, match="closed the connection"):
        greet(ends.ferry, KEY, role=FERRY, address=ends.address, within_s=SOON_S)
    ends.ferry.close()
    with pytest.raises(GreetingRefused, match=r"failed .*: check the network"):
        greet(ends.ferry, KEY, role=FERRY, address=ends.address, within_s=SOON_S)


def test_a_cache_that_asks_and_its_home_greet_each_other(ends: Ends, pool: ThreadPoolExecutor) -> None:
    home = start(pool, ends.worker, Role.HOME, ends.address)
    asker = start(pool, ends.ferry, Role.ASKER, ends.address)
    assert home.result(SOON_S) == asker.result(SOON_S)


@pytest.mark.parametrize(("one", "another"), [(FERRY, Role.HOME), (Role.ASKER, WORKER)])
def test_roles_of_two_kinds_do_not_greet_each_other(
    ends: Ends, pool: ThreadPoolExecutor, one: Role, another: Role
) -> None:
    listens = start(pool, ends.worker, another, ends.address)
    connects = start(pool, ends.ferry, one, ends.address)
    assert "is no " in refusal(listens)
    ends.worker.close()
    refusal(connects)
