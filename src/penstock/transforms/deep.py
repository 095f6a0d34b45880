"""Deep AutoAugment (Zheng et al., ICLR 2022): one op with its magnitude is drawn from each layer.

The policy exists only in the authors' files (policy_port/ of github.com/AIoT-MLSys-Lab/DeepAA): `read` loads its numbers. Their meaning,
defined here, is that of the authors' evaluation.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.transforms.augment import FACTORS, PLAIN, Matrix, rotation
from penstock.transforms.base import RandomOp, plain
from penstock.transforms.draws import Draws
from penstock.transforms.ops import NEAREST, RandomResizedCrop
from penstock.transforms.steps import Code, Interpolation, Program, Size, Step, program_size

Choice = tuple[float, str, float | None]
"""Probability within the layer, name, magnitude: 0 to 1 spans the op's range; None if it has none."""
Layer = tuple[Choice, ...]

RANGES: Mapping[str, tuple[float, float]] = {
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "TranslateX": (-0.45, 0.45),
    "TranslateY": (-0.45, 0.45),
    "Rotate": (-30.0, 30.0),
    "Solarize": (0.0, 256.0),
    "Posterize": (4.0, 8.0),
    "Contrast": (0.1, 1.9),
    "Color": (0.1, 1.9),
    "Brightness": (0.1, 1.9),
    "Sharpness": (0.1, 1.9),
}
MIRRORED: Mapping[str, Callable[[float, Size], Matrix]] = {
    "ShearX": lambda value, _: (1.0, value, 0.0, 0.0, 1.0, 0.0),
    "ShearY": lambda value, _: (1.0, 0.0, 0.0, value, 1.0, 0.0),
    "TranslateX": lambda value, size: (1.0, 0.0, value * size[1], 0.0, 1.0, 0.0),
    "TranslateY": lambda value, size: (1.0, 0.0, 0.0, 0.0, 1.0, value * size[0]),
    "Rotate": rotation,
}
"""Affine ops; their magnitude is negated half of the time."""
MEAN = (125, 123, 114)
"""Fill colour for cutout and padding."""
WHERE = "the authors' are in policy_port/ of https://github.com/AIoT-MLSys-Lab/DeepAA"


@dataclass(frozen=True)
class DeepAutoAugment(RandomOp):
    """Deep AutoAugment: draw one op from each layer by its probability, and apply them in layer order. For colour images.

    The authors' policies replace the default crops and flips. If the ImageNet policy does not draw its 224 x 224 crop, the authors crop the
    centre: put `CenterCrop(224)` after it.
    """

    policy: InitVar[str | os.PathLike[str] | Sequence[Sequence[Choice]]]
    """A file as the authors publish it (.npz), or the layers: lists of (probability, name, magnitude from 0 to 1)."""
    interpolation: int = NEAREST
    fill: Any = None
    layers: tuple[Layer, ...] = field(init=False, repr=False)

    def __post_init__(self, policy: str | os.PathLike[str] | Sequence[Sequence[Choice]]) -> None:
        if isinstance(policy, (str, os.PathLike)):
            layers = checked(read(Path(policy)), f"{policy}: ")
        else:
            layers = checked(policy, "")
        object.__setattr__(self, "layers", layers)

    def identity(self) -> tuple[Any, ...]:
        """Identify the policy by its content, wherever it was read from."""
        digest = hashlib.blake2b(repr(self.layers).encode(), digest_size=8).hexdigest()
        said = f"{len(self.layers)} layers, {digest}"
        return (
            self.name,
            ("policy", said),
            ("interpolation", plain(self.interpolation)),
            ("fill", plain(self.fill)),
        )

    @cached_property
    def sums(self) -> tuple[tuple[float, ...], ...]:
        """The cumulative probabilities of each layer's choices."""
        return tuple(tuple(accumulate(p for p, _, _ in layer)) for layer in self.layers)

    def draw(self, draws: Draws, size: Size) -> Program:
        return [step for *_, steps in self.chosen(draws, size) for step in steps]

    def chosen(self, draws: Draws, size: Size) -> Iterator[tuple[str, float | None, Size, Program]]:
        """Yield for each layer the drawn op's name and magnitude, the image size before it, and its steps."""
        for layer, sums in zip(self.layers, self.sums, strict=True):
            own = Draws(draws.bits())  # own numbers per layer: an op's count may depend on the size
            at = bisect_right(sums, own.unit() * sums[-1])
            _, name, magnitude = layer[min(at, len(layer) - 1)]
            steps = self.steps(name, magnitude, own, size)
            yield name, magnitude, size, steps
            size = program_size(steps, size)

    def steps(self, name: str, magnitude: float | None, draws: Draws, size: Size) -> Program:
        if name in DRAWN:
            return DRAWN[name](draws, size)
        if magnitude is None:
            return [] if name == "Identity" else [Step(PLAIN[name])]
        low, high = RANGES[name]
        value = magnitude * (high - low) + low
        if name in MIRRORED:
            matrix = MIRRORED[name](value * draws.sign(), size)
            return [
                Step(Code.AFFINE, (*matrix, int(self.interpolation), 0 if self.fill is None else self.fill))
            ]
        match name:
            case "Posterize":
                return [Step(Code.POSTERIZE, (int(value),))]
            case "Solarize":
                return [Step(Code.SOLARIZE, (value,))]
        return [Step(FACTORS[name], (value,))]


