"""Crops that are only resized, and perhaps flipped: how most programs end after reuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock import accel
from penstock.transforms.cpu import goes_down_first
from penstock.transforms.steps import Interpolation, Size, Step
from penstock.transforms.windows import is_resized_part


class Part(NamedTuple):
    """A crop of a three-channel image in memory, as `accel.finish` takes it."""

    address: int
    stride: int
    old: Size
    new: Size
    cubic: bool
    down_first: bool
    mirrored: bool


def part_of(program: Sequence[Step], image: Any) -> Part | None:
    """Return the crop if a program only resizes one and the compiled loops support it; else None."""
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
    stride, down = image.strides[0], goes_down_first(before, after)
    address = accel.pointer(image) + top * stride + 3 * left
    return Part(address, stride, before, after, way == Interpolation.BICUBIC, down, len(program) == 3)
