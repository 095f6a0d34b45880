"""The slot dataset with reuse (`Reuse`).

On a hit, the kernels or the worker do the rest of the sample. On a miss it may leave as a file, and is then not stored. With `store="device"`, a
resident sample stays on the device, and a new one goes there whole, with its place.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.gpu.dataset import SlotDataset
from penstock.gpu.requests import AS_THERE_IS_ROOM
from penstock.gpu.slots import KEPT, NO_PIXELS, RESIDENT
from penstock.kernels.layout import interleaved
from penstock.pipeline.begun import Begun
from penstock.pipeline.chain import opened, size_of
from penstock.pipeline.header import BadImage
from penstock.reuse.begun import Loan, ReuseBegun
from penstock.reuse.stores.device import Resident


class ReuseSlotDataset(SlotDataset):
    def _may_leave(self, begun: Begun, share: float) -> bool:
        """Refuse a sample to be stored if its other uses will be made from pixels a worker has decoded."""
        assert isinstance(begun, ReuseBegun)
        return begun.to_keep is None or (not self._drawn and share == AS_THERE_IS_ROOM)

    def _here(self, begun: Begun) -> Any:
        assert isinstance(begun, ReuseBegun)
        found: ReuseBegun = begun if begun.to_keep is None else self._source.partly(begun)
        if found.kept is not None:
            write = self._kept_there(found) if self.requests.finishes else None
            if write is not None:
                return write
            if isinstance(found.image, Resident):
                found = replace(found, image=self._source.again(found.kept))
        return self._prepared(found) if found.loan is None else self._lent(found, found.loan)

    def _lent(self, begun: ReuseBegun, loan: Loan) -> Any:
        """Return the writer of a borrowed image: valid only if it held until the end of the read; otherwise it is made again. If a second worker may
        write the same slot concurrently, every byte written must be right from the start."""
        if not self.requests.finishes:
            return self._finished(self._source.pixels(begun))
        if not self._repeatable:
            return partial(self._surely, begun, loan, self._prepared(begun))
        program, pixels = opened(begun.program, begun.image)
        if np.may_share_memory(pixels, begun.image):
            pixels = pixels.copy()
        if not loan.holds():
            return self._prepared(replace(begun, image=self._source.again(loan.wanted)))
        return self._decoded(program, pixels)

    def _surely(self, begun: ReuseBegun, loan: Loan, write: Any, slot: torch.Tensor) -> None:
        """Write with a single copy, straight from the store."""
        write(slot)
        if loan.holds():
            return
        try:
            self._prepared(replace(begun, image=self._source.again(loan.wanted)))(slot)
        except BadImage as exc:
            exc.add_note(f"penstock: {self._source.name(loan.wanted.sample)}")
            raise

    def _kept_there(self, begun: ReuseBegun) -> Any:
        """Leave the sample on the device, or send it there whole; None if a step has no kernel or there is no place."""
        image, size = begun.image, size_of(begun.image)
        if isinstance(image, Resident):
            packing = self._packed(RESIDENT, NO_PIXELS, size, begun.program, interleaved)
            return None if packing is None else packing.at(image.place).write
        if image.shape[2] != 3 or image.dtype != np.uint8 or not self._source.store.is_open:
            return None
        packing = self._packed(KEPT, image, size, begun.program, interleaved)
        place = None if packing is None else self._source.store.reserve(begun.kept, size)
        return None if packing is None or place is None else packing.at(place).write
