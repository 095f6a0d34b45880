"""Messages between a node process, its members and its services.

Rule 1: sockets keep message boundaries (SOCK_SEQPACKET): half a message does not exist. A message is its kind, one byte, and a payload.
Rule 2: a message over the limits is refused as a whole, its descriptors too.
Rule 3: descriptors arrive close-on-exec. Whoever receives them closes them.
"""

from __future__ import annotations

import os
import socket
import struct
from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

MAX_HELLO = 64 << 10
MAX_NAME = 64
MAX_FDS = 16
"""Descriptors that a caller may send along."""
MAX_TEXT = 16 << 10
MAX_MESSAGE = 2 + MAX_NAME + MAX_HELLO
FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # guard: fds-close-on-exec
CREDENTIALS = struct.Struct("3i")
"""pid, uid, gid"""


class NodeMsg(IntEnum):
    # member -> node
    OPEN = 1
    # node -> member
    WELCOME = 16
    OPENED = 17
    FAILED = 18
    GOODBYE = 19
    # node -> service, and back
    TAKE = 32
    TAKEN = 33


class NodeMessage(NamedTuple):
    kind: int
    payload: bytes
    fds: list[int]


class BadMessage(ValueError):
    """What arrived is no message of ours."""


def send(sock: socket.socket, kind: NodeMsg, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send one message, waiting as the socket's timeout says."""
    # Not `socket.send_fds`: it forgets its flags, and sends an empty list of descriptors as one.
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
    sock.sendmsg([bytes([kind]), payload], rights, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket, *, fds: int) -> NodeMessage | None:
    """Receive one message with at most so many descriptors; None if the other side is gone."""
    room = socket.CMSG_LEN(fds * array("i").itemsize) if fds else 0
    try:
        data, rights, flags, _ = sock.recvmsg(MAX_MESSAGE, room, FLAGS)
    except ConnectionResetError:  # told once, before what the other side said last
        data, rights, flags, _ = sock.recvmsg(MAX_MESSAGE, room, FLAGS)  # guard: last-words
    arrived = array("i")
    for _, _, packed in rights:
        arrived.frombytes(packed[: len(packed) - len(packed) % arrived.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):  # guard: node-message-limit
        close_all(arrived)
        raise BadMessage(f"a message is over the limit of {MAX_HELLO} bytes or {MAX_FDS} descriptors")
    if not data:
        close_all(arrived)
        return None
    return NodeMessage(data[0], data[1:], list(arrived))


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def pack_open(service: str, hello: bytes) -> bytes:
    name = service.encode()
    return bytes([len(name)]) + name + hello


def split_open(payload: bytes) -> tuple[str, bytes]:
    """Undo `pack_open`: the service and the hello."""
    length = payload[0] if payload else 0
    if not 0 < length <= min(MAX_NAME, len(payload) - 1):  # guard: short-message
        raise BadMessage("a request to open a service names none")
    return payload[1 : 1 + length].decode(errors="replace"), payload[1 + length :]


def pack_text(text: str) -> bytes:
    return text.encode()[-MAX_TEXT:]


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return pid and user of the process on the other side: who connected, or who listens."""
    pid, uid, _ = CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return pid, uid
