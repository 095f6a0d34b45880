"""Image ops with the names, parameters and defaults of torchvision's v2. They draw programs and touch no pixel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Any

from penstock.errors import ConfigError
from penstock.transforms.base import Container, Op, RandomOp
from penstock.transforms.draws import Draws
from penstock.transforms.steps import Code, Interpolation, Program, Size, Step, program_size

BILINEAR, NEAREST = Interpolation.BILINEAR, Interpolation.NEAREST
Range = Sequence[float]


def two(value: int | Sequence[int], what: str) -> Size:
    """Return (height, width) from one number or two."""
    sides: Any = value
    if not isinstance(value, (tuple, list)):
        sides = tuple(value) if not isinstance(value, int) and isinstance(value, Iterable) else (value,)
    if len(sides) not in (1, 2) or not is_side(sides[0]) or not is_side(sides[-1]):
        raise ConfigError(f"{what} must be one number above 0, or (height, width), got {value!r}")
    return int(sides[0]), int(sides[-1])


def is_side(value: Any) -> bool:
    """Whether a value is a valid side. The usual type comes first, since every sample asks."""
    return (type(value) is int or isinstance(value, Integral)) and int(value) > 0


# ---- sizes and positions


@dataclass(frozen=True)
class Resize(Op):
    """Resize to (height, width), or the shorter side to `size` with the longer at most `max_size`; `size=None`: the longer to `max_size`."""

    size: int | Sequence[int] | None
    interpolation: int = BILINEAR
    max_size: int | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        given = self._given()
        if self.max_size is None and not given:
            raise ConfigError("Resize needs max_size when size is None")
        if self.max_size is not None and len(given) == 2:
            raise ConfigError(f"max_size limits the longer side, but size {self.size!r} gives both sides")
        if self.max_size is not None and self.max_size <= (given or (0,))[0]:
            side = f"the shorter side, size={self.size!r}" if given else "0"
            raise ConfigError(f"max_size must be above {side}, got {self.max_size}")

    def _given(self) -> tuple[int, ...]:
        """Return (shorter side,), (height, width) or ()."""
        if self.size is None:
            return ()
        return two(self.size, "size")[: len(self.size) if isinstance(self.size, Sized) else 1]

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return [Step(Code.RESIZE, (*self.target(size), int(self.interpolation), self.antialias))]

    def target(self, size: Size) -> Size:
        """Return the new size. A single number is the shorter side's; the longer keeps the aspect ratio, up to `max_size`."""
        given, short, long = self._given(), min(size), max(size)
        if len(given) == 2:
            return given[0], given[1]
        if not given:
            most = self.max_size or 0  # never 0: checked on construction
            new_short, new_long = int(most * short / long), most
        else:
            new_short, new_long = given[0], int(given[0] * long / short)
            if self.max_size is not None and new_long > self.max_size:
                new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        if new_short < 1:
            raise ValueError(
                f"Resize(max_size={self.max_size}) leaves no pixel of an image of {size[0]} x {size[1]}"
            )
        return (new_short, new_long) if size[0] <= size[1] else (new_long, new_short)


