"""Frames between the agent, the ferry and workers on other machines, beside those of `wire.frames`.

Agent and ferry share one private socket. Each frame there begins with the number of the worker that it is about. The ferry has one
TCP connection to each remote worker, with the frames of `wire.frames` and these.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from penstock.wire.frames import DONE, HEAD, Msg

__all__ = ["BYTES", "DONE", "HEAD", "LARGEST", "NUMBER", "READ", "ROWS", "SPEC", "Msg", "Net", "framed"]


class Net(IntEnum):
    # ferry -> remote worker
    SPEC = 64
    BYTES = 65
    # ferry -> remote worker, agent -> ferry, and for one worker ferry -> agent: the plan's name
    PLAN = 66
    # remote worker -> ferry
    HELLO = 72
    BEAT = 73
    ROWS = 74
    VALUE = 75
    READ = 76
    UNREACHED = 77
    CUT_ROWS = 78
    # agent -> ferry
    START = 80
    WANT = 81
    PERMIT = 82
    TAIL = 83
    # ferry -> agent
    BOARDED = 88
    ENDED = 89
    ALIVE = 90
    UNFIT = 91


NUMBER = Struct("<i")
"""Number of a worker, at the head of each payload between agent and ferry."""
SPEC = Struct("<i32sQ")
"""Number of the worker, digest of the pickled settings, their bytes (0: as the last time); then the pickle."""
ROWS = Struct("<Q")
"""With ROWS, before a payload as of DONE: bytes that follow the frame, the task's rows of each lane, one lane after the other."""
READ = Struct("<qI")
"""With READ: task, number of the first range; then [[name, start, end], …] as JSON."""
BYTES = Struct("<qIi")
"""With BYTES: task, number of the range, errno or 0; then its bytes."""
LARGEST = 1 << 20
"""Longest frame from a remote worker, without what follows it."""


def framed(kind: int, *chunks: bytes) -> bytes:
    return b"".join((HEAD.pack(sum(map(len, chunks)), kind), *chunks))
