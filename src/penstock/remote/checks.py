"""Checks of what remote workers send beside rows: layouts and values. Imports torch, so the ferry loads it only when such a thing comes."""

from __future__ import annotations

import json
from struct import error as struct_error
from typing import NamedTuple

from penstock.remote.inlet import MOST_BYTES, Hostile
from penstock.remote.values import BadValue, decode
from penstock.wire import frames as wire
from penstock.wire.layout_blobs import TEXT
from penstock.wire.layout_text import BadLayout, pack, unpack
from penstock.wire.pickles import Packed

MOST_BUFFERS = 1 << 16


def checked_layout(data: bytes) -> bytes | None:
    """Return a packed layout (sizes, then its text) as the agent knows it. None: it is no text, or names a class that this process does not
    know; such samples are collated by torch's own code."""
    try:
        sizes, blob = wire.split_sizes(data)
        layout = unpack(blob[1:]) if blob[:1] == TEXT else None  # guard: layouts-are-text
    except BadLayout:
        return None
    except (struct_error, IndexError) as exc:
        raise Hostile(f"its description of samples is cut short ({exc})") from None
    text = None if layout is None else pack(layout)
    if layout is None or text is None:
        return None
    if sizes != layout.items:
        raise Hostile("its description of samples contradicts itself")
    return wire.pack_sizes(layout.items) + TEXT + text


class ValueHead(NamedTuple):
    """What comes before a value without a layout."""

    lengths: tuple[int, ...]
    """Bytes of its skeleton, then of each buffer."""
    took_ns: int
    dropped: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(self.lengths)

    @classmethod
    def of(cls, data: bytes) -> ValueHead:
        try:
            told = json.loads(data)
            lengths, dropped = tuple(map(int, told["lengths"])), tuple(map(int, told["dropped"]))
            head = cls(lengths, int(told["took_ns"]), dropped)
        except (ValueError, KeyError, TypeError):
            raise Hostile("it sent a value that says nothing of itself") from None
        if (
            not head.lengths
            or min(head.lengths) < 0
            or len(head.lengths) > MOST_BUFFERS
            or head.nbytes > MOST_BYTES
        ):
            raise Hostile(f"it sent a value of {head.nbytes:,} bytes in {len(head.lengths):,} parts")
        return head


def packed_value(head: ValueHead, data: memoryview) -> Packed:
    """Return a value that has arrived, ready to be written into the arena."""
    parts, at = [], 0
    for length in head.lengths:
        parts.append(data[at : at + length])
        at += length
    try:
        return Packed(decode(bytes(parts[0]), parts[1:]))
    except BadValue as exc:
        raise Hostile(f"its value is wrong ({exc})") from None
