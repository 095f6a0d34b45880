"""A staged dataset whose partly prepared samples are kept on the device that trains: their final part is done there, and only there.

Rule 1: a sample that lies on the device is begun without its file and without its pixels (`Resident`). Whoever cannot leave it to the device asks for
        the pixels `again`.
Rule 2: one that does not is prepared up to its final part, and may be given a place (`Begun.kept`) by whoever sends its pixels there.
"""

from __future__ import annotations

from typing import Any

from penstock.lanes.seeding import call_seed
from penstock.pipeline.chain import executed, size_of
from penstock.pipeline.decode import Image
from penstock.pipeline.reused import Reused
from penstock.pipeline.staged import Begun
from penstock.plan.seeds import partial_seed
from penstock.store.kept_device import DeviceStore
from penstock.store.partial import Wanted


class ReusedOnDevice(Reused):
    store: DeviceStore

    def begun(self, index: int) -> Begun:
        index, seed = index % len(self), call_seed("staged")
        when = self.schedule.of(index)
        if not when.kept:
            data, target, image, program = self._in_one(index, when.renewed, seed)
            return Begun(data, image, program, target)
        wanted = Wanted(index, when.renewed)
        found: Any = self.store.find(wanted)
        if found is None:
            found, target = self._anew(index, when.renewed)
        else:
            target = self.source.target_of(index)
        program = self._final(index, when.renewed, size_of(found), seed)
        return Begun(b"", found, program, target, wanted)

    def again(self, wanted: Wanted) -> Image:
        """The partial part of a sample that was to be on the device, in whichever process and thread this is."""
        image = self.image(self.read(wanted.sample)[0])
        seed = partial_seed(self.renewal.seed, wanted.renewed, wanted.sample)
        return executed(self.chain.draw(seed, size_of(image), None, 0, self.split), image)
