"""Remote workers on this machine, as real processes over TCP: servers, a ferry, and loaders that use them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.client.remote_side import RemoteSide
from penstock.node.config import NodeConfig
from penstock.node.link import NodeLink
from penstock.remote.connect import WorkerAddress
from penstock.remote.handshake import new_key
from penstock.wire.arena import Arena


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}


def hidden(folder: Path | None) -> list[str]:
    """Return the start of a command line that hides a folder: a mount namespace with an empty file system there."""
    if folder is None:
        return []
    return ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder)]


def can_hide() -> bool:
    """Whether this machine allows that."""
    return subprocess.run([*hidden(Path("/mnt")), "true"], capture_output=True, check=False).returncode == 0


class Server:
    """A remote worker's process."""

    def __init__(self, host: str = "127.0.0.1", *, blind_to: Path | None = None, tls: bool = False) -> None:
        """`blind_to`: a folder that it cannot see, as on a machine without the data."""
        self.process = subprocess.Popen(
            [*hidden(blind_to), sys.executable, "-m", "penstock.remote.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        )
        key = new_key()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"key": key, "host": host, "tls": tls}).encode() + b"\n")
        self.process.stdin.flush()
        self._key = key
        self._address: WorkerAddress | None = None

    @property
    def address(self) -> WorkerAddress:
        if self._address is None:
            assert self.process.stdout is not None
            said = json.loads(self.process.stdout.readline())
            self._address = WorkerAddress(said["host"], said["port"], self._key, said["fingerprint"])
        return self._address

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(10)


class FerryHere:
    """A ferry, run by a node process of its own."""

    def __init__(self) -> None:
        name = f"test {secrets.token_hex(8)}"
        self.link = NodeLink.attach(name, 60, config=NodeConfig(linger_s=0.1))
        arena = Arena.create(1 << 20, 1)  # the ferry starts now, not in the midst of a test
        facts = {"size": arena.size, "workers": arena.workers}
        self.open(json.dumps(facts).encode(), [arena.fd]).close()
        arena.close()

    def open(self, facts: bytes, fds: Sequence[int]) -> socket.socket:
        return self.link.open("ferry", facts, fds, within_s=60)

    @property
    def pid(self) -> int:
        """The ferry's process: the node's one child."""
        (pid,) = Path(f"/proc/{self.link.pid}/task/{self.link.pid}/children").read_text().split()
        return int(pid)

    def is_alive(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def close(self) -> None:
        node = os.pidfd_open(self.link.pid)
        self.link.close()
        poll = select.poll()
        poll.register(node, select.POLLIN)
        assert poll.poll(20_000), "the node process does not end"
        os.close(node)


@contextlib.contextmanager
def remote_workers(
    count: int, *, blind_to: Path | None = None, tls: bool = False, **options: Any
) -> Iterator[tuple[RemoteSide, FerryHere, list[Server]]]:
    """So many remote workers and a ferry. They work from the start, unless told otherwise."""
    options = {"share": None, **options}
    servers = [Server(blind_to=blind_to, tls=tls) for _ in range(count)]
    ferry = FerryHere()
    try:
        addresses = tuple(server.address for server in servers)
        side = RemoteSide(open_ferry=ferry.open, addresses=addresses, tls=tls, **options)
        yield side, ferry, servers
    finally:
        ferry.close()
        for server in servers:
            server.close()
