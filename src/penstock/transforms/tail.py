"""The tail of a chain: pixels to a uint8 tensor, or scaled and normalised to floats in one pass, channels first."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock import accel
from penstock.errors import ConfigError
from penstock.torch_private import tree_flatten, tree_unflatten
from penstock.transforms.base import Keyed, Op
from penstock.transforms.draws import Draws
from penstock.transforms.samples import IMAGES, ValueKind, kinds_of, pixels, stacked, theirs
from penstock.transforms.steps import Program, Size


@dataclass(frozen=True)
class Closing(Op):
    """An op for the end of a chain."""

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        raise ConfigError(f"{self.name} belongs to the end of a chain, behind all ops that change pixels")

    @staticmethod
    def apply(group: Iterable[Keyed], sample: Any, several: bool) -> Any:  # noqa: ARG004
        return closed([op for op, _ in group], sample)


@dataclass(frozen=True)
class ToImage(Closing):
    """No effect: images become tensors anyway. It is here for chains written for torchvision."""

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return []


@dataclass(frozen=True)
class ToDtype(Closing):
    """Convert images to `dtype`. `scale`: scale values to 0..1 if it is a float."""

    dtype: torch.dtype | Mapping[Any, torch.dtype | None]
    """The images' dtype; or one per torchvision type and "others", if the op is called on samples."""
    scale: bool = False


@dataclass(frozen=True)
class Normalize(Closing):
    """Subtract `mean` and divide by `std`, one number per channel. Images must be floats."""

    mean: Sequence[float]
    std: Sequence[float]
    inplace: bool = False

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, [float(number) for number in getattr(self, name)])
        if not all(self.std):
            raise ConfigError(f"std must not be 0, got {self.std}")


@dataclass(frozen=True)
class ToTensor(Closing):
    """torchvision's older form of ToImage and ToDtype(float32, scale=True)."""


SMALL = 16 << 10
"""Bytes of an image that NumPy transposes faster than a call to the loops."""


@dataclass(frozen=True)
class Tail:
    dtype: torch.dtype = torch.uint8
    scale: str = ""
    """How to scale values to 0..1: "divide" by 255, "multiply" by its inverse (may differ in the last bit), or "" for not at all."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def identity(self) -> tuple[Any, ...]:
        return str(self.dtype), self.scale, self.mean, self.std

    def check(self, image: Any) -> None:
        """Refuse an image that the tail cannot finish."""
        if getattr(image, "dtype", None) != np.uint8 or image.ndim != 3:
            said = (
                f"{image.dtype} of {image.ndim} dimensions"
                if isinstance(image, np.ndarray)
                else type(image).__name__
            )
            raise ValueError(
                f"an image must be uint8 with height, width and channels at the end of a chain, got {said}"
            )
        if self.dtype.is_floating_point:
            level_table(self.scale, self.mean, self.std, image.shape[2])

    def numbers(self) -> NDArray[np.float32] | None:
        """Return the parameters with which `accel.normal` does the same to three channels; None if it cannot."""
        if self.dtype != torch.float32 or len(self.mean) not in (0, 1, 3):
            return None
        return normal_numbers(self.scale, self.mean, self.std)

    def finish(self, image: NDArray[np.uint8], out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the image as a tensor, channels x height x width; into `out` if given."""
        shape = (image.shape[2], image.shape[0], image.shape[1])
        if out is None:
            out = torch.empty(shape, dtype=self.dtype)
        self.check(image)
        if self.dtype == torch.uint8:
            if image.size <= SMALL or not accel.split(image, out):
                out.numpy()[...] = image.transpose(2, 0, 1)
            return out
        if not self.dtype.is_floating_point:
            return out.copy_(torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))))
        plain = self.dtype == torch.float32 and out.is_contiguous()
        numbers = self.numbers() if plain and shape[0] == 3 else None
        if numbers is not None and accel.normal(image, out, numbers, divides=self.scale == "divide"):
            return out
        if plain and accel.planes(image, out, level_table(self.scale, self.mean, self.std, shape[0])):
            return out
        planes = torch.from_numpy(image.transpose(2, 0, 1).astype(np.float32, order="C"))
        return out.copy_(normalise(planes, self.scale, self.mean, self.std))


