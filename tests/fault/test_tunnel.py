"""The tunnel between a TLS connection and a plain socket: all bytes, in order, and an end when either side ends."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.remote.tls import accept_tls, connect_tls, worker_context
from penstock.remote.tunnel import BLOCK, tunnelled
from tests.certificates import ONE, print_of

SOON_S = 20.0


def tls_pair() -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Both ends of a TLS connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        ours = socket.create_connection(listener.getsockname(), SOON_S)
        there = pool.submit(accept_tls, listener.accept()[0], worker_context(ONE), within_s=SOON_S)
        return connect_tls(ours, print_of(ONE), within_s=SOON_S), there.result(SOON_S)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, ssl.SSLSocket]]:
    """(a tunnel's plain end, the other end of its TLS connection)"""
    before = pumps()
    tls, other = tls_pair()
    for end in (tls, other):  # less than a block: it waits often
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    plain = tunnelled(tls)
    plain.settimeout(SOON_S)
    yield plain, other
    plain.close()
    other.close()
    until_ended(before)


@pytest.fixture
def plain_ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Plain ends of a tunnel at each side."""
    before = pumps()
    ours, theirs = (tunnelled(tls) for tls in tls_pair())
    for end in (ours, theirs):
        end.settimeout(SOON_S)
    yield ours, theirs
    ours.close()
    theirs.close()
    until_ended(before)


def pumps() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "penstock tls"}


def until_ended(before: set[threading.Thread]) -> None:
    for thread in pumps() - before:
        thread.join(SOON_S)
        assert not thread.is_alive(), "a tunnel's thread outlives its connection"


def received(sock: socket.socket) -> bytes:
    data = bytearray()
    while chunk := sock.recv(1 << 16):
        data += chunk
    return bytes(data)


def test_both_directions_at_once_carry_every_byte_in_order(
    plain_ends: tuple[socket.socket, socket.socket],
) -> None:
    """Pieces of all sizes, more than all buffers hold, and both sides send before they read."""
    chance, count = random.Random(7), 200

    def send(sock: socket.socket, pieces: list[bytes]) -> None:
        for piece in pieces:
            sock.sendall(piece)

    def receive(sock: socket.socket, nbytes: int) -> str:
        data = bytearray()
        while len(data) < nbytes:
            data += sock.recv(chance.choice([1, 100, 1 << 14, 1 << 20]))
        return hashlib.sha256(data).hexdigest()

    with ThreadPoolExecutor(4) as pool:
        jobs = []
        for source, sink in (plain_ends, plain_ends[::-1]):
            pieces = [os.urandom(chance.choice([1, 13, 1 << 14, 100_000, BLOCK + 1])) for _ in range(count)]
            pool.submit(send, source, pieces)
            whole = b"".join(pieces)
            jobs.append((pool.submit(receive, sink, len(whole)), hashlib.sha256(whole).hexdigest()))
        assert [job.result(6 * SOON_S) for job, _ in jobs] == [digest for _, digest in jobs]


def test_a_record_that_tls_holds_already_is_delivered(ends: tuple[socket.socket, ssl.SSLSocket]) -> None:
    """Several records in one packet: no poll sees those behind the first."""
    plain, other = ends
    other.sendall(b"".join(bytes([number]) * 16384 for number in range(4)))
    other.sendall(b"end")
    data = b""
    while not data.endswith(b"end"):
        data += plain.recv(1 << 20)
    assert len(data) == 4 * 16384 + 3


@pytest.mark.parametrize("closer", [0, 1])
def test_what_was_sent_before_an_end_arrives(
    plain_ends: tuple[socket.socket, socket.socket], closer: int
) -> None:
    ours, theirs = plain_ends[closer], plain_ends[1 - closer]
    data = os.urandom(3 * BLOCK + 5)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(received, theirs)
        ours.sendall(data)
        ours.close()
        assert found.result(SOON_S) == data


def test_a_connection_that_is_reset_ends_the_plain_end(ends: tuple[socket.socket, ssl.SSLSocket]) -> None:
    plain, other = ends
    other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    assert plain.recv(1) == b""
    with pytest.raises(OSError, match="Broken pipe"):
        plain.sendall(bytes(BLOCK))


def test_a_connection_that_ends_without_a_goodbye_ends_the_plain_end(
    ends: tuple[socket.socket, ssl.SSLSocket],
) -> None:
    plain, other = ends
    other.sendall(b"last words")
    other.close()
    assert received(plain) == b"last words"


def test_garbage_in_place_of_a_record_ends_the_plain_end(ends: tuple[socket.socket, ssl.SSLSocket]) -> None:
    plain, other = ends
    with socket.socket(fileno=os.dup(other.fileno())) as raw:
        raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert plain.recv(1) == b""


def fill(sock: socket.socket) -> None:
    """Send until nothing more is taken."""
    sock.settimeout(1.0)
    with contextlib.suppress(TimeoutError):
        while True:
            sock.sendall(bytes(BLOCK))


def test_a_tunnel_ends_with_its_plain_end_although_the_network_takes_nothing(
    ends: tuple[socket.socket, ssl.SSLSocket],
) -> None:
    plain, _ = ends
    (mine,) = pumps()
    fill(plain)
    plain.close()
    mine.join(SOON_S)
    assert not mine.is_alive()


def test_what_a_plain_end_does_not_take_is_not_read(ends: tuple[socket.socket, ssl.SSLSocket]) -> None:
    """The sender waits in the end; nothing between grows without bounds, or spins."""
    plain, other = ends
    fill(other)
    spent_s, began_s = time.process_time(), time.monotonic()
    time.sleep(0.5)
    assert time.process_time() - spent_s < 0.5 * (time.monotonic() - began_s)
    other.close()
    assert len(received(plain)) > BLOCK


def test_an_idle_tunnel_does_nothing(plain_ends: tuple[socket.socket, socket.socket]) -> None:
    plain_ends[0].sendall(b"x")
    assert plain_ends[1].recv(1) == b"x"
    spent_s, began_s = time.process_time(), time.monotonic()
    time.sleep(0.5)
    assert time.process_time() - spent_s < 0.5 * (time.monotonic() - began_s)


def test_a_process_with_a_tunnel_ends_when_it_likes() -> None:
    program = "from tests.fault.test_tunnel import tls_pair, tunnelled\nkept = [tunnelled(tls) for tls in tls_pair()]"
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(root)])}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=6 * SOON_S, env=env, cwd=root)
