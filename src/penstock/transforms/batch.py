"""MixUp and CutMix: mix each sample of a batch with its neighbour, images and labels, as torchvision's v2 does.

Use them as a collate function, or call them on a collated batch. Draws depend on the batch's place in the epoch, never on who collates it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import one_hot
from torch.utils.data import default_collate

from penstock.dataset.seeding import call_seed
from penstock.errors import ConfigError
from penstock.transforms.draws import Draws
from penstock.transforms.steps import Size


class Mix(NamedTuple):
    kept: float
    """Lambda: the sample's own weight in the mix."""
    box: tuple[int, int, int, int] | None = None
    """Left, top, right and bottom of the neighbour's box; None if whole images are blended."""


@dataclass(frozen=True)
class BatchMix:
    """The common part of MixUp and CutMix.

    Takes a list of samples (image, label, ...) or a batch (images, labels, ...). Labels become one float per class; later elements stay as
    they are.
    """

    alpha: float = 1.0
    """Parameter of the Beta distribution of lambda: small values mix little, 1 is uniform."""
    num_classes: int | None = None
    """Required unless labels are already class probabilities."""

    def __post_init__(self) -> None:
        if not self.alpha > 0:
            raise ConfigError(f"alpha must be above 0, got {self.alpha}")
        if self.num_classes is not None and self.num_classes < 1:
            raise ConfigError(f"num_classes must be above 0, got {self.num_classes}")

    @property
    def name(self) -> str:
        return type(self).__name__

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        images, labels, *others = batch_of(inputs, self.name)
        self.check(images, labels)
        drawn = self.draw(Draws(call_seed(self.name)), (images.shape[-2], images.shape[-1]))
        return self.mixed(images, drawn), self.mixed_labels(labels, drawn.kept), *others

    def check(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        if images.ndim < 4 or len(images) != len(labels) or labels.ndim not in (1, 2):
            raise ValueError(
                f"{self.name} needs images of a batch, and a label or a probability per class for each: got "
                f"{tuple(images.shape)} and {tuple(labels.shape)}"
            )
        if labels.ndim == 1 and self.num_classes is None:
            raise ConfigError(f"{self.name} needs num_classes where labels are numbers of classes")
        if labels.ndim == 2 and self.num_classes not in (None, labels.shape[1]):
            raise ConfigError(f"labels are of {labels.shape[1]} classes, num_classes says {self.num_classes}")

    def draw(self, draws: Draws, size: Size) -> Mix:
        """Draw the mix for a batch of images of `size`."""
        raise NotImplementedError

    def mixed(self, images: torch.Tensor, drawn: Mix) -> torch.Tensor:
        raise NotImplementedError

    def mixed_labels(self, labels: torch.Tensor, kept: float) -> torch.Tensor:
        if labels.ndim == 1:
            assert self.num_classes is not None
            labels = one_hot(labels.long(), self.num_classes)
        return blended(labels if labels.is_floating_point() else labels.float(), kept)


@dataclass(frozen=True)
class MixUp(BatchMix):
    """Blend each image with its neighbour: lambda of the image, 1 - lambda of the neighbour. Images must be floats."""

    def draw(self, draws: Draws, size: Size) -> Mix:  # noqa: ARG002
        return Mix(draws.beta(self.alpha, self.alpha))

    def mixed(self, images: torch.Tensor, drawn: Mix) -> torch.Tensor:
        if not images.is_floating_point():
            raise ConfigError("MixUp needs floats: end the chain with ToDtype(torch.float32, scale=True)")
        return blended(images, drawn.kept)


@dataclass(frozen=True)
class CutMix(BatchMix):
    """Replace a box of each image by its neighbour's. Lambda becomes the exact fraction of the image that is left."""

    def draw(self, draws: Draws, size: Size) -> Mix:
        height, width = size
        half = 0.5 * math.sqrt(1.0 - draws.beta(self.alpha, self.alpha))
        x, y = draws.below(width), draws.below(height)
        across, down = int(half * width), int(half * height)
        left, top = max(0, x - across), max(0, y - down)
        right, bottom = min(width, x + across), min(height, y + down)
        return Mix(1.0 - (right - left) * (bottom - top) / (width * height), (left, top, right, bottom))

    def mixed(self, images: torch.Tensor, drawn: Mix) -> torch.Tensor:
        assert drawn.box is not None
        left, top, right, bottom = drawn.box
        found = images.clone()
        found[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
        return found


def blended(values: torch.Tensor, kept: float) -> torch.Tensor:
    return values.roll(1, 0).mul_(1.0 - kept).add_(values.mul(kept))


def batch_of(inputs: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Return images, labels and the rest, collated if necessary."""
    given = inputs[0] if len(inputs) == 1 else inputs
    if isinstance(given, (list, tuple)) and given and isinstance(given[0], (list, tuple)):
        given = default_collate(list(given))
    if (
        not isinstance(given, (list, tuple))
        or len(given) < 2
        or not all(isinstance(part, torch.Tensor) for part in given[:2])
    ):
        raise ValueError(
            f"{name} takes a list of samples (image, label, ...), or (images, labels, ...) of a batch"
        )
    return tuple(given)
