"""What a loader and the cache service of its machine say to each other, over a stream that the node process opened: pure encoding.

The training process joins (`JOIN`, answered by `JOINED`, `REFUSED` or `FAILED`), tells the plan (`PLAN`, answered by `PLANNED`), and gives the stream to its agent. The
agent asks for batches (`ASK`), hears of each sample once (`LANDED`), and says when a batch is over (`OVER`). Bytes never travel here: places name
bytes in the service's memory file, which workers read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

from penstock.sources.sources import ByteRange
from penstock.wire.places import Landing, pack_places, split_places

SERVICE = "cache"
MOST_FRAME = 64 << 20
READ_BYTES = 128 << 10
VERSION = 1
MOST_OFFSET = 1 << 63
BATCH = Struct("<qqq")
"""seq, epoch, batch number in the epoch; then JSON: its samples, and the ranges of each"""
OVER = Struct("<q?")
"""seq, whether the batch was delivered"""
SEQ = Struct("<q")


class CacheMsg(IntEnum):
    # training process -> service
    JOIN = 1
    PLAN = 2
    STATS = 3
    # agent -> service
    ASK = 8
    OVER = 9
    # service -> training process
    JOINED = 16
    PLANNED = 17
    STATED = 18
    REFUSED = 19
    """Ranks want different caches."""
    FAILED = 20
    """There is no memory to be had, say."""
    # service -> agent
    LANDED = 24
    ALIVE = 25
    """Batches are owed, and the service works on them."""


class BadFrame(ValueError):
    """What arrived is no frame of ours."""


class AskedBatch(NamedTuple):
    seq: int
    epoch: int
    batch: int
    samples: list[int]
    ranges: list[list[ByteRange]]


_encoded = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


def pack_ask(
    seq: int, epoch: int, batch: int, samples: Sequence[int], ranges: Sequence[Sequence[ByteRange]]
) -> bytes:
    return BATCH.pack(seq, epoch, batch) + _encoded([samples, ranges]).encode()


def split_ask(payload: bytes) -> AskedBatch:
    try:
        samples, ranges = json.loads(payload[BATCH.size :])
        seq, epoch, batch = BATCH.unpack_from(payload)
        asked = AskedBatch(seq, epoch, batch, samples, [list(map(range_said, each)) for each in ranges])
        known = len(samples) == len(ranges) and all(type(each) is int for each in samples)
    except (ValueError, TypeError, RecursionError) as exc:
        raise BadFrame(f"a batch was asked for in words that are none: {exc}") from None
    if not known:  # guard: ranges-of-each
        raise BadFrame("a batch was asked for without the ranges of each sample")
    return asked


def range_said(said: Any) -> ByteRange:
    """Return a range as JSON has it. TypeError, ValueError if it is none."""
    name, start, end = said
    if type(name) is not str or type(start) is not int or type(end) not in (int, type(None)):
        raise TypeError("a range is a name, a start and an end")
    if max(abs(start), abs(end or 0)) >= MOST_OFFSET:
        raise ValueError("a range lies behind the end of any file")
    return name, start, end


def split_over(payload: bytes) -> tuple[int, bool]:
    try:
        seq, used = OVER.unpack(payload)
    except struct.error as exc:  # guard: over-whole
        raise BadFrame(f"the end of a batch was told in other words: {exc}") from None
    return seq, used


def pack_landed(seq: int, landings: Sequence[Landing]) -> bytes:
    return SEQ.pack(seq) + pack_places(landings)


def split_landed(payload: bytes) -> tuple[int, list[Landing]]:
    try:
        (seq,) = SEQ.unpack_from(payload)
        return seq, list(split_places(payload[SEQ.size :]))
    except (ValueError, struct.error) as exc:  # guard: landed-whole
        raise BadFrame(f"places were told that are none: {exc}") from None
