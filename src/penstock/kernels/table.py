"""A task as the rows of a table: what is done, to which images, into which places of a batch. Pure: needs neither Triton nor a GPU.

A task is a hundred samples, and tables are written in the training process: there is little Python for each of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from penstock.kernels import words as w
from penstock.kernels.layout import ALIGNED, ProgramLayout

ADDRESSES = struct.Struct("<4q")
"""Of a row's image, of its place in the batch and of its scratch; its first place for statistics."""
BEFORE, BEHIND = w.WORD * w.SOURCE, w.WORD * (w.FIRST_SLOT + 1)


class Image(Protocol):
    """Pixels in device memory: a tensor, or what looks like one."""

    @property
    def nbytes(self) -> int: ...

    def data_ptr(self) -> int: ...


class Pixels(NamedTuple):
    """An image, by where it is."""

    address: int
    nbytes: int

    def data_ptr(self) -> int:
        return self.address


class Sample(NamedTuple):
    """One sample of a task: what is done, to which image, into which slot of the batch."""

    layout: ProgramLayout
    image: Image
    slot: int


class Rows(NamedTuple):
    """The rows of a task, in columns, and what they need together."""

    data: Sequence[Any]
    """Bytes, or memory that holds them."""
    sources: Sequence[int]
    """Addresses of their images."""
    places: Sequence[int]
    """In the batch."""
    scratch: Sequence[int]
    """Where their scratch begins, within that of the task."""
    statistics: Sequence[int]
    """Their first place for statistics."""
    rounds: int
    scratch_bytes: int
    slots: int

    def joined(self, batch: int, step: int, scratch: int) -> tuple[bytes, list[int]]:
        """The rows with their addresses, of a batch whose places are `step` bytes from each other; and how long each is."""
        parts: list[Any] = []
        lengths: list[int] = []
        for data, source, place, own, slot in zip(*self[:5], strict=True):
            parts += (
                data[:BEFORE],
                ADDRESSES.pack(source, batch + place * step, scratch + own, slot),
                data[BEHIND:],
            )
            lengths.append(len(data))
        return b"".join(parts), lengths


def rows_of(samples: Sequence[Sample]) -> Rows:
    data: list[bytes] = []
    columns: list[tuple[int, int, int, int]] = []
    slot = free = 0
    for layout, image, place in samples:
        if image.nbytes < layout.source_bytes:  # what lies behind it is not ours
            raise ValueError(f"an image of {image.nbytes} bytes, of which {layout.source_bytes} are read")
        address = image.data_ptr()
        for row, slots in zip(layout.rows, layout.slots, strict=True):
            data.append(row)
            columns.append((address, place, free, slot))
            slot += slots
        free += -(-layout.scratch_bytes // ALIGNED) * ALIGNED
    rounds = max((layout.rounds for layout, _, _ in samples), default=0)
    sources, places, scratch, statistics = zip(*columns, strict=True) if columns else ((), (), (), ())
    return Rows(data, sources, places, scratch, statistics, rounds, free, slot)
