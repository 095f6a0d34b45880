"""Record the draws of samples that a tally follows, beside their preparation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.pipeline.chain import Chain
from penstock.plan.seeds import Company
from penstock.reuse.draw_tally import DrawTally
from penstock.transforms.drawn import chain_outcome, number_of, sound_outcome
from penstock.transforms.outcomes import outcomes_in_row, sound_outcomes
from penstock.transforms.steps import Size


class Meter(NamedTuple):
    tally: DrawTally
    chain: Chain
    split: int

    def partial(self, sample: int, renewed: int, seed: int, size: Size) -> None:
        """Record that the partial part is drawn from this seed."""
        if sample in self.tally.slots:
            ops = self.chain.ops
            drawn = chain_outcome(ops, seed, size, None, 0, self.split)
            self.tally.partial(sample, renewed, drawn, math.prod(outcomes_in_row(ops[: self.split], size)))

    def use(
        self, sample: int, epoch: int, renewed: int, seed: int, size: Size, company: Company | None
    ) -> None:
        """Record the draw of the final part; `size` is that of the stored part."""
        if sample in self.tally.slots:
            ops = self.chain.ops
            drawn = chain_outcome(ops, seed, size, company, self.split, len(ops))
            outcomes = math.prod(outcomes_in_row(ops[self.split :], size))
            self.tally.use(sample, epoch, renewed, drawn, outcomes)


class SoundNotes:
    """Collects the draws of one recording; call it for each op, with the input shape."""

    def __init__(self) -> None:
        self.outcomes: float = 1
        self._drawn: list[Any] = []

    def __call__(self, op: Any, numbers: Sequence[float], shape: Sequence[int]) -> None:
        self.outcomes *= sound_outcomes(op, shape)
        self._drawn.append(sound_outcome(op, numbers, shape))

    @property
    def number(self) -> int:
        return number_of(self._drawn)
