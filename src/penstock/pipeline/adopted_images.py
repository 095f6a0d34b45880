"""An adopted torchvision folder as a staged dataset, so that its samples can be partly cached (`reuse=`).

Rule 1: the chain consists of our ops with the same names, parameters and distributions. torchvision's code draws those we lack
        (`Theirs`).
Rule 2: each op has its own random numbers. The partial part is keyed by (seed, sample, epoch of renewal), the final part by the
        sample's place in the epoch. Without reuse, torchvision draws in sequence from the sample's generator: same distributions,
        other draws.
Rule 3: pixels are torchvision's. Pillow decodes files that we refuse and torchvision accepts, as its loader does.
Rule 4: Python functions before the tensor are ops. Transforms after the tail get the finished tensor, with the global generators
        seeded for the sample's place in the epoch.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

import numpy as np

from penstock import transforms as ours
from penstock.dataset.offers import Offer, ReadSeam
from penstock.pipeline.adopt import AdoptedFolder
from penstock.pipeline.chain import Chain
from penstock.pipeline.decode import Encoded, Image
from penstock.pipeline.folders import files_digest
from penstock.pipeline.header import BadImage
from penstock.pipeline.staged import StagedDataset, is_ours
from penstock.pipeline.their_draws import (
    CONTAINERS,
    Draw,
    adopters,
    fill_of_crop,
    nested,
    version,
    way,
    whole_fill,
)
from penstock.sources.sources import ByteRange
from penstock.transforms.cpu import crop, picture
from penstock.transforms.foreign import Foreign, titled
from penstock.transforms.libs import pillow
from penstock.transforms.outcomes import VALUES
from penstock.transforms.theirs import Theirs
from penstock.transforms.windows import Window

Make = Callable[[Any], ours.Op]


class AdoptedImages(StagedDataset):
    """Reads the user's dataset, as AdoptedFolder does."""

    def __init__(self, folder: AdoptedFolder) -> None:
        chain = folder.chain
        assert chain.tail is not None
        self.folder, self.users_dataset, self.after = folder, folder.users_dataset, tuple(chain.after)
        self._transform, self.bytes_from = self.users_dataset.transform, folder.bytes_from
        super().__init__(
            None,
            Chain(tuple(op_of(op, draw) for op, draw in chain.ops), chain.tail),
            len(folder),
            fast_decode=folder.fast,
        )

    knows_targets = True

    @property
    def is_as_it_was(self) -> bool:
        """Whether the user's dataset still has the transform that the chain was made from."""
        return self.users_dataset.transform is self._transform

    @property
    def root(self) -> Any:
        return self.users_dataset.root

    def offer(self) -> Offer:
        return replace(super().offer(), shown=self.users_dataset, draws_alone=self._draws_alone)

    def _draws_alone(self) -> bool:
        alone = self.users_dataset.target_transform is None and not self.after
        return alone and all(map(is_ours, self.chain.ops))

    def seam(self) -> ReadSeam | None:
        return replace(self.folder.seam(), holder=self)

    def name(self, index: int) -> str:
        return f"sample {index}, {self.users_dataset.samples[index][0]}"

    def locate(self, index: int) -> ByteRange:
        return self.folder.locate(index)

    def target_of(self, index: int) -> Any:
        return self.folder.target_of(index)

    def contents(self) -> str | None:
        return files_digest(path for path, _ in self.users_dataset.samples)

    def image(self, data: bytes) -> Any:
        try:
            return Forgiving(data, max_pixels=self.max_pixels, fast=self.fast_decode, strict=False)
        except BadImage:
            return by_pillow(data)


class Forgiving(Encoded):
    """An image that Pillow decodes if we refuse to."""

    __slots__ = ()

    def part(self, window: Window, out: Image | None = None) -> Image:
        try:
            return super().part(window, out)
        except BadImage:
            return crop(by_pillow(self._data), *window)

    def reduced(self, factor: int) -> Image | None:
        try:
            return super().reduced(factor)
        except BadImage:
            return None


def by_pillow(data: bytes) -> Image:
    """Decode as torchvision's loader does."""
    with pillow().Image.open(io.BytesIO(data)) as image:
        return np.array(image.convert("RGB"))


# ---- ops


