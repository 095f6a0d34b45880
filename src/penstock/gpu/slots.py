"""A sample's place in a batch that two lanes make: pixels, or a parcel of what a GPU makes them of.

A slot begins with a head that says which of three forms the sample has come to: FINISHED pixels, planes as the batch wants them but for the
tail; DECODED pixels, of what the program needs of the image; or the ENCODED file. The latter two are parcels: with them goes what the
kernels have to do, and the same as steps, for whoever must do it without them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.kernels.layout import Layout, lay_out
from penstock.lanes.pickles import dumps_local, dumps_plain, loads, loads_plain
from penstock.transforms.steps import Code, Program, Size, Step
from penstock.transforms.tail import Tail

FINISHED, ENCODED, DECODED = range(3)
HEAD = struct.Struct("<12i")
"""The form; bytes of the image, of what the kernels do, of the steps; height and width of the image; the batch's entry (`wishes`); of a
layout with one row, which nearly all have, what is in it beside that: rows, places for statistics, rounds, bytes of scratch and of the source."""
ENTRY = 6
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


def write_pixels(pixels: Bytes, entry: int, slot: torch.Tensor) -> None:
    height, width = pixels.shape[:2]
    slot.numpy()[: HEAD.size] = memoryview(HEAD.pack(FINISHED, 0, 0, 0, height, width, entry, *(0,) * 5))
    Tail().finish(pixels, slot[HEAD_ROOM : HEAD_ROOM + 3 * height * width].view(3, height, width))


class Packing(NamedTuple):
    """A parcel that is yet to be written."""

    head: bytes
    rows: bytes
    steps: bytes
    image: Bytes

    @classmethod
    def of(
        cls, form: int, image: Bytes, size: Size, layout: Layout, program: Program, entry: int = 0
    ) -> Packing:
        steps = dumps_local([(int(code), args) for code, args in program])
        rows = layout.rows[0] if len(layout.rows) == 1 else dumps_plain(tuple(layout))
        head = HEAD.pack(
            *(form, image.nbytes, len(rows), len(steps), *size, entry),
            *(len(layout.rows), layout.slots[0], layout.rounds, layout.scratch_bytes, layout.source_bytes),
        )
        return cls(head, rows, steps, image)

    @property
    def nbytes(self) -> int:
        return HEAD_ROOM + len(self.rows) + len(self.steps) + self.image.nbytes

    def write(self, slot: torch.Tensor) -> None:
        out = slot.numpy()
        out[: HEAD.size] = memoryview(self.head)
        at = HEAD_ROOM
        for part in (self.rows, self.steps):
            out[at : at + len(part)] = memoryview(part)
            at += len(part)
        out[at : at + self.image.nbytes] = self.image.reshape(-1)


class Parcel(NamedTuple):
    """What the GPU lane is given of a sample; the image lies in the batch's memory."""

    ordinal: int
    form: int
    slot: Bytes
    offset: int
    """Of the image, from the slot's first byte on."""
    nbytes: int
    """Of the image."""
    size: Size
    layout: Layout
    """What the kernels do."""
    steps: int = 0
    """Bytes of the same as steps, which lie before the image."""

    @property
    def image(self) -> Bytes:
        return self.slot[self.offset : self.offset + self.nbytes]

    @property
    def program(self) -> Program:
        return [
            Step(Code(code), args)
            for code, args in loads(self.slot[self.offset - self.steps : self.offset].tobytes())
        ]

    @property
    def pixel_bytes(self) -> int:
        """Of the image when it is decoded, with what lies between two of them."""
        return padded(3 * self.size[0] * self.size[1])


def entry_of(slots: torch.Tensor) -> int:
    """Of the batch, among those that are under way."""
    return int(slots[0, : HEAD.size].view(torch.int32)[ENTRY])


def unpacked(slots: torch.Tensor, size: Size) -> list[Parcel]:
    """The parcels in a batch, views of it; where there are any, its finished samples are parcels too, with nothing to do but their
    tail: so a batch has no need of a place on the device beside its result. Training's thread waits meanwhile: this must be quick."""
    rows = slots.numpy()
    heads = np.ascontiguousarray(rows[:, : HEAD.size]).view(np.int32)
    if not heads[:, 0].any():
        return []
    nothing_to_do, pixels = as_it_is(size), 3 * size[0] * size[1]
    found = []
    for ordinal, (slot, head) in enumerate(zip(rows, heads.tolist(), strict=True)):
        form, nbytes, length, steps, height, width, _, count, places, rounds, scratch, source = head
        if form == FINISHED:
            found.append(Parcel(ordinal, form, slot, HEAD_ROOM, pixels, size, nothing_to_do))
            continue
        at = HEAD_ROOM + length
        data = slot[HEAD_ROOM:at].tobytes()
        layout = (
            Layout((data,), (places,), rounds, scratch, source, size)
            if count == 1
            else Layout(*loads_plain(data))
        )
        found.append(Parcel(ordinal, form, slot, at + steps, nbytes, (height, width), layout, steps))
    return found


@cache
def as_it_is(size: Size) -> Layout:
    """What the kernels do to planes that are finished but for their tail."""
    return lay_out([], size)


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


def tasks_of(parcels: Sequence[Parcel], slot: int, room: Room) -> list[list[Parcel]]:
    """Cut into tasks of files, and of pixels, that fit; those of pixels are copied as the slots lie, from the first to the last."""
    files = [parcel for parcel in parcels if parcel.form == ENCODED]
    pixels = [parcel for parcel in parcels if parcel.form != ENCODED]
    return [
        *cut(pixels, lambda first, last: (last.ordinal - first.ordinal + 1) * slot, room.rows, room),
        *cut(files, None, room.files, room),
    ]


def cut(
    parcels: Sequence[Parcel], spanned: Callable[[Parcel, Parcel], int] | None, most: int, room: Room
) -> list[list[Parcel]]:
    """Tasks of at most so many, in order. `spanned`: bytes from one to another; without it each counts with its pixels."""
    found: list[list[Parcel]] = []
    rows = images = scratch = 0
    for parcel in parcels:
        layout = parcel.layout
        rows += len(layout.rows)
        scratch += padded(layout.scratch_bytes)
        images = (
            images + parcel.pixel_bytes if spanned is None else spanned(found[-1][0], parcel) if found else 0
        )
        fits = rows <= room.rows and images <= room.image_bytes and scratch <= room.scratch_bytes
        if found and fits and len(found[-1]) < most:
            found[-1].append(parcel)
        else:
            found.append([parcel])
            rows, scratch = len(layout.rows), padded(layout.scratch_bytes)
            images = parcel.pixel_bytes if spanned is None else 0
    return found


def left(parcel: Parcel) -> tuple[Program, Bytes]:
    """What is still to be done to the image of a parcel that has pixels, and those, for the CPU."""
    if parcel.form == FINISHED:
        return [], parcel.image.reshape(3, *parcel.size).transpose(1, 2, 0)
    return parcel.program, parcel.image.reshape(*parcel.size, 3)
