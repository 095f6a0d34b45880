"""A sample of a dataset that reuses: begun, and perhaps in a store, or to be put there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from penstock import accel
from penstock.pipeline.begun import Begun
from penstock.pipeline.deferred import NO_MARK, Deferred, Drawing, Form
from penstock.reuse.stores.contract import Wanted
from penstock.transforms.steps import Program
from penstock.transforms.tail import Tail


class Loan(NamedTuple):
    """An image that lies in a store, where something else may be written over it."""

    wanted: Wanted
    holds: Callable[[], bool]
    """Whether all that was read of it up to now was the image."""
    mark: tuple[int, int]
    """Where a number lies, and that number: if it is still the same, the image holds. Both are 0 of one that always does."""


class ToKeep(NamedTuple):
    """That a sample is to be in a store when its first steps are done."""

    wanted: Wanted
    steps: int


@dataclass(slots=True)
class ReuseBegun(Begun):
    kept: Wanted | None = None
    """The name that the image has in a store on the device, where it is or could be kept there."""
    loan: Loan | None = None
    """Of an image that is not the sample's own: whoever has used it asks whether it was there all the time."""
    to_keep: ToKeep | None = None
    """Of a sample that was not in a store: whoever prepares it here asks for it `partly` done, and has it kept by that."""

    @property
    def first(self) -> Program:
        """Of a sample that is to be kept the same in all its uses: so it is always dear or never, and what workers keep is found again."""
        return self.program if self.to_keep is None else self.program[: self.to_keep.steps]


class Partly(Drawing, Protocol):
    def partly(self, begun: ReuseBegun, *, perhaps_there: bool = False) -> ReuseBegun:
        """A sample that is to be kept, with its partial part done, and kept. `perhaps_there`: it may be in the store by now."""


class DeferredReuse(Deferred):
    """Of one task: images are read where they lie in a store, and what is to be kept is put there."""

    def __init__(self, dataset: Partly, tail: Tail, form: Form | None = None) -> None:
        super().__init__(dataset, tail, form)
        self._partly = dataset.partly
        self._kept: set[Wanted] = set()
        """What this task has put into a store."""

    def _row(self, begun: Begun, slot: torch.Tensor) -> bytes | None:
        assert isinstance(begun, ReuseBegun)
        return None if begun.to_keep is not None else super()._row(begun, slot)

    def _mark(self, begun: Begun) -> tuple[int, int]:
        assert isinstance(begun, ReuseBegun)
        return NO_MARK if begun.loan is None else begun.loan.mark

    def _write(self, begun: Begun, slot: torch.Tensor) -> None:
        """Of a sample that is in the task for the second time, what the first has put is used."""
        assert isinstance(begun, ReuseBegun)
        if begun.to_keep is not None:
            again = begun.to_keep.wanted in self._kept
            self._kept.add(begun.to_keep.wanted)
            begun = self._partly(begun, perhaps_there=again)
            row = self._row(begun, slot)
            if row is not None and not accel.finish([row]):
                return
        super()._write(begun, slot)
