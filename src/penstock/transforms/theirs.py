"""A torchvision transform as an op: torchvision's code draws, from the op's own random numbers.

torchvision draws from torch's generator. For each draw it is seeded from the op's random numbers, then restored. So a draw depends on
(seed, sample, op), as for our ops, and not on earlier draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock.transforms.base import RandomOp
from penstock.transforms.draws import Draws
from penstock.transforms.steps import Program, Size


@dataclass(frozen=True)
class Theirs(RandomOp):
    title: str
    version: str
    """torchvision's transforms version: v1 or v2."""
    parameters: tuple[Any, ...]
    """All parameters as plain (name, value) pairs."""
    drawn: Callable[[Any, Size], Program] = field(compare=False)
    transform: Any = field(compare=False)
    outcomes: int = 1
    """Distinct results for one image, as `transforms.outcomes` counts them."""

    @property
    def name(self) -> str:
        return self.title

    def identity(self) -> tuple[Any, ...]:
        return f"{self.title} of torchvision, {self.version}", *self.parameters

    def draw(self, draws: Draws, size: Size) -> Program:
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(draws.bits() >> 1)  # it takes 63 bits
        try:
            return self.drawn(self.transform, size)
        finally:
            generator.set_state(state)
