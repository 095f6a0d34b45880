"""Connections to remote workers, made in threads: the ferry must not wait for a network."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from dataclasses import dataclass
from typing import Any

from penstock.remote.frames import HEAD, LARGEST, Net
from penstock.remote.handshake import Role, greet
from penstock.remote.outlet import steady

CONNECT_S, HELLO_S = 5.0, 60.0
"""To connect and prove the key; to say what it is, which takes imports of torch and codecs, on a busy machine over 15 s."""


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a remote worker listens, and the key that it expects."""

    host: str
    port: int
    key: str
    fingerprint: str = ""
    """SHA-256 of its certificate, in hex; "": no TLS."""

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"


class Connector:
    """Connects, proves the key, and compares both machines. `ready` becomes readable when there is an outcome."""

    def __init__(self) -> None:
        self.ready, self._done = os.pipe()
        os.set_blocking(self.ready, False)
        self._queue: queue.SimpleQueue[tuple[socket.socket, dict[str, Any]] | str] = queue.SimpleQueue()

    def connect(self, address: WorkerAddress, *, differs: str) -> None:
        """Begin; `differs`: "error" refuses a machine whose bytes may differ, "warn" takes it."""
        threading.Thread(target=self._connect, args=(address, differs), daemon=True).start()

    def outcomes(self) -> list[tuple[socket.socket, dict[str, Any]] | str]:
        """Return sockets of new workers with what they are, and texts of what failed."""
        found = []
        os.read(self.ready, 4096)
        while not self._queue.empty():
            found.append(self._queue.get())
        return found

    def _connect(self, address: WorkerAddress, differs: str) -> None:
        try:
            self._queue.put(meet(address, differs))
        except Exception as exc:  # noqa: BLE001 - whatever it was, preparation goes on without this worker
            self._queue.put(f"the remote worker at {address.place} is not used: {exc}")
        os.write(self._done, b".")


def meet(address: WorkerAddress, differs: str) -> tuple[socket.socket, dict[str, Any]]:
    sock = socket.create_connection((address.host, address.port), timeout=CONNECT_S)
    try:
        steady(sock)
        sock = greeted(sock, address)
        sock.settimeout(HELLO_S)
        size, kind = HEAD.unpack(exactly(sock, HEAD.size))
        if kind != Net.HELLO or size > LARGEST:
            raise ConnectionError("it did not say what it is")
        about = json.loads(exactly(sock, size))
        compare(about, differs)
    except BaseException:
        sock.close()
        raise
    return sock, {**about, "address": address.place, "tls": bool(address.fingerprint)}


def greeted(sock: socket.socket, address: WorkerAddress) -> socket.socket:
    """Prove the key to the worker, and it to us; return what stands for the connection."""
    if not address.fingerprint:
        greet(sock, address.key, role=Role.FERRY, address=address.place, within_s=CONNECT_S)
        return sock
    from penstock.remote.tls import connect_tls
    from penstock.remote.tunnel import tunnelled

    tls = connect_tls(sock, address.fingerprint, within_s=CONNECT_S)
    try:
        greet(tls, address.key, role=Role.FERRY, address=address.place, within_s=CONNECT_S)
    except BaseException:
        tls.close()
        raise
    return tunnelled(tls)


def compare(about: dict[str, Any], differs: str) -> None:
    """Raise if its bytes may differ from ours, unless the user accepts that."""
    from penstock.remote.fingerprint import differences, fingerprint

    found = differences(fingerprint(), about)
    if found and differs == "error":  # guard: same-bytes
        raise ConnectionError(
            f"its samples may differ from those made here ({'; '.join(found)}). Install the same versions there, or accept "
            f"that with Remote(on_difference='warn')"
        )


def exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            raise ConnectionError("it closed the connection")
        data += chunk
    return data