def op_of(op: Any, draw: Draw | None) -> ours.Op:
    """Return our op for a torchvision transform or a function."""
    if draw is None:
        return Foreign(OnPicture(op))
    make = OURS.get(type(op).__name__)
    if make is not None and all(type(part).__name__ in OURS for part in nested(op)):
        return make(op)
    return Theirs(type(op).__name__, version(op), parameters(op), draw, op, counted(op))


class OnPicture:
    """A function from a torchvision chain, which expects Pillow images."""

    def __init__(self, function: Any) -> None:
        self.function, self.__name__ = function, titled(function)

    def __call__(self, image: Image) -> Any:
        return self.function(picture(image))

    def __repr__(self) -> str:
        return repr(self.function)


def inner(op: Any) -> list[ours.Op]:
    known = adopters()
    return [op_of(part, known[type(part)]) for part in op.transforms]


def policy(kind: Callable[..., ours.Op], op: Any) -> ours.Op:
    given = {name: getattr(op, name) for name in POLICY_PARAMETERS if hasattr(op, name)}
    if "policy" in given:
        given["policy"] = op.policy.value
    return kind(**given, interpolation=way(op.interpolation))


def padding_of(op: Any) -> tuple[int, int, int, int] | None:
    """Return (left, top, right, bottom); v2 stores left, right, top, bottom. v1's RandomCrop is adopted only without padding."""
    if op.padding is None:
        return None
    left, right, top, bottom = op.padding
    return left, top, right, bottom


POLICY_PARAMETERS = ("num_ops", "magnitude", "num_magnitude_bins", "policy")
OURS: Mapping[str, Make] = {
    "Resize": lambda op: ours.Resize(op.size, way(op.interpolation), op.max_size, op.antialias is not False),
    "CenterCrop": lambda op: ours.CenterCrop(op.size),
    "Pad": lambda op: ours.Pad(
        op.padding, whole_fill(op), getattr(op.padding_mode, "value", op.padding_mode)
    ),
    "RandomResizedCrop": lambda op: ours.RandomResizedCrop(
        op.size, tuple(op.scale), tuple(op.ratio), way(op.interpolation)
    ),
    "RandomCrop": lambda op: ours.RandomCrop(
        op.size, padding_of(op), op.pad_if_needed, fill_of_crop(op), op.padding_mode
    ),
    "RandomHorizontalFlip": lambda op: ours.RandomHorizontalFlip(op.p),
    "RandomVerticalFlip": lambda op: ours.RandomVerticalFlip(op.p),
    "ColorJitter": lambda op: ours.ColorJitter(
        *(getattr(op, name) or 0 for name in ("brightness", "contrast", "saturation", "hue"))
    ),
    "Grayscale": lambda op: ours.Grayscale(op.num_output_channels),
    "RandomGrayscale": lambda op: ours.RandomGrayscale(op.p),
    "RandAugment": partial(policy, ours.RandAugment),
    "AutoAugment": partial(policy, ours.AutoAugment),
    "TrivialAugmentWide": partial(policy, ours.TrivialAugmentWide),
    "Compose": lambda op: ours.Compose(inner(op)),
    "RandomApply": lambda op: ours.RandomApply(inner(op), op.p),
    "RandomChoice": lambda op: ours.RandomChoice(inner(op), op.p),
}
"""Our ops with torchvision's pixels and distributions."""


def parameters(op: Any) -> tuple[Any, ...]:
    skipped = ("training", "transforms")
    given = {name: value for name, value in vars(op).items() if name[0] != "_" and name not in skipped}
    if type(op).__name__ in CONTAINERS:
        given["transforms"] = [(type(part).__name__, *parameters(part)) for part in op.transforms]
    return tuple(sorted((name, flat(value)) for name, value in given.items()))


def flat(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(flat, value))
    return value.value if isinstance(value, Enum) else value


def counted(op: Any) -> int:
    """Estimate the outcomes of a transform, as `transforms.outcomes` counts them."""
    chance = getattr(op, "p", 1.0)
    ranges = {"RandomAffine": 5, "RandomRotation": 1, "GaussianBlur": 1, "AugMix": 6, "RandomZoomOut": 3}
    done: int = VALUES ** ranges.get(type(op).__name__, 0 if hasattr(op, "p") else 1)
    return done + 1 if isinstance(chance, float) and 0 < chance < 1 else done
