"""Checks of what remote workers send beside rows: layouts and values. Imports torch, so the ferry loads it only when such a thing comes."""

from __future__ import annotations

import json
from typing import NamedTuple

from penstock.remote.inlet import MOST_BYTES, Hostile
from penstock.remote.values import BadValue, decode
from penstock.wire import frames as wire
from penstock.wire.layout_text import BadLayout, pack, unpack
from penstock.wire.pickles import Packed

MOST_BUFFERS = 1 << 16


def checked_layout(data: bytes) -> bytes:
    """Return a packed layout (sizes, then its text) as the agent knows it; raise Hostile for anything but a checked text."""
    try:
        sizes, blob = wire.split_sizes(data)
        if blob[:1] != b"J":  # guard: layouts-are-text
            raise Hostile("it described its samples by something other than text")
        layout = unpack(blob[1:])
    except (BadLayout, ValueError, IndexError) as exc:
        raise Hostile(f"its description of samples is wrong ({exc})") from None
    text = pack(layout)
    if sizes != layout.items or text is None:
        raise Hostile("its description of samples contradicts itself")
    return wire.pack_sizes(layout.items) + b"J" + text


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
        if not head.lengths or min(head.lengths) < 0 or len(head.lengths) > MOST_BUFFERS or head.nbytes > MOST_BYTES:
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
