"""Two ends of a TCP connection prove to each other that they hold the same one-time key.

    ferry                          worker
      hello: role, nonce  ─────▶
                          ◀─────   hello: role, nonce
      proof               ─────▶   checks it
      checks it           ◀─────   proof

Rule 1: messages have fixed sizes. No byte behind them is read, and nothing is parsed but a magic, a version and a role.
Rule 2: a proof is an HMAC of the key over the role, both nonces and the address that its side believes in. A fresh nonce refuses
        a replay, the role a reflection, the address a relay from elsewhere.
Rule 3: the ferry, who knows where it connects, speaks first. The worker, whom anyone can reach, says nothing to a stranger and
        proves itself only to a ferry that has: it computes nothing about the key for others.
Rule 4: one deadline holds for all of it, however slowly bytes arrive.

Ferry and worker are one pair of roles; the caches of two machines are another: the one that asks connects, its home listens.

The connection is not encrypted. The secret returned is known to both ends only; use it to authenticate what follows.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from enum import IntEnum
from struct import Struct

MAGIC = b"PENSTOCK"
VERSION = 1
HELLO = Struct("<8sHB32s")
"""magic, version, role, nonce"""
KEY_BYTES = NONCE_BYTES = PROOF_BYTES = 32
RESTART = "Start the remote workers again with the loader that uses them."


class Role(IntEnum):
    FERRY = 1
    """Connects: the training process's machine."""
    WORKER = 2
    """Listens: another machine."""
    ASKER = 3
    """Connects: a cache that wants samples."""
    HOME = 4
    """Listens: the cache of another machine that has them."""


OTHER = {Role.FERRY: Role.WORKER, Role.WORKER: Role.FERRY, Role.ASKER: Role.HOME, Role.HOME: Role.ASKER}
CONNECTS = (Role.FERRY, Role.ASKER)


class GreetingRefused(ConnectionError):
    """The other end is not who it should be, or did not say so in time. Close the connection."""


def new_key() -> str:
    """Return a key for one pair of ferry and worker, as hex digits."""
    return secrets.token_hex(KEY_BYTES)


def greet(sock: socket.socket, key: str, *, role: Role, address: str, within_s: float) -> bytes:
    """Authenticate both ends; return their session's secret (32 bytes) or raise GreetingRefused.

    `key` is `new_key()`'s, `address` the worker's "host:port" as this end knows it. The caller closes the socket.
    """
    secret = unhexed_key(key)
    before = sock.gettimeout()
    line = _Line(sock, time.monotonic() + within_s, address)
    session = _Greeting(line, secret, Role(role), address).run()
    sock.settimeout(before)
    return session


def unhexed_key(key: str) -> bytes:
    """Return the key's bytes; the error does not repeat it."""
    try:
        secret = bytes.fromhex(key)
    except (TypeError, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a key has {2 * KEY_BYTES} hex digits, as `new_key()` gives it")
    return secret


class _Greeting:
    def __init__(self, line: _Line, key: bytes, role: Role, address: str) -> None:
        self._line, self._key, self._role, self._address = line, key, role, address
        self._other = OTHER[role]
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def run(self) -> bytes:
        if self._role in CONNECTS:
            self._say_hello()
            nonces = self._nonce + self._hear_hello()
            self._line.send(self._mac(b"proof", self._role, nonces))
            self._hear_proof(nonces)
        else:
            nonces = self._hear_hello() + self._nonce
            self._say_hello()
            self._hear_proof(nonces)  # guard: greeting-order
            self._line.send(self._mac(b"proof", self._role, nonces))
        return self._mac(b"session", 0, nonces)

    def _say_hello(self) -> None:
        self._line.send(HELLO.pack(MAGIC, VERSION, self._role, self._nonce))

    def _hear_hello(self) -> bytes:
        magic, version, role, nonce = HELLO.unpack(self._line.receive(HELLO.size))
        if magic != MAGIC:  # guard: greeting-magic
            raise GreetingRefused(
                f"what answers at {self._address} is not Penstock: check the address, and that no other program uses its port"
            )
        if version != VERSION:  # guard: greeting-version
            raise GreetingRefused(
                f"the other end of {self._address} speaks version {version} of the greeting, this one {VERSION}: "
                "install the same version of Penstock on both machines"
            )
        if role != self._other:  # guard: greeting-role
            raise GreetingRefused(
                f"the other end of {self._address} is no {self._other.name.lower()}. {RESTART}"
            )
        assert isinstance(nonce, bytes)
        return nonce

    def _hear_proof(self, nonces: bytes) -> None:
        proof = self._line.receive(PROOF_BYTES)
        if not hmac.compare_digest(proof, self._mac(b"proof", self._other, nonces)):  # guard: greeting-proof
            raise GreetingRefused(
                f"the {self._other.name.lower()} at the other end of {self._address} holds another key, or knows this worker by "
                f"another address. {RESTART}"
            )

    def _mac(self, label: bytes, role: int, nonces: bytes) -> bytes:
        """All but the last part have fixed sizes (labels: no two begin alike), so that no two messages are one."""
        message = (
            b"penstock " + label + bytes([VERSION, role]) + nonces + self._address.encode()
        )  # guard: greeting-mac
        return hmac.digest(self._key, message, "sha256")


class _Line:
    """Exact numbers of bytes before one deadline."""

    def __init__(self, sock: socket.socket, deadline_s: float, address: str) -> None:
        self._sock, self._deadline_s, self._address = sock, deadline_s, address

    def send(self, data: bytes) -> None:
        try:
            self._arm()
            self._sock.sendall(data)  # its timeout is for all of it
        except OSError as exc:
            raise self._lost(exc) from exc

    def receive(self, count: int) -> bytes:
        """Return exactly `count` bytes. What follows them stays in the socket: it belongs to the next reader."""
        data = b""
        while len(data) < count:
            try:
                self._arm()  # guard: greeting-deadline
                chunk = self._sock.recv(count - len(data))
            except OSError as exc:
                raise self._lost(exc) from exc
            if not chunk:  # guard: greeting-end
                raise self._lost(ConnectionResetError())
            data += chunk
        return data

    def _arm(self) -> None:
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)

    def _lost(self, exc: OSError) -> GreetingRefused:
        if isinstance(exc, TimeoutError):
            return GreetingRefused(
                f"the other end of {self._address} did not prove itself in time: check that a worker listens there and that "
                "the network lets its port through"
            )
        if isinstance(exc, ConnectionError):
            return GreetingRefused(
                f"the other end of {self._address} closed the connection before it had proved itself: it holds another key, "
                f"knows this worker by another address, or has ended (see its log). {RESTART}"
            )
        return GreetingRefused(
            f"the connection with {self._address} failed ({exc}): check the network, then start again"
        )
