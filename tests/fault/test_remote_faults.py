"""Remote workers that die, hang, lie, or never were: always the same batches, soon, and one line about it."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

import penstock
from penstock.remote.connect import WorkerAddress
from penstock.remote.frames import DONE, LARGEST, ROWS, Net, framed
from penstock.remote.handshake import Role, greet, new_key
from penstock.wire.frames import HEAD, Msg
from remote_here import remote_workers

pytest.importorskip("cloudpickle")
pytestmark = pytest.mark.skipif(
    os.environ.get("PENSTOCK_FULL") != "1", reason="minutes long; unit/test_boat.py is the short version"
)

COUNT = 240


class Slow(Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        return torch.randn(16) + index, index


class Who(Slow):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0], get_worker_info().id


def loader_with(side: Any, dataset: Any = None) -> Any:
    loader: Any = penstock.DataLoader(dataset or Slow(), batch_size=16, shuffle=True, seed=5, num_workers=1)
    loader._remote = side
    return loader


@pytest.fixture(scope="module")
def expected() -> list[tuple[bytes, list[int]]]:
    return taken(iter(loader_with(None)))


def taken(
    batches: Iterator[Any], meanwhile: Callable[[int], None] = lambda _: None
) -> list[tuple[bytes, list[int]]]:
    found, longest, before = [], 0.0, time.monotonic()
    for at, (images, indices) in enumerate(batches):
        longest, before = max(longest, time.monotonic() - before), time.monotonic()
        found.append((images.numpy().tobytes(), indices.tolist()))
        meanwhile(at)
    assert longest < 10.0
    return found


def at_batch(number: int, act: Callable[[], Any]) -> Callable[[int], None]:
    return lambda at: act() if at == number else None


def wait_for_two(side: Any) -> None:
    """Until both remote workers have prepared something."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if {worker for _, workers in loader_with(side, Who()) for worker in workers.tolist()} == {0, 1, 2}:
            return
    raise AssertionError("the remote workers never came")


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_hangs(
    expected: Any, caplog: pytest.LogCaptureFixture, sent: int, tls: bool
) -> None:
    if tls:
        pytest.importorskip("cryptography")
    with remote_workers(2, tls=tls) as (side, _, servers):
        wait_for_two(side)
        victim = servers[0].process
        found = taken(iter(loader_with(side)), at_batch(6, lambda: victim.send_signal(sent)))
        assert found == expected
        assert "was lost: " in caplog.text
        victim.kill()
        assert taken(iter(loader_with(side))) == expected


def test_all_workers_die(expected: Any) -> None:
    with remote_workers(2) as (side, _, servers):
        wait_for_two(side)
        found = taken(iter(loader_with(side)), at_batch(6, lambda: [one.process.kill() for one in servers]))
        assert found == expected


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_the_ferry_dies_or_hangs(expected: Any, caplog: pytest.LogCaptureFixture, sent: int) -> None:
    with remote_workers(2) as (side, ferry, _):
        wait_for_two(side)
        found = taken(iter(loader_with(side)), at_batch(6, lambda: os.kill(ferry.pid, sent)))
        assert found == expected
        if sent == signal.SIGKILL:
            assert "the ferry, which connects remote workers, has ended" in caplog.text


def test_workers_end_with_the_ferry_and_with_their_starter() -> None:
    with remote_workers(2) as (side, ferry, servers):
        wait_for_two(side)
        servers[0].process.stdin.close()  # type: ignore[union-attr]
        servers[0].process.wait(5)
        os.kill(ferry.pid, signal.SIGKILL)
        servers[1].process.wait(10)


def test_nobody_listens_there(expected: Any, caplog: pytest.LogCaptureFixture) -> None:
    with remote_workers(0) as (side, ferry, _):
        nobody = type(side)(open_ferry=ferry.open, addresses=(WorkerAddress("127.0.0.1", 9, new_key()),))
        assert taken(iter(loader_with(nobody))) == expected
    assert "127.0.0.1:9 is not used: [Errno 111] Connection refused" in caplog.text


# ---- a peer that knows the key and lies


class Liar:
    """Listens as a remote worker does, and then does as it likes."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.address = WorkerAddress(host, port, new_key())
        threading.Thread(target=self._serve, args=(act,), daemon=True).start()

    def _serve(self, act: Callable[[socket.socket], None]) -> None:
        with self._listener, self._listener.accept()[0] as sock:
            greet(sock, self.address.key, role=Role.WORKER, address=self.address.place, within_s=10)
            from penstock.remote.fingerprint import fingerprint

            sock.sendall(framed(Net.HELLO, json.dumps(fingerprint()).encode()))
            try:
                act(sock)
                sock.settimeout(20)
                while sock.recv(1 << 16):
                    pass
            except OSError:
                pass


def first_task(sock: socket.socket) -> int:
    """Say that we are up, and return the first task that is assigned."""
    data = b""
    sock.sendall(framed(Msg.UP))
    while True:
        data += sock.recv(1 << 16)
        at = 0
        while len(data) - at >= HEAD.size:
            size, kind = HEAD.unpack_from(data, at)
            if len(data) - at - HEAD.size < size:
                break
            if kind == Msg.ASSIGN:
                return int.from_bytes(data[at + HEAD.size : at + HEAD.size + 8], "little")
            at += HEAD.size + size


def rows(task: int, nbytes: int) -> bytes:
    return framed(Net.ROWS, ROWS.pack(nbytes), DONE.pack(task, 1, 0, 0, 0))


LIES: dict[str, Callable[[socket.socket], None]] = {
    "garbage": lambda sock: sock.sendall(os.urandom(4096)),
    "a huge frame": lambda sock: sock.sendall(HEAD.pack(LARGEST + 1, Msg.UP)),
    "rows of a task that it does not have": lambda sock: sock.sendall(rows(10**9, 64)),
    "too many rows": lambda sock: sock.sendall(rows(first_task(sock), 1 << 20) + bytes(1 << 20)),
    "too few rows": lambda sock: sock.sendall(rows(first_task(sock), 8) + bytes(8)),
    "rows without an end": lambda sock: sock.sendall(rows(first_task(sock), 1 << 62)),
    "a pickle as an error": lambda sock: sock.sendall(framed(Msg.FAILED, first_task(sock).to_bytes(8, "little"), bytes(4), b"Pcos\nsystem\n.")),
    "a wrong value": lambda sock: sock.sendall(
        framed(Net.VALUE, first_task(sock).to_bytes(8, "little"), b'{"lengths": [3], "dropped": [], "took_ns": 1}') + b"{]}"
    ),
    "counters of another length": lambda sock: sock.sendall(framed(Net.BEAT, bytes(7))),
    "nothing at all": lambda sock: sock.sendall(framed(Msg.UP)),
}  # fmt: skip


TOLD = {"nothing at all": "it has been silent for"}


@pytest.mark.parametrize("lie", LIES)
def test_a_peer_that_lies_is_dropped(expected: Any, lie: str, caplog: pytest.LogCaptureFixture) -> None:
    liar, told = Liar(LIES[lie]), TOLD.get(lie, "it broke the protocol")
    with remote_workers(0) as (side, ferry, _):
        used = type(side)(open_ferry=ferry.open, addresses=(liar.address,))
        deadline = time.monotonic() + 60
        while (
            time.monotonic() < deadline and told not in caplog.text
        ):  # the ferry may need a while to connect
            assert taken(iter(loader_with(used))) == expected
        assert told in caplog.text
        assert taken(iter(loader_with(used))) == expected
        assert ferry.is_alive()
