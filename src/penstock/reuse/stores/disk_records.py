"""The record format of one entry.

Rule 1: a record identifies itself: namespace, sample, epoch, type, shape and length. It is returned only if all match and its checksum over every
        byte is right, so nothing that led to it need be trusted.
Rule 2: the head has its own checksum. A walk over a segment trusts only a length with that, and otherwise searches for the next head.
Rule 3: a type is one of numpy's plain ones, by name; any other name is refused.
"""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from penstock import accel
from penstock.reuse.stores.contract import Entry, Wanted

HEAD = struct.Struct("<II4sH2x16sQqQI12s8IB7x")
"""Checksum of all that follows it, checksum of the rest of the head, magic, version, namespace, sample, renewed, bytes of the values, bytes of the
extra, type, shape, dimensions."""
MAGIC = b"PnKr"
VERSION = 1
MARK = MAGIC + struct.pack("<H", VERSION)
MARK_AT = 8
ALIGN = 16
"""Records are aligned to this, so that numpy's values are too."""
MOST_DIMENSIONS = 8
PLAIN = frozenset("biufcmMSU")
_SUM_AT, _HEAD_SUM_AT = 4, 8
_NAMES, _NAMES_AT, _WHAT_AT = struct.Struct("<6s2x16sQq"), slice(8, 48), slice(48, HEAD.size)
"""The two parts of a head: the record's key, and its description."""


def digest_of(namespace: str) -> bytes:
    return hashlib.blake2b(namespace.encode(), digest_size=16).digest()


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN


def encode(digest: bytes, wanted: Wanted, entry: Entry) -> list[bytes | memoryview] | None:
    """Return the pieces of a record without copying the values; None for values that cannot be stored."""
    values = np.asarray(entry.values, order="C")
    name = values.dtype.str.encode()
    if (
        values.dtype.kind not in PLAIN
        or values.ndim > MOST_DIMENSIONS
        or max(values.shape, default=0) >= 1 << 32
        or len(entry.extra) >= 1 << 32
        or len(name) > 12
        or not -(1 << 63) <= wanted.renewed < 1 << 63
    ):
        return None
    flat = values.reshape(-1).view(np.uint8).data if values.nbytes else b""
    shape = values.shape + (0,) * (MOST_DIMENSIONS - values.ndim)
    sizes = (values.nbytes, len(entry.extra))
    head = bytearray(HEAD.pack(0, 0, MAGIC, VERSION, digest, *wanted, *sizes, name, *shape, values.ndim))
    struct.pack_into("<I", head, 4, crc32(head[_HEAD_SUM_AT:]))
    of_values = accel.crc32(flat, before=crc32(head[_SUM_AT:]))
    struct.pack_into("<I", head, 0, crc32(entry.extra, of_values))
    total = len(head) + sum(sizes)
    return [bytes(head), flat, entry.extra, bytes(padded(total) - total)]


@functools.lru_cache(maxsize=1 << 14)
def _described(said: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int, int] | None:
    """Parse the second part of a head: type, shape, end of the values, end of the extra."""
    if len(said) < _WHAT_AT.stop - _WHAT_AT.start:
        return None
    values_bytes, extra_bytes, name, *shape, ndim = struct.unpack("<QI12s8IB7x", said)
    try:
        dtype = np.dtype(name.rstrip(b"\0").decode("ascii"))
    except (TypeError, ValueError, SyntaxError):
        return None
    if dtype.kind not in PLAIN or ndim > MOST_DIMENSIONS:  # guard: plain-type
        return None
    if math.prod(shape[:ndim]) * dtype.itemsize != values_bytes:
        return None
    return dtype, tuple(shape[:ndim]), HEAD.size + values_bytes, HEAD.size + values_bytes + extra_bytes


def decode(data: bytes | memoryview, digest: bytes, wanted: Wanted) -> Entry | None:
    """Return the entry if it has this key and its checksum is right. It refers to `data`, which must not change."""
    if data[_NAMES_AT] != _NAMES.pack(MARK, digest, *wanted):  # guard: record-wanted
        return None
    described = _described(bytes(data[_WHAT_AT]))
    if described is None:
        return None
    dtype, shape, end, total = described
    said = int.from_bytes(data[:_SUM_AT], "little")
    if total > len(data) or accel.crc32(data, _SUM_AT, total) != said:  # guard: record-checksum
        return None
    extra = bytes(data[end:total]) if end < total else b""
    return Entry(np.ndarray(shape, dtype, data, HEAD.size), extra)


class Found(NamedTuple):
    """A record met by a walk."""

    sample: int
    renewed: int
    start: int
    length: int
    """Including padding."""
    good: bool
    """False: the head is right, but not the rest."""


def walk(data: bytes, digest: bytes) -> Iterator[Found | int]:
    """Yield all records of a segment in order, and the start of each stretch that is neither a record nor empty (Rule 2)."""
    view, at = memoryview(data), 0
    while at < len(data):
        found = record_at(view, at, digest)
        if found is not None:
            yield found
            at += found.length
            continue
        after = _next_mark(data, at + 1)
        if data[at:after].strip(b"\0"):
            yield at
        at = after


def record_at(view: memoryview, at: int, digest: bytes) -> Found | None:
    if len(view) - at < HEAD.size or view[at + MARK_AT : at + MARK_AT + len(MARK)] != MARK:
        return None
    said = HEAD.unpack_from(view, at)
    # guard: record-length
    if crc32(view[at + _HEAD_SUM_AT : at + HEAD.size]) != said[1] or said[4] != digest:
        return None
    total = HEAD.size + said[7] + said[8]
    good = total <= len(view) - at and accel.crc32(view, at + _SUM_AT, at + total) == said[0]
    return Found(said[5], said[6], at, padded(total), good)


def _next_mark(data: bytes, start: int) -> int:
    """Return where the next head may begin; else the end of the data."""
    at = start - 1
    while True:
        at = data.find(MARK, at + 1)
        if at < 0:
            return len(data)
        if at >= MARK_AT + start and (at - MARK_AT) % ALIGN == 0:
            return at - MARK_AT
