"""A task as rows of a table: programs, images and places in a batch. Pure: needs neither Triton nor a GPU.

A task is a hundred samples, and the training process writes its table: so there is little Python per sample.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from penstock.kernels import words as w
from penstock.kernels.layout import ALIGNED, ProgramLayout

ADDRESSES = struct.Struct("<4q")
"""Addresses of a row's image, of its place in the batch and of its scratch; its first statistics slot."""
BEFORE, BEHIND = w.WORD * w.SOURCE, w.WORD * (w.FIRST_SLOT + 1)


class Image(Protocol):
    """Pixels in device memory: a tensor, or similar."""

    @property
    def nbytes(self) -> int: ...

    def data_ptr(self) -> int: ...


class Pixels(NamedTuple):
    """An image, by its address."""

    address: int
    nbytes: int

    def data_ptr(self) -> int:
        return self.address


class Sample(NamedTuple):
    """One sample of a task: its program, its image, its slot in the batch."""

    layout: ProgramLayout
    image: Image
    slot: int


class Rows(NamedTuple):
    """The rows of a task, in columns, and their joint needs."""

    data: Sequence[Any]
    """Bytes, or memory that holds them."""
    sources: Sequence[int]
    """Addresses of their images."""
    places: Sequence[int]
    """In the batch."""
    scratch: Sequence[int]
    """Offset of their scratch in the task's."""
    statistics: Sequence[int]
    """Their first statistics slot."""
    rounds: int
    scratch_bytes: int
    slots: int

    def joined(self, batch: int, step: int, scratch: int) -> tuple[bytes, list[int]]:
        """Return the rows with their addresses, and the length of each. `step`: bytes between places of the batch."""
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
