"""Frames between the training process, its agent and the workers.

A frame is an 8-byte head (payload length, kind) and a payload: a fixed struct for its kind, then bytes whose meaning
the struct gives. Sample data never travels here: frames name places in the arena. All sockets are private pairs,
inherited or passed on, never listened on.
"""

from __future__ import annotations

import socket
from collections import deque
from enum import IntEnum
from struct import Struct, pack, unpack_from
from typing import NamedTuple

HEAD = Struct("<II")
MAX_FRAME = 1 << 30


class Msg(IntEnum):
    # agent -> worker
    ASSIGN = 1
    PLACE = 2
    CANCEL = 3
    LAYOUT = 4
    RESTART = 5
    STOP = 6
    PLACES = 7
    # worker -> agent
    UP = 16
    DONE = 17
    PREPARED = 18
    MISMATCH = 19
    REFUSED = 20
    FAILED = 21
    EXHAUSTED = 22
    DROPPED = 23
    INIT_FAILED = 24
    SKIPPED = 25
    STANDS = 26
    UNREACHED = 27
    # training process -> agent
    FEED = 32
    RELEASE = 33
    ABORT = 34
    STUCK = 35
    WORKER = 36
    EXITED = 37
    BYTES = 38
    NOT_STARTED = 39
    # agent -> training process
    BATCH = 48
    ERROR = 49
    END = 50
    WARN = 51
    STARVED = 52
    NEED_WORKER = 53
    REPORT = 54
    SPAN = 55
    LOST = 56
    WORKERS = 57
    SHARE = 58
    OFFLOAD = 59
    CACHE_LOST = 60
    LENDING_LOST = 61
    CORES = 62
    NEED_SPARE = 63
    GIVEN_UP = 64


PASSED_ON = {Msg.SKIPPED: Msg.REPORT, Msg.STANDS: Msg.SHARE}
"""Worker messages that the agent forwards unopened to the training process."""
ASSIGN = Struct("<qqqqqqqiiiBBBx")
"""task, seq, epoch, first position, stride, offset, batch number in the epoch, start, size, layout, kind,
key kind, poisoned; then the offsets of parts (collate) or the task's keys."""
PLACE = Struct("<qqi")
"""task, offset, layout"""
TASK = Struct("<q")
LAYOUT = Struct("<i")
"""layout; then its packed form"""
DONE = Struct("<qqBB2xi")
"""task, nanoseconds, holds, refers, number of dropped samples; then their ordinals"""
PREPARED = Struct("<qqB")
"""task, bytes, whether a packed layout follows"""
FAILED = Struct("<qi")
"""task, ordinal; then the packed exception"""
FEED = Struct("<qqqqqiB")
"""seq, epoch, first position, stride, batch number in the epoch, size, key kind; then the keys"""
PLACES = Struct("<qqii")
"""task; inode, process and descriptor of the cache's memory file; then where the task's samples are in it (`wire.places`)"""
SEQ = Struct("<q")
NEED = Struct("<qq")
"""seq, bytes"""
WORKER = Struct("<ii")
"""worker; its pid, its exit code, or the target worker count, or 0; then why it was not started, or the packed error for which it is given up"""
BEGIN = Struct("<qq")
"""mark of the epoch's beginning (its first seq), epoch: with ABORT and RESTART"""
SHARE = Struct("<qiB")
"""mark, worker, whether it is at its end; then the packed place of its share"""
SPAN = Struct("<iiqqqqi")
"""worker, kind, seq, epoch, end and duration in nanoseconds, samples"""
CORES = Struct("<qii")
"""nanoseconds, workers of this rank, workers that may begin tasks"""
BATCH = Struct("<qqqii")
"""seq, offset, bytes in use (0: to be copied), layout, number of dropped samples; then their ordinals"""


class Fed(NamedTuple):
    """A batch as the training process asks for it."""

    seq: int
    epoch: int
    first: int
    """Position of its first sample in the epoch's global order."""
    stride: int
    """Distance between the positions of neighbouring samples: the world size."""
    batch: int
    """Index in its epoch."""
    size: int
    key_kind: int
    keys: bytes