# ---- ops


def flip(draws: Draws, _: Size) -> Program:
    return [Step(Code.FLIP_H)] if draws.chance(0.5) else []


def cutout(draws: Draws, size: Size) -> Program:
    """Erase 16 x 16 pixels around a random point, less at the border."""
    down, across = span(draws.uniform(0, size[0]), 8, size[0]), span(draws.uniform(0, size[1]), 8, size[1])
    return [erased(down, across)]


def cutout_60(draws: Draws, size: Size) -> Program:
    """Erase 60 x 60 pixels around a point in the central 256 x 256, as in the search (the published evaluation lacks it)."""
    spans = []
    for side in size:
        middle = side // 2
        spans.append(span(draws.uniform(max(0, middle - 128), min(side, middle + 128)), 30, side))
    return [erased(*spans)]


def span(about: float, half: int, side: int) -> tuple[int, int]:
    """Return first pixel and count; Pillow's rectangles include their last pixel."""
    first = int(min(side, max(0, about - half)))
    last = min(side - 1, int(min(side, max(0, about + half))))
    return first, last + 1 - first


def erased(down: tuple[int, int], across: tuple[int, int]) -> Step:
    return Step(Code.ERASE, (down[0], across[0], down[1], across[1], MEAN, 0))


def crop(draws: Draws, size: Size) -> Program:
    return [
        Step(Code.PAD, (4, 4, 4, 4, MEAN, "constant")),
        Step(Code.CROP, (draws.below(9), draws.below(9), *size)),
    ]


def resized_crop(draws: Draws, size: Size) -> Program:
    """torchvision's, except that the authors fall back to the centre after one failed try."""
    place = RandomResizedCrop(224).place(draws, size, tries=1)
    return [Step(Code.CROP, place), Step(Code.RESIZE, (224, 224, int(Interpolation.BICUBIC), True))]


DRAWN: Mapping[str, Callable[[Draws, Size], Program]] = {
    "RandFlip": flip,
    "RandCutout": cutout,
    "RandCutout60": cutout_60,
    "RandCrop": crop,
    "RandResizeCrop_imagenet": resized_crop,
}
NAMES = frozenset({"Identity", *RANGES, *PLAIN, *DRAWN})


# ---- loading


