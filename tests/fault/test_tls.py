"""TLS to a remote worker over real connections: only the worker that was started is spoken to, and nobody holds up its door."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.remote.connect import WorkerAddress, greeted
from penstock.remote.gateway_config import GatewayConfig
from penstock.remote.handshake import new_key
from penstock.remote.hire import Hire
from penstock.remote.server import Door
from penstock.remote.tls import accept_tls, connect_tls, worker_context
from tests.certificates import ONE, OTHER, print_of

SOON_S = 10.0
BRIEF_S = 0.6
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""How a TLS client begins; hundreds of bytes follow."""


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """(one who connects, one who listens)"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), SOON_S)
        with client, listener.accept()[0] as server:
            server.settimeout(SOON_S)
            yield client, server


class Porter:
    """A worker's door in a thread, with a certificate."""

    def __init__(self, pem: bytes) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        host, port = listener.getsockname()
        self.address = WorkerAddress(host, port, new_key(), print_of(pem))
        self._door = Door(listener, self.address.key, self.address.place, worker_context(pem))
        self._pool = ThreadPoolExecutor(1)
        self.welcome = self._pool.submit(self._door.first_welcome, 2 * SOON_S)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.address.host, self.address.port), SOON_S)

    def close(self) -> None:
        """Let the door see a welcome guest, so that it closes."""
        if not self.welcome.done():
            greeted(self.connect(), self.address).close()
        found = self.welcome.result(SOON_S)
        assert found is not None
        found.close()
        self._pool.shutdown()


@pytest.fixture
def porter() -> Iterator[Porter]:
    found = Porter(ONE)
    yield found
    found.close()


def ends_of(sock: socket.socket) -> bytes:
    """All that still comes until the other end closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(1 << 16):
            data += chunk
    return data


def test_a_ferry_with_key_and_fingerprint_is_let_in(porter: Porter) -> None:
    with greeted(porter.connect(), porter.address) as ferry:
        worker = porter.welcome.result(SOON_S)
        assert worker is not None
        ferry.settimeout(SOON_S)
        ferry.sendall(b"there")
        assert worker.recv(5) == b"there"
        worker.sendall(b"and back")
        assert ferry.recv(8) == b"and back"


def test_what_travels_is_not_to_be_read_on_the_way() -> None:
    """A relay sees the bytes between both ends, and not the words in them."""
    with (
        connected() as (ferry, left),
        connected() as (right, worker),
        ThreadPoolExecutor(3) as pool,
    ):

        def relay(source: socket.socket, sink: socket.socket) -> bytes:
            data = b""
            with contextlib.suppress(OSError):
                while chunk := source.recv(1 << 16):
                    data += chunk
                    sink.sendall(chunk)
            return data

        relays = [pool.submit(relay, left, right), pool.submit(relay, right, left)]
        other = pool.submit(accept_tls, worker, worker_context(ONE), within_s=SOON_S)
        with connect_tls(ferry, print_of(ONE), within_s=SOON_S) as tls, other.result(SOON_S) as there:
            assert tls.version() == "TLSv1.3"
            tls.sendall(b"a word" * 100)
            assert there.recv(600)
            there.sendall(b"a word" * 100)
            assert tls.recv(600)
        seen = b"".join(one.result(SOON_S) for one in relays)
    assert len(seen) > 1200
    assert b"a word" not in seen


def test_a_plain_ferry_is_refused_at_once(porter: Porter) -> None:
    plain = WorkerAddress(porter.address.host, porter.address.port, porter.address.key)
    with porter.connect() as sock, pytest.raises(ConnectionError):
        greeted(sock, plain)
    assert not porter.welcome.done()


def test_a_ferry_without_the_key_is_refused_inside_of_tls(porter: Porter) -> None:
    stranger = WorkerAddress(porter.address.host, porter.address.port, new_key(), porter.address.fingerprint)
    with pytest.raises(ConnectionError, match="it holds another key"):
        greeted(porter.connect(), stranger)
    assert not porter.welcome.done()


def test_an_older_tls_is_refused(porter: Porter) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with porter.connect() as sock, pytest.raises(ssl.SSLError):
        context.wrap_socket(sock)


def test_another_certificate_is_refused_before_anything_is_said() -> None:
    """Another worker's certificate, with its key: what a worker of another job at that address would show."""
    with connected() as (ferry, worker), ThreadPoolExecutor(1) as pool:
        other = pool.submit(accept_tls, worker, worker_context(OTHER), within_s=SOON_S)
        wanted = WorkerAddress("127.0.0.1", 1, new_key(), print_of(ONE))
        with pytest.raises(ConnectionError, match="its certificate is not that of the worker"):
            greeted(ferry, wanted)
        with other.result(SOON_S) as tls:
            assert ends_of(tls) == b""


