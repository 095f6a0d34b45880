"""Samples whose pixels are made when all of a task are drawn: their worker then draws with what it needs for that in the caches of its core, which
pixels would drive out again and again, and parts of images that are kept are resized and normalised in one call.

Rule 1: a sample fails as it would without this, in the order of samples.
Rule 2: what is written is right from the first byte on: a second worker may have written the same before, and training may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from penstock import accel
from penstock.lanes.seeding import company
from penstock.lanes.unfinished import Unfinished
from penstock.pipeline.chain import size_of
from penstock.transforms.parts import Part, part_of
from penstock.transforms.steps import program_channels, program_size

if TYPE_CHECKING:
    from penstock.pipeline.staged import Begun, StagedDataset

NO_MARK = 0, 0


class Lent(NamedTuple):
    """A part that is resized together with others."""

    ordinal: int
    sample: int
    begun: Begun
    slot: torch.Tensor
    row: bytes


class Deferred:
    """Of one task."""

    def __init__(self, dataset: StagedDataset) -> None:
        self._dataset, self._tail = dataset, dataset.chain.tail
        self._numbers = self._tail.numbers() if accel.compiled() is not None else None
        self._lent: list[Lent] = []
        self._rest: list[tuple[int, Callable[[], None]]] = []

    def sample(self, index: int) -> tuple[Unfinished, Any]:
        """The sample, drawn; when it is written, where its pixels belong is noted, and nothing else."""
        with self._dataset.naming(index):
            begun = self._dataset.begun(index)
        part = None if begun.to_keep is not None else self._part(begun)
        shape = shape_of(begun) if part is None else (3, *part.new)
        return Unfinished(self._tail.dtype, shape, partial(self._note, index, begun, part)), begun.target

    def rest(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """What is left to do: for a sample of the batch, or from one on."""
        if self._lent:
            yield self._lent[0].ordinal, self._finish_lent
        yield from self._rest

    def _note(self, index: int, begun: Begun, part: Part | None, slot: torch.Tensor) -> None:
        here = company()
        ordinal = 0 if here is None else here.ordinal
        if part is None:
            self._rest.append((ordinal, partial(self._finish, index, begun, slot)))
        else:
            self._lent.append(Lent(ordinal, index, begun, slot, self._row(part, begun, slot)))

    def _part(self, begun: Begun) -> Part | None:
        return None if self._numbers is None else part_of(begun.program, begun.image)

    def _row(self, part: Part, begun: Begun, slot: torch.Tensor) -> bytes:
        mark = begun.loan.mark if begun.loan is not None else NO_MARK
        numbers, divides = self._numbers, self._tail.scale == "divide"
        assert numbers is not None
        return accel.PART.pack(
            *(
                part.address,
                part.stride,
                *mark,
                slot.data_ptr(),
                accel.pointer(numbers),
                *part.old,
                *part.new,
            ),
            *(part.cubic, part.down_first, part.mirrored, divides),
        )

    def _finish_lent(self) -> None:
        for at in accel.finish([lent.row for lent in self._lent]):
            lent = self._lent[at]
            self._finish(lent.sample, lent.begun, lent.slot)

    def _finish(self, index: int, begun: Begun, slot: torch.Tensor) -> None:
        with self._dataset.naming(index):
            if begun.to_keep is not None:
                begun = self._dataset.partly(begun)
                part = self._part(begun)
                if part is not None:
                    accel.finish([self._row(part, begun, slot)])
                    return
            self._tail.finish(self._dataset.pixels(begun), slot)


def shape_of(begun: Begun) -> tuple[int, int, int]:
    """Of what a sample becomes, as a tensor."""
    image = begun.image
    channels = program_channels(begun.program, image.shape[2] if isinstance(image, np.ndarray) else 3)
    return channels, *program_size(begun.program, size_of(image))
