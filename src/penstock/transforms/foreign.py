"""Transforms of other libraries in our chains: each is a Python step, called as its library expects."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.transforms.base import Op, plain
from penstock.transforms.cpu import array, picture
from penstock.transforms.draws import Draws
from penstock.transforms.ops import Lambda
from penstock.transforms.steps import Code, Program, Size, Step

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Foreign(Lambda):
    """A foreign transform. Albumentations gets `image=`, torchvision a Pillow image, all others an array.

    Albumentations has its own generators: they are seeded for each sample, so the worker makes no difference. Others are expected to draw
    from the global generators, as in any dataset.
    """

    @property
    def name(self) -> str:
        origin = library(self.lambd)
        return f"{titled(self.lambd)} of {origin}" if origin in CALLS else titled(self.lambd)

    def identity(self) -> tuple[Any, ...]:
        if hasattr(self.lambd, "__qualname__"):
            return self.name, ("transform", plain(self.lambd))
        said = " ".join(ADDRESS.sub("", repr(self.lambd)).split())
        return self.name, ("transform", f"{type(self.lambd).__module__}.{said}")

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return [Step(Code.CALL, (Called(self.lambd, draws.bits()),))]


@dataclass(frozen=True)
class Called:
    transform: Any
    seed: int

    def __call__(self, image: NDArray[np.uint8]) -> Any:
        """Run as a step: pixels in, pixels out."""
        found = self.result(image)
        if not is_pixels(found):
            kind = getattr(found, "dtype", type(found).__name__)
            raise ConfigError(
                f"{titled(self.transform)} gave {kind} of shape {tuple(getattr(found, 'shape', ()))}, and further steps follow, "
                "which need uint8, height x width x channels. Put it last, or leave Normalize and ToTensor to the chain"
            )
        return found

    def result(self, image: NDArray[np.uint8]) -> Any:
        """Call the transform and return its result; images as arrays, height x width x channels."""
        call = CALLS.get(library(self.transform))
        found = self.transform(image) if call is None else call(self.transform, image, self.seed)
        if not isinstance(found, np.ndarray) and hasattr(found, "getbands"):
            return array(found)
        if isinstance(found, np.ndarray) and found.dtype == np.uint8 and found.ndim == 2:
            return found[:, :, None]
        return found


def albumentations(transform: Any, image: NDArray[np.uint8], seed: int) -> Any:
    if hasattr(transform, "set_random_seed"):
        transform.set_random_seed(seed & 0xFFFFFFFF)
    return transform(image=np.ascontiguousarray(image))["image"]


def torchvision(transform: Any, image: NDArray[np.uint8], _: int) -> Any:
    return transform(picture(image))


CALLS = {"albumentations": albumentations, "torchvision": torchvision}


def library(transform: Any) -> str:
    """Return the known library that a transform, or its nearest base class, comes from."""
    for kind in type(transform).__mro__:
        root = kind.__module__.partition(".")[0]
        if root in CALLS:
            return root
    return ""


def titled(transform: Any) -> str:
    return getattr(transform, "__name__", type(transform).__name__)


def is_pixels(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3


def known(op: Any) -> Any:
    """Return our ops unchanged; wrap other callables as Python steps."""
    if isinstance(op, Op):
        inner = getattr(op, "transforms", None)
        if isinstance(inner, (list, tuple)) and any(not isinstance(one, Op) for one in inner):
            return replace(op, transforms=[known(one) for one in inner])  # type: ignore[call-arg]
        return op
    if not callable(op):
        raise ConfigError(f"a chain is made of ops of penstock.transforms and other callables, got {op!r}")
    return Foreign(op)
