"""A begun sample of a reusing dataset: found in a store, or to be put there."""

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
    """An image inside a store, where it may be overwritten at any time."""

    wanted: Wanted
    holds: Callable[[], bool]
    """Return whether everything read so far was the image."""
    mark: tuple[int, int]
    """An address and the number expected there: while they match, the image is valid. Both are 0 for an image that cannot change."""


class ToKeep(NamedTuple):
    """Store the sample when its first `steps` are done."""

    wanted: Wanted
    steps: int


@dataclass(slots=True)
class ReuseBegun(Begun):
    kept: Wanted | None = None
    """Key of the image in the device store, if it is or could be resident there."""
    loan: Loan | None = None
    """Set if the image is borrowed: check that it still holds after using it."""
    to_keep: ToKeep | None = None
    """Set on a store miss: whoever prepares the sample here calls `partly`, which stores it."""

    @property
    def first(self) -> Program:
        """The steps that set a sample's cost: only the partial part if it is to be stored. That part is equal in all uses, so a sample is always
        expensive or never, and entries that workers store are found again."""
        return self.program if self.to_keep is None else self.program[: self.to_keep.steps]


class Partly(Drawing, Protocol):
    def partly(self, begun: ReuseBegun, *, perhaps_there: bool = False) -> ReuseBegun:
        """Make the partial part of a sample and store it. `perhaps_there`: look it up first, it may be stored by now."""


class DeferredReuse(Deferred):
    """Deferred samples of one task: read images inside the store, and put missing ones there."""

    def __init__(self, dataset: Partly, tail: Tail, form: Form | None = None) -> None:
        super().__init__(dataset, tail, form)
        self._partly = dataset.partly
        self._kept: set[Wanted] = set()
        """Keys this task has put into the store."""

    def _row(self, begun: Begun, slot: torch.Tensor) -> bytes | None:
        assert isinstance(begun, ReuseBegun)
        return None if begun.to_keep is not None else super()._row(begun, slot)

    def _mark(self, begun: Begun) -> tuple[int, int]:
        assert isinstance(begun, ReuseBegun)
        return NO_MARK if begun.loan is None else begun.loan.mark

    def _write(self, begun: Begun, slot: torch.Tensor) -> None:
        """Write the sample; if it occurs twice in the task, reuse the entry the first one stored."""
        assert isinstance(begun, ReuseBegun)
        if begun.to_keep is not None:
            again = begun.to_keep.wanted in self._kept
            self._kept.add(begun.to_keep.wanted)
            begun = self._partly(begun, perhaps_there=again)
            row = self._row(begun, slot)
            if row is not None and not accel.finish([row]):
                return
        super()._write(begun, slot)
