"""Deep AutoAugment (Zheng et al., ICLR 2022): layers of ops, one of each layer drawn for a sample, with its magnitude.

What the policy was found to be is in files of its authors (policy_port/ of github.com/AIoT-MLSys-Lab/DeepAA), nowhere in text:
`read` takes their numbers from there. What the numbers mean is said here, as the authors' evaluation has it.
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
from penstock.transforms.augment import FACTORS, PLAIN, rotation
from penstock.transforms.base import Op, plain
from penstock.transforms.draws import Draws
from penstock.transforms.ops import NEAREST, RandomResizedCrop
from penstock.transforms.steps import Code, Interpolation, Program, Size, Step, program_size

Choice = tuple[float, str, float | None]
"""Probability within the layer, name, magnitude: 0 to 1 is the op's range from end to end; None where it has none."""
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
MIRRORED = frozenset({"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"})
"""Their magnitudes change sign in half of the cases."""
MEAN = (125, 123, 114)
"""The colour of what is cut out or padded."""
WHERE = "the authors' are in policy_port/ of https://github.com/AIoT-MLSys-Lab/DeepAA"


@dataclass(frozen=True)
class DeepAutoAugment(Op):
    """One op of each layer, drawn with its probability in the layer, in the order of the layers. For colour images.

    The authors' policies take the place of default crops and flips. Where that for ImageNet has not drawn its crop to 224 x 224,
    the authors cut out the middle: `CenterCrop(224)` behind it.
    """

    policy: InitVar[str | os.PathLike[str] | Sequence[Sequence[Choice]]]
    """A file as the authors publish it (.npz), or the layers themselves: of (probability, name, magnitude from 0 to 1) each."""
    interpolation: int = NEAREST
    fill: Any = None
    layers: tuple[Layer, ...] = field(init=False, repr=False)

    is_random = True

    def __post_init__(self, policy: str | os.PathLike[str] | Sequence[Sequence[Choice]]) -> None:
        if isinstance(policy, (str, os.PathLike)):
            layers = checked(read(Path(policy)), f"{policy}: ")
        else:
            layers = checked(policy, "")
        object.__setattr__(self, "layers", layers)

    def identity(self) -> tuple[Any, ...]:
        """By what the policy says, wherever it was read from."""
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
        """Of each layer, the probability of its choices up to each of them."""
        return tuple(tuple(accumulate(p for p, _, _ in layer)) for layer in self.layers)

    def draw(self, draws: Draws, size: Size) -> Program:
        return [step for *_, steps in self.chosen(draws, size) for step in steps]

    def chosen(self, draws: Draws, size: Size) -> Iterator[tuple[str, float | None, Size, Program]]:
        """Of each layer's op: name, magnitude, the size of the image before it, and steps."""
        for layer, sums in zip(self.layers, self.sums, strict=True):
            own = Draws(draws.bits())  # how many numbers an op needs may depend on the size of the image
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
            matrix = matrix_of(name, value * draws.sign(), size)
            return [
                Step(Code.AFFINE, (*matrix, int(self.interpolation), 0 if self.fill is None else self.fill))
            ]
        match name:
            case "Posterize":
                return [Step(Code.POSTERIZE, (int(value),))]
            case "Solarize":
                return [Step(Code.SOLARIZE, (value,))]
        return [Step(FACTORS[name], (value,))]


# ---- what the ops do


def matrix_of(name: str, value: float, size: Size) -> tuple[float, float, float, float, float, float]:
    match name:
        case "ShearX":
            return 1.0, value, 0.0, 0.0, 1.0, 0.0
        case "ShearY":
            return 1.0, 0.0, 0.0, value, 1.0, 0.0
        case "TranslateX":
            return 1.0, 0.0, value * size[1], 0.0, 1.0, 0.0
        case "TranslateY":
            return 1.0, 0.0, 0.0, 0.0, 1.0, value * size[0]
    return rotation(value, size)


def flip(draws: Draws, _: Size) -> Program:
    return [Step(Code.FLIP_H)] if draws.chance(0.5) else []


def cutout(draws: Draws, size: Size) -> Program:
    """16 pixels about any place, less at the border."""
    down, across = span(draws.uniform(0, size[0]), 8, size[0]), span(draws.uniform(0, size[1]), 8, size[1])
    return [erased(down, across)]


def cutout_60(draws: Draws, size: Size) -> Program:
    """60 pixels about a place in the middle 256 x 256, as in the search (the published evaluation has no form of it)."""
    spans = []
    for side in size:
        middle = side // 2
        spans.append(span(draws.uniform(max(0, middle - 128), min(side, middle + 128)), 30, side))
    return [erased(*spans)]


def span(about: float, half: int, side: int) -> tuple[int, int]:
    """First pixel and count; Pillow's rectangles include their last pixel."""
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
    """torchvision's, but that the authors take the middle as soon as one place does not fit."""
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


# ---- where the numbers come from


def read(path: Path) -> list[list[Choice]]:
    """The layers in a file as the authors' search writes it."""
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
    known = [str(name).split(":", maxsplit=1)[0] for name in names]  # behind it stands the range
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
        with path.open("rb") as file:  # NumPy would leave it open where it is no archive
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
    """As tuples of plain numbers."""
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


__all__ = ["DeepAutoAugment"]