def read(path: Path) -> list[list[Choice]]:
    """Read the layers from a file of the authors' search."""
    held = arrays(path)
    probabilities, names, count = held["policy_probs"], held["op_names"], held["l_mags"]
    ops, magnitudes = held["ops"].reshape(-1), held["mags"].reshape(-1)
    expect(
        path, probabilities.ndim == 2 and probabilities.dtype.kind == "f", "policy_probs: layers x choices"
    )
    choices = probabilities.shape[1]
    for name, found in (("ops", ops), ("mags", magnitudes)):
        expect(path, found.dtype.kind in "iu" and len(found) == choices, f"{name}: {choices} integers")
    expect(path, names.ndim == 1 and names.dtype.kind == "U", "op_names: a list of names")
    expect(path, count.ndim == 0 and count.dtype.kind in "iu" and int(count) > 1, "l_mags: a number above 1")
    inside = ((ops >= 0) & (ops < len(names)) & (magnitudes >= 0) & (magnitudes < int(count))).all()
    expect(path, bool(inside), "ops that are in op_names, and mags below l_mags")
    known = [str(name).split(":", maxsplit=1)[0] for name in names]  # the range follows the colon
    levels = [(known[op], int(at) / (int(count) - 1)) for op, at in zip(ops, magnitudes, strict=True)]
    return [
        [(float(p), name, level) for p, (name, level) in zip(layer, levels, strict=True)]
        for layer in probabilities
    ]


FIELDS = ("policy_probs", "l_mags", "ops", "mags", "op_names")


def arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise ConfigError(
            f"policy must be layers or a file of them, and there is no file {str(path)!r}: {WHERE}"
        )
    try:
        with path.open("rb") as file:  # NumPy leaves it open if it is no archive
            return fields_of(np.load(file, allow_pickle=False), path)
    except (EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read as an .npz file: {error}") from error
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(
            f"{path} cannot be read as an .npz file of plain arrays: {error} (pickled objects are refused, since to load them is "
            "to run whatever they say; the authors' files need none)"
        ) from error


def fields_of(held: Any, path: Path) -> dict[str, NDArray[Any]]:
    if isinstance(held, np.ndarray):
        raise ConfigError(f"{path} holds one array: a policy is an .npz file with {', '.join(FIELDS)}")
    missing = [name for name in FIELDS if name not in held]
    if missing:
        raise ConfigError(
            f"{path} has no {', '.join(missing)}: it is no policy of Deep AutoAugment ({WHERE})"
        )
    return {name: held[name] for name in FIELDS}


def expect(path: Path, is_so: bool, what: str) -> None:
    if not is_so:
        raise ConfigError(f"{path} is no policy of Deep AutoAugment: it should have {what}")


def checked(layers: Sequence[Sequence[Choice]], where: str) -> tuple[Layer, ...]:
    """Check the layers and return them as tuples of plain numbers."""
    found = tuple(tuple(choice_of(choice, where) for choice in layer) for layer in layers)
    if not found:
        raise ConfigError(f"{where}the policy has no layers")
    for at, layer in enumerate(found):
        total = sum(p for p, _, _ in layer)
        if not abs(total - 1.0) < 1e-3:
            raise ConfigError(f"{where}the probabilities of layer {at} should sum to 1, not to {total:g}")
    return found


def choice_of(choice: Any, where: str) -> Choice:
    try:
        p, name, magnitude = choice
        p, magnitude = float(p), None if magnitude is None else float(magnitude)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where}a choice is (probability, name, magnitude or None), got {choice!r}"
        ) from error
    if name not in NAMES:
        raise ConfigError(f"{where}no op is called {name!r}: there are {', '.join(sorted(NAMES))}")
    if not 0 <= p <= 1:
        raise ConfigError(f"{where}the probability of {name} must be between 0 and 1, got {p}")
    if name not in RANGES:
        return p, name, None
    if magnitude is None or not 0 <= magnitude <= 1:
        raise ConfigError(f"{where}the magnitude of {name} must be between 0 and 1, got {magnitude}")
    return p, name, magnitude
