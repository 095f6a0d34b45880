"""Several outputs of one image: multi-crop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.transforms.base import RandomOp
from penstock.transforms.draws import Draws
from penstock.transforms.steps import Program, Size


@dataclass(frozen=True)
class MultiCrop(RandomOp):
    """Several crops of one decoded image, as in DINO: `MultiCrop([(RandomResizedCrop(224), 2), (RandomResizedCrop(96), 8)])`.

    Each entry is (ops, count): an op or a list of ops, drawn anew for each crop. Ops before it in the chain run once; ops after it run on
    every crop, with their own draws. The sample is a tuple of tensors in this order.
    """

    crops: Sequence[tuple[Any, int]]

    def __post_init__(self) -> None:
        crops: Sequence[Any] = self.crops
        for crop in crops:
            if (
                not isinstance(crop, Sequence)
                or len(crop) != 2
                or not isinstance(crop[1], int)
                or crop[1] < 1
            ):
                raise ConfigError(f"each crop must be (ops, how many), got {crop!r}")
        if not self.crops:
            raise ConfigError("MultiCrop needs at least one crop")

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        raise ConfigError("MultiCrop makes several images: it cannot stand within another op")
