"""Programs of steps: what happens to one sample's pixels, as data that any lane can run.

An op draws a program (`ops`); the CPU (`cpu`) or another lane runs it. A step is a code and plain numbers, so a program can be compared,
stored, sent to another machine or laid out in a table for a GPU.

Rule 1: a program is complete: running it draws nothing.
Rule 2: images are uint8, height x width x channels. Coordinates are pixels of the image before the step.
Rule 3: a new code needs a CPU form (`cpu.STEPS` or `tables`), torchvision's form (`samples.THEIRS`), and a kernel or a refusal
        (`kernels.forms.supported` takes an unknown code for supported).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

Size = tuple[int, int]
"""Height and width."""


class Interpolation(IntEnum):
    """PIL's numbers."""

    NEAREST = 0
    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3


class Code(IntEnum):
    # ---- geometry: masks and boxes follow
    CROP = 1
    """top, left, height, width; 0 outside the image"""
    RESIZE = 2
    """height, width, interpolation, antialias; optionally the source box (top, left, height, width)"""
    FLIP_H = 3
    FLIP_V = 4
    PAD = 5
    """left, top, right, bottom, fill, mode"""
    AFFINE = 6
    """a, b, c, d, e, f (output pixel (x, y) comes from (ax + by + c, dx + ey + f)), interpolation, fill"""
    # ---- a fixed table for every pixel
    BRIGHTNESS = 16
    """factor"""
    POSTERIZE = 17
    """bits kept"""
    SOLARIZE = 18
    """threshold"""
    INVERT = 19
    # ---- a table that depends on the image
    CONTRAST = 24
    """factor"""
    AUTOCONTRAST = 25
    EQUALIZE = 26
    # ---- neighbouring pixels and channels
    SATURATION = 32
    """factor"""
    HUE = 33
    """shift in turns, -0.5 to 0.5"""
    GRAY = 34
    """channels of the result"""
    SHARPNESS = 35
    """factor"""
    BLUR = 36
    """kernel width, kernel height, sigma x, sigma y; optionally the version of torchvision's transforms to match"""
    ERASE = 37
    """top, left, height, width, value (a number per channel, or None: noise), noise seed"""
    MIX = 38
    """weight of the original image, then (weight, steps) of each chain"""
    MIX_TENSORS = 39
    """the same with torchvision's ops for tensors: weight of the original image, (weight, (name, magnitude) of each op) of each chain, version
    of torchvision's transforms, interpolation"""
    # ---- user code
    CALL = 64
    """function"""


class Step(NamedTuple):
    code: Code
    args: tuple[Any, ...] = ()


Program = list[Step]

GEOMETRIC = frozenset({Code.CROP, Code.RESIZE, Code.FLIP_H, Code.FLIP_V, Code.PAD, Code.AFFINE})
TABLES = frozenset({Code.BRIGHTNESS, Code.POSTERIZE, Code.SOLARIZE, Code.INVERT})
STATISTICS = frozenset({Code.CONTRAST, Code.AUTOCONTRAST, Code.EQUALIZE})
"""Steps that read the whole image before they change a pixel: no crop may move before them."""


def size_after(step: Step, size: Size) -> Size:
    code, args = step
    if code is Code.CROP:
        return args[2], args[3]
    if code is Code.RESIZE:
        return args[0], args[1]
    if code is Code.PAD:
        left, top, right, bottom = args[:4]
        return size[0] + top + bottom, size[1] + left + right
    return size


def is_shift(matrix: Sequence[Any]) -> bool:
    """Whether an affine map shifts by whole pixels, with nothing to interpolate."""
    a, b, c, d, e, f = matrix[:6]
    return (a, b, d, e) == (1, 0, 0, 1) and c == int(c) and f == int(f)


def program_channels(program: Sequence[Step], channels: int) -> int:
    for step in program:
        if step.code is Code.GRAY:
            channels = step.args[0]
    return channels


def program_size(program: Sequence[Step], size: Size) -> Size:
    for step in program:
        size = size_after(step, size)
    return size


Drawing = tuple[Callable[[Any, Size], Program], Any]
"""A function that draws a program for a size, and its argument: for example `op.draw` and random numbers."""


def drawn_in_row(drawings: Iterable[Drawing], size: Size) -> Program:
    """Join programs: each is drawn for the size that the previous ones leave, before the next is requested."""
    program: Program = []
    for draw, argument in drawings:
        steps = draw(argument, size)
        size = program_size(steps, size)
        program += steps
    return program
