"""PerBatch: one draw for all samples of a batch, or of each part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.plan.seeds import Company, op_seed
from penstock.transforms.base import Op, leaves
from penstock.transforms.draws import Draws
from penstock.transforms.steps import Program, Size, drawn_in_row


@dataclass(frozen=True)
class PerBatch(Op):
    """Draw ops once for all samples of a batch: `PerBatch(RandAugment())` gives each batch its two ops and magnitudes.

    Draws depend on the place in the epoch where the batch begins, never on its split into tasks: they are the same for any worker count and
    after a resume. Samples share random numbers; the resulting parameters scale with each image's size. Put it directly in a chain (or a
    crop of MultiCrop), not inside another op. Without a loader, each call draws anew.
    """

    transforms: Any
    """An op or a list of ops."""
    samples: int | None = None
    """How many neighbours in the batch share a draw (a tiny-batch); None: the whole batch."""

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise ConfigError(f"samples must be above 0, or None for the whole batch, got {self.samples!r}")
        object.__setattr__(self, "transforms", tuple(leaves(self.transforms)))
        for op in self.transforms:
            if not isinstance(op, Op):
                raise ConfigError(f"PerBatch takes ops of penstock.transforms, got {op!r}")
        refuse_within(self)

    @property
    def is_random(self) -> bool:
        return any(op.is_random for op in self.transforms)

    def draw(self, draws: Draws, size: Size) -> Program:
        """Give each op its own random numbers: how many an op uses may depend on the image size."""
        seed, ops = draws.bits(), enumerate(self.transforms)
        return drawn_in_row(((op.draw, Draws(op_seed(seed, op.name, at))) for at, op in ops), size)

    def seed_of(self, seed: int, company: Company | None) -> int:
        return seed if company is None else company.shared(self.samples)


def refuse_within(op: Any) -> None:
    """Refuse a PerBatch inside another op: it would get that op's random numbers, which belong to one sample."""
    for inner in getattr(op, "transforms", ()):
        if isinstance(inner, PerBatch):
            raise ConfigError(f"PerBatch stands within {op.name}: put it into the chain itself")
        refuse_within(inner)