INTS, OBJECTS, DEALT = 0, 1, 2
"""Key kinds: 64-bit integers; any objects, pickled one by one; 64-bit integers, each with its position: of a dealt batch, whose positions
are not equidistant."""
KEY_BYTES = {INTS: 8, DEALT: 16}


def join_keys(blobs: list[bytes]) -> bytes:
    return b"".join(len(blob).to_bytes(4, "little") + blob for blob in blobs)


def split_keys(data: bytes) -> list[bytes]:
    blobs, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        blobs.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return blobs


def slice_keys(kind: int, data: bytes, start: int, count: int) -> bytes:
    """Return the packed keys of samples start … start + count."""
    if size := KEY_BYTES.get(kind):
        return data[size * start : size * (start + count)]
    return join_keys(split_keys(data)[start : start + count])


def count_keys(kind: int, data: bytes) -> int:
    size = KEY_BYTES.get(kind)
    return len(data) // size if size else len(split_keys(data))


def pack_sizes(sizes: tuple[int, ...]) -> bytes:
    return pack(f"<I{len(sizes)}q", len(sizes), *sizes)


def split_sizes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Undo `pack_sizes`; return the sizes and the bytes behind them."""
    (count,) = unpack_from("<I", data)
    return unpack_from(f"<{count}q", data, 4), data[4 + 8 * count :]


class Channel:
    """Frames over a stream socket. Blocking in workers and the training process; the agent sets it non-blocking."""

    read_bytes = 1 << 18
    """Largest single read. Its memory is allocated each time, which is slow beyond 128 KiB."""

    def __init__(self, sock: socket.socket, most_bytes: int = MAX_FRAME) -> None:
        self.sock, self.most_bytes = sock, most_bytes
        self._buffer = bytearray()
        self._out: deque[bytes] = deque()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, kind: IntEnum, *chunks: bytes) -> None:
        size = sum(map(len, chunks))
        self.sock.sendall(b"".join((HEAD.pack(size, kind), *chunks)))

    def post(self, kind: IntEnum, *chunks: bytes) -> None:
        """Send without blocking; the rest waits for `flush`."""
        size = sum(map(len, chunks))
        self._out.append(b"".join((HEAD.pack(size, kind), *chunks)))
        if len(self._out) == 1:
            self.flush()

    @property
    def clogged(self) -> bool:
        return bool(self._out)

    def flush(self) -> bool:
        """Send what is queued; True once the queue is empty."""
        while self._out:
            try:
                sent = self.sock.send(self._out[0])
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                # The other side is gone; whoever watches it will say so.
                self._out.clear()
                break
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
                return False
            self._out.popleft()
        return True

    def receive(self, *, wait: bool = True) -> list[tuple[int, bytes]] | None:
        """Return the frames that have arrived, at least one if waiting; None if the other side is gone."""
        frames: list[tuple[int, bytes]] = []
        while not frames:
            try:
                chunk = self.sock.recv(self.read_bytes, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return frames
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            self._split(chunk, frames)
            if not wait:
                break
        return frames

    def _split(self, chunk: bytes, frames: list[tuple[int, bytes]]) -> None:
        if self._buffer:  # a long frame comes in many pieces: do not copy what is there for each
            self._buffer += chunk
        data = memoryview(self._buffer or chunk)
        at, end = 0, len(data)
        while end - at >= HEAD.size:
            size, kind = HEAD.unpack_from(data, at)
            if size > self.most_bytes:  # guard: frame-size
                raise ValueError(f"frame of {size} bytes is over the limit of {self.most_bytes}")
            if end - at - HEAD.size < size:
                break
            at += HEAD.size
            frames.append((kind, bytes(data[at : at + size])))
            at += size
        if self._buffer:
            data.release()
            del self._buffer[:at]
        elif at < end:
            self._buffer = bytearray(data[at:])

    def close(self) -> None:
        self.sock.close()
