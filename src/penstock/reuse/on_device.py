"""A staged dataset whose partly prepared samples are resident on the training device: the final part runs there, and only there.

Rule 1: a resident sample is begun without its file and pixels (`Resident`). A caller that cannot use the device makes the pixels `again`.
Rule 2: any other sample leaves as its file, or is prepared up to its final part. In the latter case, whoever sends its pixels to the device may
        store it there (`ReuseBegun.kept`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.pipeline.begun import Begun
from penstock.pipeline.chain import size_of
from penstock.pipeline.decode import Image
from penstock.reuse.begun import ReuseBegun
from penstock.reuse.images import Reused
from penstock.reuse.stores.contract import Wanted
from penstock.reuse.stores.device import DeviceStore, Resident


class ReusedOnDevice(Reused):
    store: DeviceStore

    def _found(self, wanted: Wanted, seed: int) -> ReuseBegun | None:
        found: Any = self.store.find(wanted)
        if found is None:
            return None
        target = self.source.target_of(wanted.sample)
        return ReuseBegun(b"", found, self._final(*wanted, size_of(found), seed), target, wanted)

    def pixels(self, begun: Begun) -> Image:
        if isinstance(begun.image, Resident):
            assert isinstance(begun, ReuseBegun)
            assert begun.kept is not None
            begun = replace(begun, image=self.again(begun.kept), kept=None)
        return super().pixels(begun)

    def partly(self, begun: ReuseBegun, *, perhaps_there: bool = False) -> ReuseBegun:
        assert begun.to_keep is not None
        return replace(super().partly(begun, perhaps_there=perhaps_there), kept=begun.to_keep.wanted)
