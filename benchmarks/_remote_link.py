"""Remote workers behind a link of a given rate, without Ray: `python _remote_link.py '{"key": …, …}'` is one worker.

The link is that of the training machine: all its workers share it, each direction by itself, as on a full-duplex card. A process forwards
what they send at that rate. Workers and this process have cores of their own.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from penstock.remote.connect import WorkerAddress  # noqa: E402
from penstock.remote.handshake import new_key  # noqa: E402
from penstock.remote.server import Door, bind_to, serve  # noqa: E402
from remote_here import environment  # noqa: E402

HERE = "127.0.0.1"
CHUNK = 1 << 17
BURST_S = 0.004
"""What a sleep that lasted too long leaves unused may be made up for so much later."""


class Gate:
    """Lets so many bytes through each second, whoever sends them."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate, self._free_s, self._lock = bytes_per_s, 0.0, threading.Lock()

    def wait(self, count: int) -> None:
        now = time.monotonic()
        with self._lock:
            self._free_s = max(self._free_s, now - BURST_S) + count / self._rate
            left_s = self._free_s - now
        if left_s > 0:
            time.sleep(left_s)


def forward(source: socket.socket, sink: socket.socket, gate: Gate) -> None:
    chunk = memoryview(bytearray(CHUNK))
    with contextlib.suppress(OSError):
        while count := source.recv_into(chunk):
            gate.wait(count)
            sink.sendall(chunk[:count])
    for sock in (source, sink):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def relay(listeners: Sequence[socket.socket], ports: Sequence[int], rate: float, cores: Sequence[int]) -> None:  # fmt: skip
    """Be the link: the first connection to each listener goes on to its worker."""
    pin(cores)
    parent, inward, outward = os.getppid(), Gate(rate), Gate(rate)

    def connect(listener: socket.socket, port: int) -> None:
        near, far = listener.accept()[0], socket.create_connection((HERE, port))
        for sock in (near, far):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=forward, args=(near, far, outward), daemon=True).start()
        forward(far, near, inward)

    threads = [
        threading.Thread(target=connect, args=pair, daemon=True)
        for pair in zip(listeners, ports, strict=True)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def pin(cores: Sequence[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)


class LinkedWorker:
    """A remote worker's process. `listener`: the relay's, by whose address the ferry knows it; None: no relay."""

    def __init__(self, cores: Sequence[int], listener: socket.socket | None) -> None:
        self.key, self.listener = new_key(), listener
        place = "" if listener is None else f"{HERE}:{listener.getsockname()[1]}"
        asked = {"key": self.key, "place": place, "cores": list(cores)}
        command = [sys.executable, str(Path(__file__).resolve()), json.dumps(asked)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment())
        self.port = 0

    def address(self) -> WorkerAddress:
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        port = self.port if self.listener is None else self.listener.getsockname()[1]
        return WorkerAddress(HERE, port, self.key)

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(20)


@contextlib.contextmanager
def linked_workers(
    cores: Sequence[Sequence[int]], gbit_per_s: float, relay_cores: Sequence[int]
) -> Iterator[tuple[WorkerAddress, ...]]:
    """One remote worker for each set of cores, behind one link; 0 Gbit/s: without a limit, and no relay."""
    listeners = [socket.create_server((HERE, 0)) for _ in cores] if gbit_per_s else [None] * len(cores)
    workers = [LinkedWorker(*pair) for pair in zip(cores, listeners, strict=True)]
    link = None
    try:
        addresses = tuple(worker.address() for worker in workers)
        if gbit_per_s:
            ports = [worker.port for worker in workers]
            args = (listeners, ports, gbit_per_s * 1e9 / 8, relay_cores)
            link = multiprocessing.get_context("fork").Process(target=relay, args=args, daemon=True)
            link.start()
        yield addresses
    finally:
        for worker in workers:
            worker.close()
        if link is not None:
            link.join(20)
        for listener in listeners:
            if listener is not None:
                listener.close()


def main(asked: dict[str, object]) -> None:
    """Be a remote worker, as `penstock.remote.server` is one."""
    pin(asked["cores"])  # type: ignore[arg-type]
    os.set_blocking(0, False)
    bind_to(0)  # from here on the kernel kills us when stdin closes
    listener = socket.create_server((HERE, 0))
    port = listener.getsockname()[1]
    os.write(1, f"{port}\n".encode())
    sock = Door(listener, str(asked["key"]), str(asked["place"]) or f"{HERE}:{port}").first_welcome(120.0)
    if sock is not None:
        serve(sock)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
