"""A sample's place in a batch that two lanes make: pixels, or a parcel of what a GPU makes them of.

A slot begins with a head that says which of three forms the sample has come to: FINISHED pixels, planes as the batch wants them but for the
tail; DECODED pixels, of what the program needs of the image; or the ENCODED file. The latter two are parcels: with them goes what the
kernels have to do, and the same as steps, for whoever must do it without them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.kernels.layout import Layout
from penstock.lanes.pickles import dumps, loads
from penstock.transforms.steps import Code, Program, Size, Step
from penstock.transforms.tail import Tail

FINISHED, ENCODED, DECODED = range(3)
HEAD = struct.Struct("<6i")
"""The form; bytes of the image, of what the kernels do, of the steps; height and width of the image."""
HEAD_ROOM = 64
"""Bytes before a slot's contents: pixels begin on a cache line."""
BESIDE = 4096
"""Of a parcel, beside its image: about."""
PADDED = 256
"""Images and scratch of samples begin at multiples of this."""
Bytes = NDArray[np.uint8]


def slot_bytes(size: Size, room: int) -> int:
    """Room for the pixels of a sample at least."""
    return padded(HEAD_ROOM + max(3 * size[0] * size[1], room))


def padded(nbytes: int) -> int:
    return -(-nbytes // PADDED) * PADDED


def write_pixels(pixels: Bytes, slot: torch.Tensor) -> None:
    height, width = pixels.shape[:2]
    slot[:HEAD_ROOM] = FINISHED
    Tail().finish(pixels, slot[HEAD_ROOM : HEAD_ROOM + 3 * height * width].view(3, height, width))


class Packing(NamedTuple):
    """A parcel that is yet to be written."""

    form: int
    image: Bytes
    size: Size
    rows: bytes
    steps: bytes

    @classmethod
    def of(cls, form: int, image: Bytes, size: Size, layout: Layout, program: Program) -> Packing:
        steps = dumps([(int(code), args) for code, args in program])
        return cls(form, image, size, dumps(tuple(layout)), steps)

    @property
    def nbytes(self) -> int:
        return HEAD_ROOM + len(self.rows) + len(self.steps) + self.image.nbytes

    def write(self, slot: torch.Tensor) -> None:
        out = slot.numpy()
        out[: HEAD.size] = memoryview(
            HEAD.pack(self.form, self.image.nbytes, len(self.rows), len(self.steps), *self.size)
        )
        at = HEAD_ROOM
        for part in (self.rows, self.steps):
            out[at : at + len(part)] = memoryview(part)
            at += len(part)
        out[at : at + self.image.nbytes] = self.image.reshape(-1)


class Parcel(NamedTuple):
    """What the GPU lane is given of a sample; the image lies in the batch's memory."""

    ordinal: int
    form: int
    image: Bytes
    offset: int
    """Of the image, from the batch's first byte on."""
    size: Size
    layout: Layout
    """What the kernels do."""
    steps: bytes

    @property
    def program(self) -> Program:
        return [Step(Code(code), args) for code, args in loads(self.steps)]

    @property
    def station_bytes(self) -> int:
        """What a station needs for its pixels: those of decoded ones are where they are."""
        return padded(3 * self.size[0] * self.size[1]) if self.form == ENCODED else 0


def unpacked(slots: torch.Tensor) -> list[Parcel]:
    """The parcels in a batch; views of it."""
    rows, step = slots.numpy(), slots.stride(0)
    heads = np.ascontiguousarray(rows[:, : HEAD.size]).view(np.int32)
    found = []
    for ordinal in np.flatnonzero(heads[:, 0]).tolist():
        form, image, layout, steps, height, width = heads[ordinal].tolist()
        row, at = rows[ordinal], HEAD_ROOM + layout
        start = at + steps
        found.append(
            Parcel(
                ordinal,
                form,
                row[start : start + image],
                ordinal * step + start,
                (height, width),
                Layout(*loads(row[HEAD_ROOM:at].tobytes())),
                row[at:start].tobytes(),
            )
        )
    return found


def pixels_in(slots: torch.Tensor, size: Size) -> torch.Tensor:
    """The planes of a batch's finished pixels; those of parcels are none."""
    height, width = size
    step = slots.stride(0)
    return slots.as_strided(
        (len(slots), 3, height, width), (step, height * width, width, 1), slots.storage_offset() + HEAD_ROOM
    )


class Room(NamedTuple):
    """What a station takes at once."""

    files: int
    """Encoded samples."""
    rows: int
    """Rows of the kernels' table: one for a sample, five where images are mixed."""
    image_bytes: int
    scratch_bytes: int


def tasks_of(parcels: Sequence[Parcel], room: Room) -> list[list[Parcel]]:
    """Cut into tasks of one form that fit."""
    found: list[list[Parcel]] = []
    for form in (DECODED, ENCODED):
        rows = images = scratch = 0
        task: list[Parcel] = []
        most = room.files if form == ENCODED else room.rows
        for parcel in parcels:
            if parcel.form != form:
                continue
            layout = parcel.layout
            rows += len(layout.rows)
            images += parcel.station_bytes
            scratch += padded(layout.scratch_bytes)
            if (
                not task
                or len(task) == most
                or rows > room.rows
                or images > room.image_bytes
                or scratch > room.scratch_bytes
            ):
                task = []
                found.append(task)
                rows, images, scratch = (
                    len(layout.rows),
                    parcel.station_bytes,
                    padded(layout.scratch_bytes),
                )
            task.append(parcel)
    return found


def left(parcel: Parcel) -> Any:
    """The image of a decoded parcel, for the CPU."""
    return parcel.image.reshape(*parcel.size, 3)