@dataclass(frozen=True)
class CenterCrop(Op):
    """Crop the centre to `size`, one number or (height, width). Smaller images are padded with 0."""

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        two(self.size, "size")

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        height, width = two(self.size, "size")
        program: Program = []
        if height > size[0] or width > size[1]:
            left, top = max(0, (width - size[1]) // 2), max(0, (height - size[0]) // 2)
            right, bottom = max(0, (width - size[1] + 1) // 2), max(0, (height - size[0] + 1) // 2)
            program.append(Step(Code.PAD, (left, top, right, bottom, 0, "constant")))
            size = program_size(program, size)
        top, left = round((size[0] - height) / 2.0), round((size[1] - width) / 2.0)
        return [*program, Step(Code.CROP, (top, left, height, width))]


@dataclass(frozen=True)
class Pad(Op):
    """Pad all sides by one number, by (left/right, top/bottom) or (left, top, right, bottom). `padding_mode`: as torchvision's."""

    padding: int | Sequence[int]
    fill: Any = 0
    padding_mode: str = "constant"

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return [Step(Code.PAD, (*sides(self.padding), self.fill, self.padding_mode))]


def sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom from one number, two or four."""
    if isinstance(padding, int):
        return padding, padding, padding, padding
    if len(padding) == 1:
        return (padding[0],) * 4
    if len(padding) == 2:
        return padding[0], padding[1], padding[0], padding[1]
    left, top, right, bottom = padding
    return left, top, right, bottom


@dataclass(frozen=True)
class RandomCrop(RandomOp):
    """Pad by `padding`, then crop `size` at a random position. `pad_if_needed`: pad smaller images instead of raising an error."""

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: Any = 0
    padding_mode: str = "constant"

    def __post_init__(self) -> None:
        two(self.size, "size")

    def draw(self, draws: Draws, size: Size) -> Program:
        height, width = two(self.size, "size")
        left, top, right, bottom = (0, 0, 0, 0) if self.padding is None else sides(self.padding)
        if self.pad_if_needed:
            across, down = max(0, width - size[1] - left - right), max(0, height - size[0] - top - bottom)
            left, right, top, bottom = left + across, right + across, top + down, bottom + down
        rows, columns = size[0] + top + bottom, size[1] + left + right
        if rows < height or columns < width:
            raise ValueError(
                f"RandomCrop of {(height, width)} is larger than the padded image {(rows, columns)}: pad_if_needed=True helps"
            )
        place = (draws.below(rows - height + 1), draws.below(columns - width + 1), height, width)
        program = [Step(Code.PAD, (left, top, right, bottom, self.fill, self.padding_mode))]
        return [*(program if (left, top, right, bottom) != (0, 0, 0, 0) else []), Step(Code.CROP, place)]


@dataclass(frozen=True)
class RandomResizedCrop(RandomOp):
    """Crop a random part and resize it to `size`. `scale`: its area as a fraction of the image; `ratio`: its width / height."""

    size: int | Sequence[int]
    scale: Range = (0.08, 1.0)
    ratio: Range = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: int = BILINEAR
    antialias: bool = True

    def __post_init__(self) -> None:
        two(self.size, "size")

    def draw(self, draws: Draws, size: Size) -> Program:
        target = two(self.size, "size")
        place = self.place(draws, size)
        return [Step(Code.CROP, place), Step(Code.RESIZE, (*target, int(self.interpolation), self.antialias))]

    def place(self, draws: Draws, size: Size, tries: int = 10) -> tuple[int, int, int, int]:
        """Draw a crop (top, left, height, width) of random area and aspect ratio; the centre if no try fits."""
        rows, columns = size
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(tries):
            area = rows * columns * draws.uniform(*self.scale)
            shape = math.exp(draws.uniform(low, high))
            width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < width <= columns and 0 < height <= rows:
                return draws.below(rows - height + 1), draws.below(columns - width + 1), height, width
        shape = columns / rows
        if shape < min(self.ratio):
            width, height = columns, round(columns / min(self.ratio))
        elif shape > max(self.ratio):
            width, height = round(rows * max(self.ratio)), rows
        else:
            width, height = columns, rows
        return (rows - height) // 2, (columns - width) // 2, height, width


@dataclass(frozen=True)
class RandomHorizontalFlip(RandomOp):
    """Flip left and right with probability `p`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise ConfigError(f"p must be between 0 and 1, got {self.p}")

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return [Step(Code.FLIP_H)] if draws.chance(self.p) else []


@dataclass(frozen=True)
class RandomVerticalFlip(RandomHorizontalFlip):
    """Flip top and bottom with probability `p`."""

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return [Step(Code.FLIP_V)] if draws.chance(self.p) else []


# ---- colours


@dataclass(frozen=True)
class ColorJitter(RandomOp):
    """Change colours by random factors in random order. A number x means the range 1 - x to 1 + x (hue: -x to x); or give (low, high)."""

    brightness: float | Range = 0
    contrast: float | Range = 0
    saturation: float | Range = 0
    hue: float | Range = 0

    def __post_init__(self) -> None:
        _ = self.limits  # checks them

    @cached_property
    def limits(self) -> dict[Code, tuple[float, float] | None]:
        """The range of each factor; None if it is always neutral."""
        return {
            Code.BRIGHTNESS: around(self.brightness, "brightness"),
            Code.CONTRAST: around(self.contrast, "contrast"),
            Code.SATURATION: around(self.saturation, "saturation"),
            Code.HUE: around(self.hue, "hue", centre=0.0, least=-0.5, most=0.5),
        }

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        found = [
            None if limits is None else Step(code, (draws.uniform(*limits),))
            for code, limits in self.limits.items()
        ]
        return [step for at in draws.order(4) if (step := found[at]) is not None]


def around(
    value: float | Range, name: str, *, centre: float = 1.0, least: float = 0.0, most: float = math.inf
) -> tuple[float, float] | None:
    """Return the range of a factor; None if it is always neutral."""
    if isinstance(value, (int, float)):
        if value < 0:
            raise ConfigError(f"{name} must not be negative, got {value}")
        low, high = max(least, centre - value), centre + value
    else:
        low, high = value
    if not least <= low <= high <= most:
        raise ConfigError(f"{name} must be a range within [{least}, {most}], got {value}")
    return None if low == high == centre else (low, high)


@dataclass(frozen=True)
class Grayscale(Op):
    """Convert to grayscale, with 1 or 3 equal channels."""

    num_output_channels: int = 1

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return [Step(Code.GRAY, (self.num_output_channels,))]


@dataclass(frozen=True)
class RandomGrayscale(RandomOp):
    """Convert to grayscale with three equal channels, with probability `p`."""

    p: float = 0.1

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return [Step(Code.GRAY, (3,))] if draws.chance(self.p) else []


@dataclass(frozen=True)
class GaussianBlur(RandomOp):
    """Blur with a Gaussian kernel of odd size. `sigma`: its standard deviation, or the range (low, high) to draw it from."""

    kernel_size: int | Sequence[int]
    sigma: float | Range = (0.1, 2.0)

    def __post_init__(self) -> None:
        height, width = two(self.kernel_size, "kernel_size")
        if height % 2 == 0 or width % 2 == 0:
            raise ConfigError(f"kernel_size must be odd, got {self.kernel_size}")

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        height, width = two(self.kernel_size, "kernel_size")
        sigma = self.sigma if isinstance(self.sigma, (int, float)) else draws.uniform(*self.sigma)
        return [Step(Code.BLUR, (width, height, sigma, sigma))]


@dataclass(frozen=True)
class RandomErasing(RandomOp):
    """Erase a random rectangle with probability `p`. `scale`: its area as a fraction of the image; `ratio`: its height / width."""

    p: float = 0.5
    scale: Range = (0.02, 0.33)
    ratio: Range = (0.3, 3.3)
    value: Any = 0
    """The fill: a number, one per channel, or "random"."""

    def draw(self, draws: Draws, size: Size) -> Program:
        if not draws.chance(self.p):
            return []
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = size[0] * size[1] * draws.uniform(*self.scale)
            shape = math.exp(draws.uniform(low, high))
            height, width = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if height < size[0] and width < size[1]:
                place = (draws.below(size[0] - height + 1), draws.below(size[1] - width + 1), height, width)
                value = None if self.value == "random" else self.value
                return [Step(Code.ERASE, (*place, value, draws.bits()))]
        return []


# ---- ops made of others


@dataclass(frozen=True)
class RandomApply(Container):
    """Apply all `transforms` in sequence with probability `p`, or none."""

    transforms: Sequence[Any]
    p: float = 0.5

    is_random = True

    def parts(self, draws: Draws) -> Iterator[Any]:
        if draws.chance(self.p):
            yield from self.transforms


@dataclass(frozen=True)
class RandomChoice(Container):
    """Apply one of `transforms`, drawn with weights `p` (default: equal)."""

    transforms: Sequence[Any]
    p: Sequence[float] | None = None

    is_random = True

    def parts(self, draws: Draws) -> Iterator[Any]:
        yield self.transforms[draws.choice(self.p or [1.0] * len(self.transforms))]


@dataclass(frozen=True)
class Lambda(Op):
    """Call a user function: image in (uint8, height x width x channels), image out."""

    lambd: Callable[[Any], Any] = field()

    is_random = True  # it may draw from the global generators, seeded per sample

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return [Step(Code.CALL, (self.lambd,))]