def test_the_right_certificate_without_its_key_is_refused() -> None:
    """Who has seen a handshake can say the worker's lines again, its certificate among them; the key is not in them."""
    with connected() as (ferry, worker), ThreadPoolExecutor(1) as pool:
        answer = recorded_answer(ferry, worker, pool)
    with connected() as (ferry, thief), ThreadPoolExecutor(1) as pool:
        pool.submit(thief.sendall, answer)
        with pytest.raises(ConnectionError, match="what answers there is not its TLS"):
            connect_tls(ferry, print_of(ONE), within_s=SOON_S)


def recorded_answer(ferry: socket.socket, worker: socket.socket, pool: ThreadPoolExecutor) -> bytes:
    """What a worker says in a handshake that succeeds."""
    heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = worker_context(ONE).wrap_bio(heard, said, server_side=True)
    done = pool.submit(connect_tls, ferry, print_of(ONE), within_s=SOON_S)
    answer = b""
    while not done.done():
        with contextlib.suppress(ssl.SSLWantReadError):
            there.do_handshake()
            break
        chunk = said.read()
        answer += chunk
        worker.sendall(chunk)
        heard.write(worker.recv(1 << 16))
    done.result(SOON_S).close()
    assert len(answer) > 500
    return answer


def accepts(sock: socket.socket, within_s: float) -> Any:
    return accept_tls(sock, worker_context(ONE), within_s=within_s)


def connects(sock: socket.socket, within_s: float) -> Any:
    return connect_tls(sock, print_of(ONE), within_s=within_s)


ENDS: dict[str, Callable[[socket.socket, float], Any]] = {"worker": accepts, "ferry": connects}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("sent", [b"", HELLO[:3], HELLO + bytes(100)])
def test_a_handshake_that_is_cut_short_is_refused_at_once(end: str, sent: bytes) -> None:
    with connected() as (ours, theirs):
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError, match=r"EOF|closed|unexpected|not its TLS"):
            ENDS[end](ours, 10 * SOON_S)


@pytest.mark.parametrize("end", ENDS)
def test_a_handshake_that_drips_is_refused_in_time(end: str) -> None:
    """Each byte comes soon, and all of them never."""
    with connected() as (ours, theirs):
        dripping = threading.Thread(target=drip, args=(theirs,))
        dripping.start()
        with pytest.raises((TimeoutError, ConnectionError), match=r"timed out|in time"):
            ENDS[end](ours, BRIEF_S)
        dripping.join()


def drip(sock: socket.socket) -> None:
    """Send a record's bytes one by one until the other end closes; give up after a while."""
    with contextlib.suppress(OSError):
        for byte in (HELLO + bytes(500))[: int(SOON_S / 0.05)]:
            sock.sendall(bytes([byte]))
            time.sleep(0.05)
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)


def test_handshake_and_greeting_have_one_deadline_at_the_door(porter: Porter) -> None:
    """One who finishes TLS and says nothing more is sent away."""
    with connect_tls(porter.connect(), porter.address.fingerprint, within_s=SOON_S) as silent:
        silent.settimeout(6 * SOON_S)
        assert ends_of(silent) == b""
    assert not porter.welcome.done()


@pytest.mark.parametrize(("tls", "fingerprint", "used"), [(True, "", 0), (True, "ab", 1), (False, "", 1)])
def test_a_worker_without_tls_is_not_used_where_it_is_wanted(tls: bool, fingerprint: str, used: int) -> None:
    found: list[WorkerAddress] = []
    said: list[str] = []
    hire = Hire(GatewayConfig(tls=tls), None, found.append, said.append, {})  # type: ignore[arg-type]  # it starts nothing
    hire._on_message(
        {"worker": 0, "host": "h", "port": 9, "key": "k", "fingerprint": fingerprint, "node": "n"}
    )
    assert (len(found), len(said)) == (used, 1 - used)
