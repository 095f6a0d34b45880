"""A transform of torchvision's as an op of a chain: drawn by torchvision's code, from numbers of the op's own.

torchvision draws from torch's generator. Here that is seeded for each draw, from the op's random numbers, and put back: so a draw depends on
(seed, sample, op) as that of any op of ours does, and not on what was drawn before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from penstock.transforms.base import Op
from penstock.transforms.draws import Draws
from penstock.transforms.steps import Program, Size


@dataclass(frozen=True)
class Theirs(Op):
    title: str
    version: str
    """Of torchvision's transforms: v1 or v2."""
    parameters: tuple[Any, ...]
    """Names and values of all of them, plain."""
    drawn: Callable[[Any, Size], Program] = field(compare=False)
    transform: Any = field(compare=False)
    outcomes: int = 1
    """Different results for one image, as `transforms.outcomes` counts them."""

    is_random = True

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
