"""What a process and its fetch service say to each other, over a stream that the node process opened.

Rule 1: one request at a time is on a stream; whoever has several opens several streams. A stream on which anything went wrong is closed.
Rule 2: a request is a frame of JSON. A read is answered by one frame for each of its ranges, in their order; a listing by frames of names, and an
        empty one at its end. Any answer may be an error instead: its kind and its text.
Rule 3: bytes lie in memory that whoever asks has made for the stream and sent along, one range behind the other, as long as there is room; else
        they follow their frame. Until the next request this memory is the answer's.
Rule 4: frames are bounded, and their lengths checked before anything is allocated.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

HEAD = Struct("<BQ")
"""kind, length of what follows"""
MOST_REQUEST = 4 << 20
MOST_RANGES = 64
"""Ranges in one request: the service fetches them side by side, and holds what it has fetched."""
MOST_AT_ONCE = 64 << 10
REGION_BYTES = 2 << 20
"""Memory of a stream. Only pages that were written count."""
MOST_BYTES = 1 << 36
PID = Struct("<I")
"""The service's first word on a stream."""
SETTINGS = (
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "SERVICE_ACCOUNT",
    "HOME",
    "SSL_CERT_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
)
"""How variables of the environment begin, in capitals, that say where a store is and who we are. The service gets those of the process that asks:
it may have been started by another one, or earlier."""


class Fetch(IntEnum):
    # to the service
    READ = 1
    HEAD = 2
    LIST = 3
    # its answers
    BYTES = 16
    PLACED = 17
    """Bytes in the stream's memory; nothing follows."""
    FACTS = 18
    NAMES = 19
    ERROR = 20


class FetchTrouble(IntEnum):
    """Why there is no answer."""

    MISSING = 1
    """There is no such object."""
    CHANGED = 2
    """It is another one than the etag says."""
    FLEETING = 3
    """It may be had at another try."""
    REFUSED = 4
    """Another try would end the same."""


class AskedBytes(NamedTuple):
    """A range of an object, as it travels."""

    name: str
    start: int
    end: int | None
    """None: the whole object."""
    deadline_s: float
    """On the machine's monotonic clock, which all its processes share."""
    etag: str = ""
    """The object must still have it; "": any will do."""


class StreamLost(OSError):
    """The other side is gone, or speaks another language."""


class StreamSilent(StreamLost):
    """The other side is there, and did not answer in time."""


_encoded = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


def pack(kind: Fetch, said: Any) -> bytes:
    body = _encoded(said).encode()
    return HEAD.pack(kind, len(body)) + body


def send_frame(sock: socket.socket, kind: Fetch, payload: Any) -> None:
    """Send a head and any buffer behind it, without a copy of the buffer."""
    view = memoryview(payload).cast("B") if len(payload) else memoryview(b"")
    head = HEAD.pack(kind, len(view))
    sent = sock.sendmsg([head, view])
    if sent < HEAD.size:
        sock.sendall(head[sent:])
        sent = HEAD.size
    if sent < HEAD.size + len(view):
        sock.sendall(view[sent - HEAD.size :])


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """Return `count` bytes; the socket blocks, with a time limit of its own (SO_RCVTIMEO) or none."""
    data = sock.recv(count, socket.MSG_WAITALL) if count else b""
    while len(data) < count:  # a signal, or the other side's end
        more = sock.recv(count - len(data), socket.MSG_WAITALL)
        if not more:
            raise StreamLost("it has closed the connection")
        data += more
    return data


def receive_request(sock: socket.socket) -> tuple[int, bytes]:
    """Return kind and body of the next request, mostly in one call: there is never a second one behind it."""
    data = sock.recv(HEAD.size + MOST_AT_ONCE)
    if len(data) < HEAD.size:
        data += receive_exactly(sock, HEAD.size - len(data))
    kind, length = checked_head(data, MOST_REQUEST)
    return kind, data[HEAD.size :] + receive_exactly(sock, max(0, HEAD.size + length - len(data)))


def receive_head(sock: socket.socket, most: int) -> tuple[int, int]:
    """Return kind and length of the frame that comes."""
    return checked_head(receive_exactly(sock, HEAD.size), most)


def checked_head(data: bytes, most: int) -> tuple[int, int]:
    kind, length = HEAD.unpack_from(data)
    if length > most:  # guard: fetch-frame-limit
        raise StreamLost(f"it announced a frame of {length:,} bytes; the most is {most:,}")
    return kind, length


def settings_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that count for object stores, sorted by name."""
    return {key: environ[key] for key in sorted(environ) if key.upper().startswith(SETTINGS)}
