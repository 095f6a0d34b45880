"""Renewal epochs of a task's samples, looked up before the first is prepared."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from penstock.plan.renewal import Renewal, When
from penstock.reuse.stores.contract import PartialStore, Wanted


class Schedule:
    def __init__(self, renewal: Renewal, store: PartialStore) -> None:
        self.renewal, self.store, self.epoch = renewal, store, 0
        self.announced: dict[int, When] = {}

    def begin(self, epoch: int, keys: Sequence[Any]) -> None:
        """Announce the samples that are prepared next, also to the store."""
        self.epoch = self.store.now = epoch
        places = [index(key) % self.renewal.length for key in keys]
        self.announced = {place: self.renewal.of(place, epoch) for place in places}
        self.store.expect(
            [Wanted(place, when.renewed) for place, when in self.announced.items() if when.kept]
        )

    def of(self, sample: int) -> When:
        """Return the renewal of a sample; also of an unannounced one, which replaces a sample that cannot be prepared."""
        return self.announced.get(sample) or self.renewal.of(sample, self.epoch)
