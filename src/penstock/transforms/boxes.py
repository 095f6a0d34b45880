"""Ops on bounding boxes, applied by torchvision's ops of the same names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.transforms.base import Op, called
from penstock.transforms.draws import Draws
from penstock.transforms.samples import theirs
from penstock.transforms.steps import Program, Size


@dataclass(frozen=True)
class OfBoxes(Op):
    """An op on torchvision's boxes. It does nothing in a staged dataset's chain, which clamps and sanitises boxes anyway."""

    apply = staticmethod(called)

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        return []

    def __call__(self, *inputs: Any) -> Any:
        return theirs(self)(*inputs)


@dataclass(frozen=True)
class ClampBoundingBoxes(OfBoxes):
    """Clamp boxes to the image."""

    clamping_mode: str | None = "auto"


@dataclass(frozen=True)
class SanitizeBoundingBoxes(OfBoxes):
    """Drop boxes with a side below `min_size` or an area below `min_area`, with their labels."""

    min_size: float = 1.0
    min_area: float = 1.0
    labels_getter: Callable[[Any], Any] | str | None = "default"
    """Where to find the boxes' labels: by default under "labels", or a key containing "label", in the sample or in the target that is its
    second element; None: there are none."""

    def __post_init__(self) -> None:
        if min(self.min_size, self.min_area) < 1:
            raise ConfigError(f"min_size and min_area must be >= 1, got {self.min_size} and {self.min_area}")

    def draw(self, draws: Draws, size: Size) -> Program:  # noqa: ARG002
        if (self.min_size, self.min_area) != (1, 1):
            raise ConfigError(
                "a staged dataset drops boxes of less than a pixel a side: other limits are not its"
            )
        return []
