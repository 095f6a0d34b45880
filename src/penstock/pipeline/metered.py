"""What is drawn for the samples that a tally follows, noted beside their preparation."""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock.pipeline.chain import Chain
from penstock.plan.seeds import Company
from penstock.store.draw_tally import DrawTally
from penstock.transforms.drawn import chain_outcome
from penstock.transforms.outcomes import outcomes_in_row
from penstock.transforms.steps import Size


class Meter(NamedTuple):
    tally: DrawTally
    chain: Chain
    split: int

    def partial(self, sample: int, renewed: int, seed: int, size: Size) -> None:
        """The partial part of a sample is drawn from this seed."""
        if sample in self.tally.slots:
            ops = self.chain.ops
            drawn = chain_outcome(ops, seed, size, None, 0, self.split)
            self.tally.partial(sample, renewed, drawn, math.prod(outcomes_in_row(ops[: self.split], size)))

    def use(
        self, sample: int, epoch: int, renewed: int, seed: int, size: Size, company: Company | None
    ) -> None:
        """Its final part is, on what was kept of it, which has this size."""
        if sample in self.tally.slots:
            ops = self.chain.ops
            drawn = chain_outcome(ops, seed, size, company, self.split, len(ops))
            outcomes = math.prod(outcomes_in_row(ops[self.split :], size))
            self.tally.use(sample, epoch, renewed, drawn, outcomes)
