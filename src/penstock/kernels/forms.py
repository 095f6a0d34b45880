"""Steps as numbers: which of them the kernels support, their colours, filters and codes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.kernels import words as w
from penstock.transforms.augment import steps_of
from penstock.transforms.steps import Code, Interpolation, Program, Size, Step, is_shift

FIXED_LIMIT = 32768.0
"""Coordinates beyond it exceed 16.16 fixed point; there Pillow computes in floats."""

MODES = {"constant": w.CONSTANT, "edge": w.EDGE, "reflect": w.REFLECT, "symmetric": w.SYMMETRIC}
FILTERS = {
    Interpolation.BILINEAR: (w.TRIANGLE, 1.0),
    Interpolation.BICUBIC: (w.CUBIC, 2.0),
    Interpolation.LANCZOS: (w.LANCZOS, 3.0),
}
KINDS = {
    Code.CONTRAST: (w.CONTRAST, w.GREYS),
    Code.AUTOCONTRAST: (w.AUTOCONTRAST, w.LEVELS),
    Code.EQUALIZE: (w.EQUALIZE, w.LEVELS),
}


AFFINE_WAYS = (Interpolation.NEAREST, Interpolation.BILINEAR)
LIMITED = frozenset({Code.CALL, Code.RESIZE, Code.AFFINE, Code.ERASE, Code.GRAY, Code.MIX})
"""Steps with some forms that have no kernel."""


def supported(step: Step) -> str:
    """Return why the kernels cannot do a step; "" if they can."""
    code, args = step
    match code:
        case Code.CALL:
            return "a function in Python runs on the CPU"
        case Code.RESIZE if args[2] == Interpolation.BICUBIC and not args[3]:
            return "bicubic resampling without antialiasing has no kernel"
        case Code.AFFINE if args[6] not in AFFINE_WAYS and not is_shift(args):
            return f"affine maps with interpolation {Interpolation(args[6]).name} have no kernel"
        case Code.ERASE if args[4] is None:
            return "the noise of RandomErasing is drawn on the CPU"
        case Code.GRAY if args[0] not in (1, 3):
            return f"grey images of {args[0]} channels have no kernel"
        case Code.MIX:
            return next((why for _, steps in args[1] for inner in steps if (why := supported(inner))), "")
    return ""


def tensor_steps(ops: Sequence[tuple[str, float]], size: Size, version: str, interpolation: int) -> Program:
    """Return a chain of MIX_TENSORS as steps. Pillow's forms are within a level of those for tensors, except in interpolation: there None as colour
    means an image on black."""
    found: Program = []
    for name, magnitude in ops:
        if name == "Solarize" and version == "v1":  # v1 gives the level, not a share of white
            found.append(Step(Code.SOLARIZE, (magnitude,)))
            continue
        for code, args in steps_of(name, magnitude, size, interpolation, 0):
            between = code is Code.AFFINE and interpolation == Interpolation.BILINEAR
            found.append(Step(code, (*args[:7], None) if between else args))
    return found


class Taps(NamedTuple):
    """Weighted sums along an axis."""

    axis: int
    filter: int
    taps: int
    positions: int
    numbers: tuple[float, ...]


def pillow_taps(axis: int, kind: int, reach: float, start: float, span: float, positions: int) -> Taps:
    """Return the numbers from which Pillow computes its weights."""
    scale = span / positions
    wide = max(scale, 1.0)
    support = reach * wide
    taps = math.ceil(support) * 2 + 1
    return Taps(axis, kind, taps, positions, (start, scale, support, 1.0 / wide))


def blur_sigma(sigma: float, taps: int) -> float:
    """Return OpenCV's default if none is given."""
    return sigma if sigma > 0 else 0.3 * ((taps - 1) * 0.5 - 1) + 0.8


def fits(matrix: tuple[float, ...], size: Size) -> bool:
    """Return whether the coordinates of an image of `size` fit into fixed point."""
    a, b, c, d, e, f = matrix
    corners = [(a * x + b * y + c, d * x + e * y + f) for x in (0, size[1]) for y in (0, size[0])]
    return all(abs(value) < FIXED_LIMIT for corner in corners for value in corner)


def fixed_point(matrix: tuple[float, ...]) -> tuple[int, ...]:
    """Return a map of pixel centres in 16.16 fixed point, rounded as Pillow does."""
    a, b, c, d, e, f = matrix
    moved = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return tuple([math.floor(number * 65536.0 + 0.5) for number in moved])


def packed(channels: Sequence[int]) -> int:
    red, green, blue = channels if len(channels) == 3 else (channels[0],) * 3
    return red | green << 8 | blue << 16


def colour(fill: Any) -> int:
    """Return the packed colour of uint8 pixels set to `fill`; values wrap."""
    return packed([int(value) & 0xFF for value in (fill if isinstance(fill, (tuple, list)) else (fill,))])


def saturated(fill: Any) -> int:
    """Return it rounded and saturated as OpenCV does."""
    values = fill if isinstance(fill, (tuple, list)) else (fill,)
    return packed([min(255, max(0, round(value))) for value in values])


CHANGES: dict[Code, Any] = {
    Code.BRIGHTNESS: lambda factor: (w.BLEND, 0, factor),
    Code.POSTERIZE: lambda bits: (w.POSTERIZE, 0xFF << (8 - bits) & 0xFF),
    Code.SOLARIZE: lambda threshold: (w.SOLARIZE, min(256, max(0, math.ceil(threshold)))),
    Code.INVERT: lambda: (w.INVERT,),
    Code.SATURATION: lambda factor: (w.SATURATION, 0, factor),
    Code.HUE: lambda shift: (w.HUE, int(shift * 255)),
    Code.GRAY: lambda _: (w.GRAY,),
}
