"""A sample's slot in a batch that workers and the GPU make together: a head, then pixels or the GPU's input for them.

The head names the sample's form: FINISHED pixels (but for their order and the tail); DECODED pixels, as much as the program needs; the ENCODED
file. With samples on the device: RESIDENT, only a place there; KEPT, a place and all pixels, which go there. All but FINISHED ones carry the rows
for the kernels, and the same as steps for the CPU.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from ctypes import memmove
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.accel import pointer
from penstock.kernels.layout import ProgramLayout, interleaved, lay_out
from penstock.kernels.table import Pixels, Rows, Sample, rows_of
from penstock.reuse.stores.device import DevicePlace, Places
from penstock.transforms.steps import Code, Program, Size, Step
from penstock.wire.pickles import dumps_local, dumps_plain, loads, loads_plain

FINISHED, ENCODED, DECODED, RESIDENT, KEPT = range(5)
HEAD = struct.Struct("<12i")
"""Form; bytes of the image, of the rows, of the steps; height and width of the image; the batch's entry (`requests`); then, for the usual layout of
one row: rows, statistics slots, rounds, bytes of scratch and of the source."""
NOTHING_ELSE = (0,) * 5
HEAD_ROOM = 64
"""Bytes before a slot's contents: pixels begin on a cache line."""
BESIDE = 4096
"""Estimated bytes of a GPU sample beside its image."""
PADDED = 256
"""Alignment of images and scratch."""
FEW = 64
"""Most samples with pixels, at most a quarter of their batch, that are copied one by one."""
PLACE = struct.Struct("<4q")
"""A place on the device (`reuse.stores.device`), behind the steps, if any."""
Bytes = NDArray[np.uint8]
NO_PIXELS: Bytes = np.zeros(0, np.uint8)


def slot_bytes(size: Size, room: int) -> int:
    """Return a slot's size; it holds at least the pixels of a sample."""
    return int(padded(HEAD_ROOM + max(3 * size[0] * size[1], room)))


