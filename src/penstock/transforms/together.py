"""One draw for many samples: those of a batch, or of each part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.plan.seeds import Company, op_seed
from penstock.transforms.draws import Draws
from penstock.transforms.ops import Compose, Op
from penstock.transforms.steps import Program, Size, program_size


@dataclass(frozen=True)
class PerBatch(Op):
    """Ops that are drawn once for all samples of a batch: `PerBatch(RandAugment())` gives each batch its two ops and magnitudes.

    What is drawn depends on the place in the epoch at which the batch begins, never on how it is cut into tasks: it is the same
    for any number of workers, and after a resume. Random numbers are shared; what they come to is in proportion to each image's
    size. It stands in a chain (or a crop of MultiCrop) itself, not within another op. Without a loader, each call draws anew.
    """

    transforms: Any
    """An op or a list of them."""
    samples: int | None = None
    """How many neighbours in the batch share a draw (a tiny-batch); None: all of the batch."""

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
        """Each op has random numbers of its own: how many the ones before it need may depend on the size of an image."""
        seed, program = draws.bits(), list[Any]()
        for number, op in enumerate(self.transforms):
            steps = op.draw(Draws(op_seed(seed, op.name, number)), size)
            size = program_size(steps, size)
            program += steps
        return program


def leaves(transform: Any) -> list[Any]:
    if isinstance(transform, Compose):
        transform = transform.transforms
    if isinstance(transform, (list, tuple)):
        return [op for inner in transform for op in leaves(inner)]
    return [transform]


def refuse_within(op: Any) -> None:
    """A PerBatch within another op would be given that op's random numbers, which are one sample's."""
    for inner in getattr(op, "transforms", ()):
        if isinstance(inner, PerBatch):
            raise ConfigError(f"PerBatch stands within {op.name}: put it into the chain itself")
        refuse_within(inner)


def seed_for(op: Any, seed: int, company: Company | None) -> int:
    """What an op is drawn from: the sample's seed, or one that the sample shares with its neighbours."""
    return seed if company is None or not isinstance(op, PerBatch) else company.shared(op.samples)