def normalise(planes: torch.Tensor, scale: str, mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Scale and normalise float planes in place, as torchvision computes it."""
    if scale == "divide":
        planes /= 255
    elif scale == "multiply":
        planes *= 1.0 / 255
    if mean:
        means, stds = (
            torch.tensor(each, dtype=torch.float32, device=planes.device).view(-1, 1, 1)
            for each in (mean, std)
        )
        planes.sub_(means).div_(stds)
    return planes


@lru_cache(maxsize=64)
def level_table(
    scale: str, mean: tuple[float, ...], std: tuple[float, ...], channels: int
) -> NDArray[np.float32]:
    """Tabulate the result for the 256 values of each channel."""
    if mean and len(mean) not in (1, channels):
        raise ConfigError(f"Normalize has {len(mean)} means for an image of {channels} channels")
    levels = torch.arange(256, dtype=torch.float32).repeat(channels, 1, 1)
    return np.ascontiguousarray(normalise(levels, scale, mean, std).numpy()[:, 0])


@lru_cache(maxsize=64)
def normal_numbers(scale: str, mean: tuple[float, ...], std: tuple[float, ...]) -> NDArray[np.float32] | None:
    """Return scale, means and stds of three channels; None if computing with them differs from the table."""
    by = {"divide": 255.0, "multiply": 1.0 / 255}.get(scale, 1.0)
    numbers = np.array([by, *np.broadcast_to(mean or 0.0, 3), *np.broadcast_to(std or 1.0, 3)], np.float32)
    levels = np.arange(256, dtype=np.float32)
    scaled = levels / numbers[0] if scale == "divide" else levels * numbers[0]
    values = (scaled[None] - numbers[1:4, None]) / numbers[4:, None]
    return numbers if np.array_equal(values, level_table(scale, mean, std, 3)) else None


def split_tail(ops: Sequence[Any]) -> tuple[list[Any], Tail]:
    """Split ops into those that change pixels, and the tail of the rest."""
    body = list(ops)
    closing: list[Any] = []
    while body and isinstance(body[-1], Closing):
        closing.insert(0, body.pop())
    tail = Tail()
    for op in closing:
        match op:
            case ToDtype(dtype, scale):
                if not isinstance(dtype, torch.dtype):
                    raise ConfigError("a chain makes images: give ToDtype one dtype, not one for each type")
                if scale and not (dtype.is_floating_point or dtype == torch.uint8):
                    raise ConfigError(f"ToDtype({dtype}, scale=True): images are scaled to floats only")
                tail = Tail(dtype, "multiply" if scale and dtype.is_floating_point else "")
            case ToTensor():
                tail = Tail(torch.float32, "divide")
            case Normalize(mean, std):
                if not tail.dtype.is_floating_point or tail.mean:
                    raise ConfigError(
                        "Normalize needs floats: put ToDtype(torch.float32, scale=True) before it, once"
                    )
                tail = Tail(tail.dtype, tail.scale, tuple(map(float, mean)), tuple(map(float, std)))
    return body, tail


# ---- calling on a sample


def closed(ops: Sequence[Any], sample: Any) -> Any:
    """Apply closing ops: in one pass where our tail can, else with torchvision's."""
    values, spec = tree_flatten(sample)
    kinds = kinds_of(values)
    images = {at: pixels(values[at]) for at, kind in enumerate(kinds) if kind in IMAGES}
    arrays = any(isinstance(value, np.ndarray) for value in values)  # torchvision's ToImage takes arrays
    if arrays or None in images.values() or not ours_to_close(ops, set(kinds)):
        for op in ops:
            sample = theirs(op)(sample)
        return sample
    tail = split_tail(ops)[1]
    for at, frames in images.items():
        values[at] = finished(ops, tail, frames or [], values[at])
    return tree_unflatten(values, spec)


def ours_to_close(ops: Sequence[Any], kinds: set[ValueKind]) -> bool:
    """Whether our tail does what these ops mean for images of these kinds."""
    types = [op for op in ops if isinstance(op, (ToDtype, ToTensor))]
    known = all(isinstance(op, ToTensor) or op.dtype in (torch.uint8, torch.float32) for op in types)
    # torchvision's ToDtype leaves non-tensors alone, its ToTensor leaves tensors alone.
    pictures = ValueKind.PICTURE not in kinds or isinstance(ops[0], (ToImage, ToTensor))
    tensors = not {ValueKind.TENSOR, ValueKind.IMAGE} & kinds or not any(
        isinstance(op, ToTensor) for op in ops
    )
    return known and pictures and tensors and len(types) <= 1


def finished(ops: Sequence[Any], tail: Tail, frames: list[NDArray[np.uint8]], value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        found = tail.finish(frames[0])
    else:
        found = value if tail == Tail() else stacked([tail.finish(frame) for frame in frames], value)
    known = sys.modules.get("torchvision.tv_tensors")
    if known is None or type(found) is not torch.Tensor or not any(isinstance(op, ToImage) for op in ops):
        return found
    return known.Image(found)
