"""A staged dataset whose partly prepared samples are kept on the device that trains: their final part is done there, and only there.

Rule 1: a sample that lies on the device is begun without its file and without its pixels (`Resident`). Whoever cannot leave it to the device asks for
        the pixels `again`.
Rule 2: one that does not is prepared up to its final part, and may be given a place (`Begun.kept`) by whoever sends its pixels there.
"""

from __future__ import annotations

from typing import Any

from penstock.pipeline.chain import executed, size_of
from penstock.pipeline.decode import Image
from penstock.pipeline.reused import Reused
from penstock.pipeline.staged import Begun
from penstock.plan.seeds import partial_seed
from penstock.store.kept_device import DeviceStore
from penstock.store.partial import Wanted


class ReusedOnDevice(Reused):
    store: DeviceStore

    def _begun_kept(self, wanted: Wanted, seed: int) -> Begun:
        found: Any = self.store.find(wanted)
        if found is None:
            found, target = self._anew(*wanted)
        else:
            target = self.source.target_of(wanted.sample)
        return Begun(b"", found, self._final(*wanted, size_of(found), seed), target, wanted)

    def again(self, wanted: Wanted) -> Image:
        """The partial part of a sample that was to be on the device, in whichever process and thread this is."""
        image = self.image(self.read(wanted.sample)[0])
        seed = partial_seed(self.renewal.seed, wanted.renewed, wanted.sample)
        return executed(self.chain.draw(seed, size_of(image), None, 0, self.split), image)
