"""A staged dataset whose partly prepared samples are kept on the device that trains: their final part is done there, and only there.

Rule 1: a sample that lies on the device is begun without its file and without its pixels (`Resident`). Whoever cannot leave it to the device asks for
        the pixels `again`.
Rule 2: one that does not leaves as the file it is, or is prepared up to its final part, and then may be given a place (`ReuseBegun.kept`) by whoever
        sends its pixels there.
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
