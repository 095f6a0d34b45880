"""Remote workers on this machine, as real processes over TCP: servers, a ferry, and loaders that use them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.client.remote_side import RemoteSide
from penstock.remote.connect import WorkerAddress
from penstock.remote.handshake import new_key

FERRY = (
    "import socket, sys; from penstock.remote.ferry import main; main(socket.socket(fileno=int(sys.argv[1])))"
)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}


class Server:
    """A remote worker's process."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.remote.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        key = new_key()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"key": key, "host": host}).encode() + b"\n")
        self.process.stdin.flush()
        self._key = key
        self._address: WorkerAddress | None = None

    @property
    def address(self) -> WorkerAddress:
        if self._address is None:
            assert self.process.stdout is not None
            said = json.loads(self.process.stdout.readline())
            self._address = WorkerAddress(said["host"], said["port"], self._key)
        return self._address

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(10)


class FerryHere:
    """A ferry's process, as the node process would start it."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-c", FERRY, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment()
        )
        theirs.close()

    def open(self, facts: bytes, fds: Sequence[int]) -> socket.socket:
        ours, theirs = socket.socketpair()
        socket.send_fds(self.control, [facts], [theirs.fileno(), *fds])
        theirs.close()
        return ours

    def close(self) -> None:
        self.control.close()
        self.process.wait(10)


@contextlib.contextmanager
def remote_workers(count: int, **options: Any) -> Iterator[tuple[RemoteSide, FerryHere, list[Server]]]:
    """So many remote workers and a ferry."""
    servers = [Server() for _ in range(count)]
    ferry = FerryHere()
    try:
        side = RemoteSide(
            open_ferry=ferry.open, addresses=tuple(server.address for server in servers), **options
        )
        yield side, ferry, servers
    finally:
        ferry.close()
        for server in servers:
            server.close()