def padded(nbytes: Any) -> Any:
    """Round bytes up to PADDED; also for arrays."""
    return -(-nbytes // PADDED) * PADDED


def write_pixels(pixels: Bytes, entry: int, slot: torch.Tensor) -> None:
    """Write by addresses: arrays around a slot would cost as much again as the copy."""
    height, width = pixels.shape[:2]
    if pixels.dtype != np.uint8 or slot.nbytes < HEAD_ROOM + pixels.nbytes:
        raise ValueError(f"{height} x {width} {pixels.dtype} pixels do not fit a slot of {slot.nbytes} bytes")
    flat = np.ascontiguousarray(pixels)
    write_head((height, width), entry, slot)
    memmove(slot.data_ptr() + HEAD_ROOM, pointer(flat), flat.nbytes)


def write_head(size: Size, entry: int, slot: torch.Tensor) -> None:
    """Write the head of finished pixels, which follow."""
    memmove(slot.data_ptr(), HEAD.pack(FINISHED, 0, 0, 0, *size, entry, *NOTHING_ELSE), HEAD.size)


class Packing(NamedTuple):
    """A sample for the GPU, not yet written."""

    head: bytes
    rows: bytes
    steps: bytes
    image: Bytes
    """Its rows need not be contiguous."""
    place: bytes = b""

    @classmethod
    def of(
        cls, form: int, image: Bytes, size: Size, layout: ProgramLayout, program: Program, entry: int = 0
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
        """Includes a place, even if it has none."""
        return HEAD_ROOM + len(self.rows) + len(self.steps) + PLACE.size + self.image.nbytes

    def at(self, place: DevicePlace) -> Packing:
        return self._replace(place=PLACE.pack(*place))

    def write(self, slot: torch.Tensor) -> None:
        out = slot.numpy()
        out[: HEAD.size] = memoryview(self.head)
        at = HEAD_ROOM
        for part in (self.rows, self.steps, self.place):
            out[at : at + len(part)] = memoryview(part)
            at += len(part)
        out[at : at + self.image.nbytes].reshape(self.image.shape)[...] = self.image


class GpuSample(NamedTuple):
    """One sample of a batch, for the CPU."""

    ordinal: int
    form: int
    size: Size
    """Of the image."""
    image: Bytes
    steps: bytes
    place: DevicePlace | None = None

    @property
    def program(self) -> Program:
        return [Step(Code(code), args) for code, args in loads(self.steps)]


class Contents:
    """Contents of a batch of slots, as columns indexed by sample. Vectorized where possible: training's thread waits meanwhile."""

    def __init__(self, slots: torch.Tensor, size: Size) -> None:
        self.slots, self.slot = slots, slots.stride(0)
        self._bytes = slots.numpy()
        heads = np.ascontiguousarray(self._bytes[:, : HEAD.size]).view(np.int32)
        self.entry = int(heads[0, 6])
        """The batch's entry in `requests`."""
        columns = heads.T.astype(np.int64)
        self.forms, self.nbytes, self._lengths, self._steps, self.heights, self.widths = columns[:6]
        self.rows, self.statistics, self.rounds, self.scratch, self.read = columns[7:]
        finished = self.forms == FINISHED
        self.whole = nothing_to_do = as_it_is(size)
        self.nbytes[finished] = 3 * size[0] * size[1]
        self.rows[finished], self.rounds[finished] = 1, nothing_to_do.rounds
        self.scratch[finished], self.read[finished] = nothing_to_do.scratch_bytes, nothing_to_do.source_bytes
        self.files, self.kept = self.forms == ENCODED, self.forms >= RESIDENT
        self._sent = np.where(self.forms == RESIDENT, 0, self.nbytes)
        self.nbytes[self.kept] = (3 * self.heights * self.widths)[self.kept]
        self.offsets = HEAD_ROOM + self._lengths + self._steps + PLACE.size * self.kept
        """Offset of the image in its slot."""
        self.pixel_bytes = padded(3 * self.heights * self.widths)
        """Padded size of the decoded image."""

    def __len__(self) -> int:
        return len(self.forms)

    @property
    def has_gpu_samples(self) -> bool:
        return bool(self.forms.any())

    def count(self, form: int) -> int:
        return int((self.forms == form).sum())

    def layout(self, ordinal: int) -> ProgramLayout:
        """Return the layout of a sample with several rows."""
        return ProgramLayout(
            *loads_plain(self._bytes[ordinal, HEAD_ROOM : HEAD_ROOM + self._lengths[ordinal]].tobytes())
        )

    def row_data(self, ordinals: Sequence[int]) -> list[Any]:
        """Return each sample's row, in place, or that of finished pixels. Only for samples with one row."""
        view, slot, whole = self._bytes.reshape(-1).data, self.slot, self.whole.rows[0]
        lengths = self._lengths[ordinals].tolist()
        return [
            view[at : at + length] if length else whole
            for at, length in zip((np.asarray(ordinals) * slot + HEAD_ROOM).tolist(), lengths, strict=True)
        ]

    def size(self, ordinal: int) -> Size:
        return int(self.heights[ordinal]), int(self.widths[ordinal])

    def places(self, ordinals: Sequence[int]) -> Places:
        """Return the device places of stored samples."""
        which = np.asarray(ordinals, np.int64)
        columns = self.offsets[which, None] + np.arange(-PLACE.size, 0)
        return np.ascontiguousarray(self._bytes[which[:, None], columns]).view(np.int64)

    def pixels(self, ordinal: int) -> torch.Tensor:
        """Return the bytes of an image, in its slot."""
        at = int(self.offsets[ordinal])
        return self.slots[ordinal, at : at + int(self._sent[ordinal])]

    def gpu_sample(self, ordinal: int) -> GpuSample:
        row, at = self._bytes[ordinal], int(self.offsets[ordinal])
        before = at - PLACE.size * int(self.kept[ordinal])
        return GpuSample(
            ordinal,
            int(self.forms[ordinal]),
            self.size(ordinal),
            row[at : at + int(self._sent[ordinal])],
            row[before - int(self._steps[ordinal]) : before].tobytes(),
            DevicePlace(*self.places([ordinal])[0].tolist()) if self.kept[ordinal] else None,
        )


class StationTask(NamedTuple):
    """Samples that a station takes at once: all files, all stored on the device, or neither."""

    contents: Contents
    ordinals: list[int]
    singly: bool = False
    """Copy their pixels one by one, without the gaps between them."""

    @property
    def files(self) -> bool:
        return bool(self.contents.files[self.ordinals[0]])

    @property
    def kept(self) -> bool:
        return bool(self.contents.kept[self.ordinals[0]])

    def gpu_samples(self) -> Iterator[GpuSample]:
        return map(self.contents.gpu_sample, self.ordinals)

    def halves(self) -> tuple[StationTask, StationTask]:
        half = len(self.ordinals) // 2
        return self._replace(ordinals=self.ordinals[:half]), self._replace(ordinals=self.ordinals[half:])

    def table(self, images: Any) -> Rows:
        """Return the kernels' rows for images at these addresses."""
        contents, ordinals = self.contents, self.ordinals
        if (contents.rows[ordinals] != 1).any():
            return rows_of([*self.samples(images)])
        if (contents.nbytes[ordinals] < contents.read[ordinals]).any() and not self.files:
            raise ValueError("an image has fewer bytes than its program reads")
        scratch = padded(contents.scratch[ordinals])
        statistics = contents.statistics[ordinals]
        return Rows(
            contents.row_data(ordinals),
            images.tolist(),
            ordinals,
            (np.cumsum(scratch) - scratch).tolist(),
            (np.cumsum(statistics) - statistics).tolist(),
            int(contents.rounds[ordinals].max()),
            int(scratch.sum()),
            int(statistics.sum()),
        )

    def samples(self, images: Any) -> Iterator[Sample]:
        contents = self.contents
        for ordinal, address in zip(self.ordinals, images.tolist(), strict=True):
            pixels = int((contents.pixel_bytes if self.files else contents.nbytes)[ordinal])
            if contents.rows[ordinal] == 1:
                one = contents.statistics[ordinal], contents.rounds[ordinal], contents.scratch[ordinal]
                places, rounds, scratch = map(int, one)
                read, size = int(contents.read[ordinal]), contents.whole.size
                data = bytes(contents.row_data([ordinal])[0])
                layout = ProgramLayout((data,), (places,), rounds, scratch, read, size)
            else:
                layout = contents.layout(ordinal)
            yield Sample(layout, Pixels(address, pixels), ordinal)


@cache
def as_it_is(size: Size) -> ProgramLayout:
    """Return the layout of pixels that only lack their tail."""
    return lay_out([], size, interleaved(size))


def pixels_in(slots: torch.Tensor, size: Size) -> torch.Tensor:
    """View a batch's finished pixels as samples x channels x height x width; for other samples the view is meaningless."""
    height, width = size
    down, across, channel = interleaved(size)
    strides = slots.stride(0), channel, down, across
    return slots.as_strided((len(slots), 3, height, width), strides, slots.storage_offset() + HEAD_ROOM)


class StationRoom(NamedTuple):
    """What a station takes at once."""

    files: int
    """Encoded samples."""
    rows: int
    """Rows of the kernels' table: one for a sample, five where images are mixed."""
    image_bytes: int
    scratch_bytes: int


def tasks_of(contents: Contents, room: StationRoom) -> list[StationTask]:
    """Split a batch into tasks of files, of stored samples and of pixels that fit. Files count with all their pixels. Pixels are copied with the
    slots between them, unless they are few. Stored samples take no room."""
    ordinals = np.arange(len(contents))
    plain = ordinals[~contents.files & ~contents.kept]
    singly = are_few(contents, plain)
    pixels = padded(contents.nbytes) if singly else np.full(len(contents), contents.slot)
    return [
        *cut(contents, plain, room, pixels, gaps=not singly, most=room.rows, singly=singly),
        *cut(contents, ordinals[contents.kept], room, 0 * pixels, gaps=False, most=room.rows),
        *cut(contents, ordinals[contents.files], room, contents.pixel_bytes, gaps=False, most=room.files),
    ]


def are_few(contents: Contents, plain: NDArray[np.int64]) -> bool:
    """Return whether single copies cost less than one with all gaps. A copy costs a thread microseconds, whatever its size."""
    if not 0 < len(plain) <= min(FEW, len(contents) // 4):
        return False
    span = (plain[-1] + 1 - plain[0]) * contents.slot
    return bool(4 * contents.nbytes[plain].sum() < span)


def cut(
    contents: Contents,
    which: NDArray[np.int64],
    room: StationRoom,
    nbytes: Any,
    *,
    gaps: bool,
    most: int,
    singly: bool = False,
) -> list[StationTask]:
    """Split samples into tasks, in order, at most `most` each. `nbytes`: room each takes. `gaps`: samples between two of them take as much."""
    found: list[StationTask] = []
    rows = images = scratch = begin = 0
    counts, needs, ordinals = contents.rows.tolist(), padded(contents.scratch).tolist(), which.tolist()
    own = nbytes.tolist()
    for at, ordinal in enumerate(ordinals):
        rows += counts[ordinal]
        scratch += needs[ordinal]
        images += own[ordinal] * (ordinal - ordinals[at - 1] if gaps and at > begin else 1)
        fits = rows <= room.rows and images <= room.image_bytes and scratch <= room.scratch_bytes
        if at > begin and not (fits and at - begin < most):
            found.append(StationTask(contents, ordinals[begin:at], singly))
            begin, rows, scratch, images = at, counts[ordinal], needs[ordinal], own[ordinal]
    if ordinals:
        found.append(StationTask(contents, ordinals[begin:], singly))
    return found


def left(sample: GpuSample) -> tuple[Program, Bytes]:
    """Return a sample's remaining program and its pixels, for the CPU."""
    program = [] if sample.form == FINISHED else sample.program
    return program, sample.image.reshape(*sample.size, 3)
