"""When the samples of a task were renewed, looked up for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.plan.renewal import Renewal
from penstock.store.partial import Wanted


class When(NamedTuple):
    renewed: int
    """The epoch of which a sample's partial part is."""
    kept: bool


class Schedule:
    def __init__(self, renewal: Renewal) -> None:
        self.renewal, self.epoch = renewal, 0
        self.announced: dict[int, When] = {}

    def begin(self, epoch: int, keys: Sequence[Any]) -> None:
        """Samples of these keys are prepared next."""
        self.epoch = epoch
        places = np.array([key % self.renewal.length for key in keys], dtype=np.int64)
        renewed, kept = self.renewal.when(places, epoch)
        when = map(When, renewed.tolist(), kept.tolist())
        self.announced = dict(zip(places.tolist(), when, strict=True))

    def kept(self) -> list[Wanted]:
        """What will be asked of a store, in the order of the keys."""
        return [Wanted(place, when.renewed) for place, when in self.announced.items() if when.kept]

    def of(self, index: int) -> When:
        found = self.announced.get(index)
        if found is None:  # another than was announced: it replaces one that cannot be prepared
            renewed, kept = self.renewal.when(np.array([index]), self.epoch)
            found = When(int(renewed[0]), bool(kept[0]))
        return found
