"""Two phases: draw every sample of a task, then make pixels. Drawing stays in the core's cache, and crops of reused images are resized
(and normalised, if asked for) in one call.

Rule 1: a sample fails as it would without this, in sample order.
Rule 2: every byte written is final: a second worker may have written the same sample before, and training may be reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from penstock import accel
from penstock.dataset.seeding import company
from penstock.dataset.unfinished import Unfinished
from penstock.pipeline.begun import Begun
from penstock.pipeline.chain import shape_of
from penstock.pipeline.decode import Image
from penstock.transforms.cpu import goes_down_first
from penstock.transforms.steps import Interpolation, Step
from penstock.transforms.tail import Tail
from penstock.transforms.windows import is_resized_part

NO_MARK = 0, 0


class Drawing(Protocol):
    """Draws samples and makes their pixels: a staged dataset."""

    def naming(self, index: int) -> AbstractContextManager[None]:
        """A context for the work on one sample."""

    def begun(self, index: int) -> Begun: ...
    def pixels(self, begun: Begun) -> Image: ...


class Drawn(NamedTuple):
    """A sample and the slot for its pixels."""

    ordinal: int
    sample: int
    begun: Begun
    slot: torch.Tensor


class Form(Protocol):
    """How samples are written to their slots."""

    dtype: torch.dtype
    by_parts: bool
    """Whether `accel.finish` can write them."""
    numbers: int
    """Address of `accel.normal`'s numbers; 0 keeps pixels as they are."""
    divides: bool

    def shape(self, begun: Begun) -> tuple[int, ...]:
        """Return the shape of a sample's slot; refuse a sample that does not fit the batch."""

    def begin(self, slot: torch.Tensor) -> int:
        """Write what precedes the values in a slot and return the address of the values; 0 if `accel.finish` cannot write them."""

    def write(self, pixels: Image, slot: torch.Tensor) -> None:
        """Write a finished sample."""


class AsTensor:
    """Channels x height x width, as the chain's tail makes it."""

    def __init__(self, tail: Tail) -> None:
        self._tail, self.dtype, self.divides = tail, tail.dtype, tail.scale == "divide"
        self._numbers = tail.numbers()
        self.numbers = 0 if self._numbers is None else accel.pointer(self._numbers)
        self.by_parts = self._numbers is not None

    def shape(self, begun: Begun) -> tuple[int, ...]:
        return shape_of(begun.image, begun.program)

    def begin(self, slot: torch.Tensor) -> int:
        return slot.data_ptr() if slot.is_contiguous() else 0

    def write(self, pixels: Image, slot: torch.Tensor) -> None:
        if (pixels.shape[2], *pixels.shape[:2]) != tuple(slot.shape):
            raise RuntimeError(f"a sample has {pixels.shape} pixels and not, as it said, {tuple(slot.shape)}")
        self._tail.finish(pixels, slot)


class Deferred:
    """The deferred samples of one task."""

    def __init__(self, dataset: Drawing, tail: Tail, form: Form | None = None) -> None:
        """`form`: how samples are written; by default as their chain's tail does."""
        self._dataset, self._form = dataset, form or AsTensor(tail)
        self._by_parts = self._form.by_parts and accel.compiled() is not None
        self._together: list[tuple[Drawn, bytes]] = []
        """Crops to finish in one call, each with its packed row."""
        self._alone: list[Drawn] = []

    def sample(self, index: int) -> tuple[Unfinished, Any]:
        """Draw a sample. Writing it only records the slot for its pixels."""
        with self._dataset.naming(index):
            begun = self._dataset.begun(index)
            shape = self._form.shape(begun)
        return Unfinished(self._form.dtype, shape, partial(self._note, index, begun)), begun.target

    def rest(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """Yield the remaining work, each with the first sample of its batch; each is released when the next is requested."""
        if self._together:
            yield self._together[0][0].ordinal, self._finish_together
        self._alone.sort(key=lambda drawn: -drawn.ordinal)
        while self._alone:
            drawn = self._alone.pop()
            yield drawn.ordinal, partial(self._finish, drawn)

    def _note(self, index: int, begun: Begun, slot: torch.Tensor) -> None:
        here = company()
        drawn = Drawn(0 if here is None else here.ordinal, index, begun, slot)
        row = self._row(begun, slot)
        if row is None:
            self._alone.append(drawn)
        else:
            self._together.append((drawn, row))

    def _row(self, begun: Begun, slot: torch.Tensor) -> bytes | None:
        """Pack a sample that is only a resized crop as `accel.PART`; else None."""
        part = resized_part(begun.program, begun.image) if self._by_parts else None
        address = 0 if part is None else self._form.begin(slot)
        if part is None or not address:
            return None
        place, sizes, ways = part
        goes = address, self._form.numbers
        return accel.PART.pack(*place, *self._mark(begun), *goes, *sizes, *ways, self._form.divides)

    def _mark(self, begun: Begun) -> tuple[int, int]:  # noqa: ARG002 - others need it
        """Return address and value of a number that changes if the image may have changed; none if the image is the sample's own."""
        return NO_MARK

    def _finish_together(self) -> None:
        """Finish the packed crops. Those overwritten meanwhile are made again one by one."""
        gone = accel.finish([row for _, row in self._together])
        self._alone += [self._together[at][0] for at in gone]
        self._together.clear()

    def _finish(self, drawn: Drawn) -> None:
        _, index, begun, slot = drawn
        with self._dataset.naming(index):
            self._write(begun, slot)

    def _write(self, begun: Begun, slot: torch.Tensor) -> None:
        self._form.write(self._dataset.pixels(begun), slot)


Part = tuple[tuple[int, int], tuple[int, int, int, int], tuple[bool, bool, bool]]
"""A crop of a three-channel image in memory: address and stride; old and new size; whether cubic, down first, mirrored."""


def resized_part(program: Sequence[Step], image: Any) -> Part | None:
    """Return the crop if a program only resizes one, as most programs after reuse, and the compiled loops support it; else None."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        return None
    if not is_resized_part(program, image.shape[:2], alone=True) or not accel.fits(image):
        return None
    top, left, *old = program[0].args
    rows, columns, way, antialias, *box = program[1].args
    if box or not antialias or way not in (Interpolation.BILINEAR, Interpolation.BICUBIC):
        return None
    before, after = (old[0], old[1]), (rows, columns)
    if before == after or min(*before, *after) < 1 or max(*before, *after) > accel.MOST:
        return None
    stride = image.strides[0]
    address = accel.pointer(image) + top * stride + 3 * left
    ways = way == Interpolation.BICUBIC, goes_down_first(before, after), len(program) == 3
    return (address, stride), (*before, *after), ways
