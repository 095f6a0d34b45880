"""The ops of augmentation policies, by name and magnitude, as torchvision's v2 applies them to images.

Magnitudes are those of the papers: a fraction for shear and brightness, pixels for translation, degrees for rotation, bits for Posterize, a
fraction of white for Solarize.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.transforms.steps import Code, Program, Size, Step

WHITE = 255.0


class Space(NamedTuple):
    """The magnitudes of one op: `least` to `most` in equal steps, which may depend on the image's (height, width)."""

    least: Callable[[Size], float] | float
    most: Callable[[Size], float] | float
    signed: bool = False
    whole: bool = False

    def magnitude(self, at: int, bins: int, size: Size) -> float:
        least = self.least(size) if callable(self.least) else self.least
        most = self.most(size) if callable(self.most) else self.most
        value = least + (most - least) * at / max(1, bins - 1)
        return float(round(value)) if self.whole else value


def same(high: float) -> Space:
    return Space(0.0, high, signed=True)


def spaces(
    *, shear: float, rotate: float, factor: float, across: Any, down: Any, bits: tuple[int, int]
) -> dict[str, Space | None]:
    """Return every op but Identity and Invert with its magnitudes; None if it has none."""
    return {
        "ShearX": same(shear),
        "ShearY": same(shear),
        "TranslateX": Space(0.0, across, signed=True),
        "TranslateY": Space(0.0, down, signed=True),
        "Rotate": same(rotate),
        "Brightness": same(factor),
        "Color": same(factor),
        "Contrast": same(factor),
        "Sharpness": same(factor),
        "Posterize": Space(float(bits[0]), float(bits[1]), whole=True),
        "Solarize": Space(1.0, 0.0),
        "AutoContrast": None,
        "Equalize": None,
    }


def steps_of(name: str, magnitude: float, size: Size, interpolation: int, fill: Any) -> Program:
    """Return the steps of one op of a policy."""
    if name == "Identity":
        return []
    if name in MATRICES:
        matrix = MATRICES[name](magnitude, size)
        if name == "Rotate" and magnitude % 360 == 0:
            return []
        return [Step(Code.AFFINE, (*matrix, interpolation, 0 if fill is None else fill))]
    if name in FACTORS:
        return [Step(FACTORS[name], (1.0 + magnitude,))]
    match name:
        case "Posterize":
            return [Step(Code.POSTERIZE, (int(magnitude),))]
        case "Solarize":
            return [Step(Code.SOLARIZE, (WHITE * magnitude,))]
    return [Step(PLAIN[name])]


Matrix = tuple[float, float, float, float, float, float]


def rotation(degrees: float, size: Size) -> Matrix:
    """Rotate about the image's centre, as Pillow computes it."""
    angle = -math.radians(degrees % 360.0)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = size[1] / 2.0, size[0] / 2.0
    return cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y


def shear_x(level: float, _: Size) -> Matrix:
    """Convert via degrees, as torchvision does: the last bit depends on it."""
    return 1.0, math.tan(math.radians(math.degrees(math.atan(level)))), 0.0, 0.0, 1.0, 0.0


def shear_y(level: float, _: Size) -> Matrix:
    angle = math.radians(math.degrees(math.atan(level)))
    return 1.0, 0.0, 0.0, math.sin(angle) / math.cos(angle), 1.0, 0.0


MATRICES: Mapping[str, Callable[[float, Size], Matrix]] = {
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": lambda pixels, _: (1.0, 0.0, float(-int(pixels)), 0.0, 1.0, 0.0),
    "TranslateY": lambda pixels, _: (1.0, 0.0, 0.0, 0.0, 1.0, float(-int(pixels))),
    "Rotate": rotation,
}
FACTORS: Mapping[str, Code] = {
    "Brightness": Code.BRIGHTNESS,
    "Color": Code.SATURATION,
    "Contrast": Code.CONTRAST,
    "Sharpness": Code.SHARPNESS,
}
PLAIN: Mapping[str, Code] = {
    "AutoContrast": Code.AUTOCONTRAST,
    "Equalize": Code.EQUALIZE,
    "Invert": Code.INVERT,
}
