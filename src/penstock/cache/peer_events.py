"""What happens between the caches of machines, as told to their service; and what they share."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.errors import ConfigError
from penstock.sources.sources import ByteRange


class PeerAsker(Protocol):
    """Another machine that asks (`PeerLink`). Both calls may be made from any thread and never wait."""

    node: int

    def give(
        self,
        scope: bytes,
        sample: int,
        lengths: Sequence[int],
        crc: int,
        fd: int,
        offset: int,
        done: Callable[[], None],
    ) -> None: ...
    def refuse(self, scope: bytes, sample: int) -> None: ...


class PeerBack(NamedTuple):
    """A home answers: for the first time, or again."""

    node: int


class PeerLost(NamedTuple):
    """A home is asked for nothing more until it is back. What it was asked for has been told before."""

    node: int
    why: str


class Came(NamedTuple):
    """A sample's bytes are in the room, committed."""

    node: int
    scope: bytes
    sample: int
    lengths: Sequence[int]
    """Of its ranges."""


class NotCame(NamedTuple):
    """A home does not bring these samples. Read them from the source."""

    node: int
    scope: bytes
    samples: Sequence[int]
    why: str


class PeerWants(NamedTuple):
    """Another machine asks for samples. Answer each with `link.give` or `link.refuse`, from any thread."""

    link: PeerAsker
    scope: bytes
    step: int
    samples: list[tuple[int, list[ByteRange]]]


class PeerHolds(NamedTuple):
    """Another machine says what it holds from now on, and what no more; `anew`: and nothing else."""

    node: int
    scope: bytes
    holds: list[int]
    drops: list[int]
    anew: bool


PeerEvent = PeerHolds | PeerBack | PeerLost | Came | NotCame | PeerWants


class PeerRoom(Protocol):
    """Where arriving bytes are put; `MemoryTier` is one. Called from many threads."""

    def reserve(self, key: bytes, size: int) -> memoryview | None: ...
    def commit(self, key: bytes, check: int | None = None) -> bool: ...
    def abandon(self, key: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """What machines may keep each other waiting for, and how much they may ask of each other."""

    silent_s: float = 2.0
    """A home that owes answers and sends nothing for so long is given up; so is an asker that takes nothing of what is being sent to it."""
    alive_s: float = 0.5
    """A home that owes answers sends something as often as that, however slow its source is."""
    answer_s: float = 60.0
    """A sample that was not sent in this time does not come."""
    connect_s: float = 3.0
    greeting_s: float = 5.0
    retry_s: tuple[float, float] = (0.5, 5.0)
    """Between attempts to reach a home: first, and most."""
    strangers: int = 32
    """Connections that may be proving the secret at a time; with more, the oldest is closed."""
    link_samples: int = 8192
    link_bytes: int = 256 << 20
    """What one asker may have waiting; further samples are refused."""
    mismatches: int = 3
    """A home whose bytes had so many wrong checksums is asked for nothing more in this run."""

    def __post_init__(self) -> None:
        if not 0 < self.alive_s < self.silent_s:
            raise ConfigError(
                f"alive_s must be between 0 and silent_s, got {self.alive_s} and {self.silent_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSetting:
    """What all connections of one port share."""

    node: int
    """This machine's number."""
    secret: str
    room: PeerRoom
    post: Callable[[PeerEvent], None]
    wake: Callable[[], None]
    """Makes the port's watch look at requests that could not be sent at once."""
    limits: PeerLimits


@dataclass(slots=True)
class PeerCounters:
    """Of one other machine."""

    samples_in: int = 0
    bytes_in: int = 0
    in_s: float = 0.0
    """Time in which a sample's bytes were arriving."""
    not_in: int = 0
    """Samples asked for that did not come."""
    mismatches: int = 0
    samples_out: int = 0
    bytes_out: int = 0
    out_s: float = 0.0
    """Time in which a sample's bytes were being sent."""
    refused: int = 0
    """Samples that it was refused."""
    lost: int = 0
    """Times that it was given up."""


WHOLE = socket.MSG_WAITALL
CLOSED = "it closed the connection"
CHUNK = 256 << 10
"""Bytes moved by one call: who does not manage one in `silent_s` is silent."""


def end(sock: socket.socket) -> None:
    """Wake whoever waits for a socket; it is of no more use. Its owner closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def receive_all(sock: socket.socket, room: memoryview, moved: Callable[[], None]) -> None:
    """Fill `room`; ConnectionError if the other end closed before."""
    at, size = 0, len(room)
    if 0 < size <= CHUNK:  # in nearly all cases that is all
        at = sock.recv_into(room, size, WHOLE)
        if not at:
            raise ConnectionResetError(CLOSED)
        moved()
    while at < size:
        with room[at : at + CHUNK] as part:
            got = sock.recv_into(part, len(part), WHOLE)
        if not got:
            raise ConnectionResetError(CLOSED)
        at += got
        moved()
