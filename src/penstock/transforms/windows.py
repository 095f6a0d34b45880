"""Find the part of an image that each step of a program needs, from the last step back: the rest is neither decoded nor changed.

Rule 1: the result is the same, pixel for pixel. A step that reads the whole image, or is unknown, needs all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from penstock.transforms.steps import TABLES, Code, Interpolation, Size, Step, size_after

POINTWISE = TABLES | {Code.SATURATION, Code.HUE, Code.GRAY}
"""Steps whose result at a pixel depends only on that pixel."""


class Window(NamedTuple):
    top: int
    left: int
    height: int
    width: int

    @classmethod
    def whole(cls, size: Size) -> Window:
        return cls(0, 0, *size)


class WindowedImage(NamedTuple):
    """An image between two steps: its full size, and the part that is present."""

    size: Size
    window: Window

    @property
    def is_whole(self) -> bool:
        return self.window == (0, 0, *self.size)


def stages(program: Sequence[Step], size: Size, *, small: int = 0) -> list[WindowedImage]:
    """Return the image before each step and after the last; all of it if it never exceeds `small` pixels."""
    sizes = [size]
    for step in program:
        sizes.append(size_after(step, sizes[-1]))
    if small and all(height * width <= small for height, width in sizes):
        return [WindowedImage(each, Window(0, 0, *each)) for each in sizes]
    found = [WindowedImage(sizes[-1], Window.whole(sizes[-1]))]
    for step, before in zip(reversed(program), reversed(sizes[:-1]), strict=True):
        found.append(WindowedImage(before, needed(step, before, found[-1].window)))
    found.reverse()
    return found


def needed(step: Step, size: Size, window: Window) -> Window:
    """Return the part of an image of `size` that a step needs to make a window of its result."""
    code, args = step
    top, left, height, width = window
    if code in POINTWISE:
        return window
    if code is Code.CROP:
        if is_inside(args, size):
            return Window(args[0] + top, args[1] + left, height, width)
    elif code is Code.FLIP_H:
        return Window(top, size[1] - left - width, height, width)
    elif code is Code.FLIP_V:
        return Window(size[0] - top - height, left, height, width)
    elif code is Code.SHARPNESS:
        return around(window, 1, size)
    elif code is Code.AFFINE and args[6] == Interpolation.NEAREST:
        return under(args[:6], size, window)
    return Window.whole(size)


def is_inside(place: Sequence[int], size: Size) -> bool:
    top, left, height, width = place
    return top >= 0 and left >= 0 and top + height <= size[0] and left + width <= size[1]


def is_resized_part(program: Sequence[Step], size: Size, *, alone: bool = False) -> bool:
    """Whether a program begins with a crop inside the image and a resize. `alone`: nothing follows but perhaps a horizontal flip."""
    if len(program) < 2 or program[0].code is not Code.CROP or program[1].code is not Code.RESIZE:
        return False
    if alone and not (len(program) == 2 or (len(program) == 3 and program[2].code is Code.FLIP_H)):
        return False
    return is_inside(program[0].args, size)


def around(window: Window, margin: int, size: Size) -> Window:
    """Grow a window by a margin, clipped to the image."""
    top, left = max(0, window.top - margin), max(0, window.left - margin)
    below, right = window.top + window.height + margin, window.left + window.width + margin
    return Window(top, left, min(size[0], below) - top, min(size[1], right) - left)


def under(matrix: Sequence[float], size: Size, window: Window) -> Window:
    """Return the source pixels of a window under an affine map, with one pixel to spare on each side for rounding."""
    a, b, c, d, e, f = matrix
    top, left, height, width = window
    corners = [(x, y) for x in (left, left + width) for y in (top, top + height)]
    columns, rows = zip(*((a * x + b * y + c, d * x + e * y + f) for x, y in corners), strict=True)
    first, last = max(0, math.floor(min(columns)) - 1), min(size[1], math.ceil(max(columns)) + 1)
    above, below = max(0, math.floor(min(rows)) - 1), min(size[0], math.ceil(max(rows)) + 1)
    if first >= last or above >= below:
        return Window(0, 0, 1, 1)  # all fill, but an image has at least one pixel
    return Window(above, first, below - above, last - first)
