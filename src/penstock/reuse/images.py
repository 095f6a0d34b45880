"""A staged dataset that stores partly prepared samples and reuses them (Revamper): each use runs only the final ops.

Rule 1: draws of the first ops, the *partial* part, depend on (seed, sample, renewal epoch); those of the others on the sample's position in the
        epoch, as usual. So a sample's bytes do not depend on the store.
Rule 2: a storable sample runs its partial part first, then the rest, also on a miss: hit and miss give the same bytes. A sample that is never
        stored runs in one go. A caller that can pass on the encoded file (`gpu.dataset`) may do so on a miss; it is then not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from penstock.dataset.offers import Offer
from penstock.dataset.seeding import call_seed, company
from penstock.pipeline.begun import Begun
from penstock.pipeline.chain import executed, shape_of, size_of
from penstock.pipeline.decode import Image
from penstock.pipeline.deferred import Deferred, Form
from penstock.pipeline.staged import StagedDataset
from penstock.plan.renewal import Renewal
from penstock.plan.seeds import partial_seed
from penstock.reuse import plain_targets
from penstock.reuse.begun import DeferredReuse, Loan, ReuseBegun, ToKeep
from penstock.reuse.draw_tally import DrawTally
from penstock.reuse.metered import Meter
from penstock.reuse.schedule import Schedule
from penstock.reuse.stores.contract import Entry, PartialStore, Wanted
from penstock.sources.sources import ByteRange
from penstock.transforms.steps import Size, program_size
from penstock.wire import pickles


class Reused(StagedDataset):
    def __init__(
        self,
        source: StagedDataset,
        split: int,
        renewal: Renewal,
        store: PartialStore,
        tally: DrawTally | None = None,
    ) -> None:
        """`split`: the number of ops in the partial part."""
        super().__init__(
            source.read,
            source.chain,
            len(source),
            decoder=source.decoder,
            max_pixels=source.max_pixels,
            fast_decode=source.fast_decode,
        )
        self.source, self.split, self.renewal, self.store = source, split, renewal, store
        self.after = source.after
        lasts = store.lasts
        self._dumps: Callable[[Any], bytes] = plain_targets.dumps if lasts else pickles.dumps_local
        self._loads: Callable[[bytes], Any] = plain_targets.loads if lasts else pickles.loads
        self.meter = None if tally is None else Meter(tally, source.chain, split)
        self.schedule = Schedule(renewal, store)

    def offer(self) -> Offer:
        source = self.source.offer()
        begin, first = self.schedule.begin, self.deferred
        return replace(source, get=self._unfinished, begin=begin, drawn_first=first, tail=None, seam=None)

    def name(self, index: int) -> str:
        return self.source.name(index)

    @property
    def is_located(self) -> bool:
        return self.source.is_located

    def locate(self, index: int) -> ByteRange:
        return self.source.locate(index)

    def deferred(self, form: Form | None = None) -> Deferred | None:
        suits = self.chain.is_one_program and not self.after and self.store.lends_many
        return DeferredReuse(self, self.chain.tail, form) if suits else None

    def begun(self, index: int) -> ReuseBegun:
        """Begin the sample from its stored partial part; else from its file, with a note of what to store."""
        index, seed = index % len(self), call_seed("staged")
        when = self.schedule.of(index)
        wanted = Wanted(index, when.renewed)
        found = self._found(wanted, seed) if when.kept else None
        return found or self._from_file(wanted, seed, kept=when.kept)

    def unfound(self, index: int) -> ReuseBegun:
        """Begin the sample as on a store miss, without a lookup."""
        index, seed = index % len(self), call_seed("staged")
        when = self.schedule.of(index)
        return self._from_file(Wanted(index, when.renewed), seed, kept=when.kept)

    def _from_file(self, wanted: Wanted, seed: int, *, kept: bool) -> ReuseBegun:
        data, target = self.read(wanted.sample)
        image = self.source.image(data)
        first = self._partial(*wanted, image)
        final = self._final(*wanted, program_size(first, size_of(image)), seed)
        to_keep = ToKeep(wanted, len(first)) if kept else None
        return ReuseBegun(data, image, first + final, target, to_keep=to_keep)

    def _found(self, wanted: Wanted, seed: int) -> ReuseBegun | None:
        """Begin the sample from its stored partial part, if found."""
        borrowed = self.store.borrow(wanted)
        there = None if borrowed is None else self._there(wanted.sample, borrowed.entry)
        if borrowed is None or there is None:
            return None
        pixels, target = there
        program = self._final(*wanted, size_of(pixels), seed)
        return ReuseBegun(b"", pixels, program, target, loan=Loan(wanted, borrowed.holds, borrowed.mark))

    def partly(self, begun: ReuseBegun, *, perhaps_there: bool = False) -> ReuseBegun:
        assert begun.to_keep is not None
        wanted, steps = begun.to_keep
        first, final = begun.program[:steps], begun.program[steps:]
        lent = self.store.borrow(wanted) if perhaps_there else None
        extra = self._extra(begun.target) if lent is None else None
        if lent is not None:
            pixels = lent.entry.values
        elif extra is not None:
            channels, *size = shape_of(begun.image, first)
            make = partial(executed, first, begun.image)
            pixels, lent = self.store.make(wanted, (*size, channels), extra, make)
        else:
            pixels = executed(first, begun.image)
        loan = None if lent is None else Loan(wanted, lent.holds, lent.mark)
        return ReuseBegun(b"", pixels, final, begun.target, loan=loan)

    def again(self, wanted: Wanted) -> Image:
        """Make the partial part of a sample again; works in any process and thread."""
        image = self.source.image(self.read(wanted.sample)[0])
        seed = partial_seed(self.renewal.seed, wanted.renewed, wanted.sample)
        return executed(self.chain.draw(seed, size_of(image), None, 0, self.split), image)

    def pixels(self, begun: Begun) -> Image:
        assert isinstance(begun, ReuseBegun)
        if begun.to_keep is not None:
            begun = self.partly(begun)
        pixels = executed(begun.program, begun.image)
        if begun.loan is None:
            return pixels
        if begun.loan.mark[0] and np.may_share_memory(pixels, begun.image):
            pixels = pixels.copy()
        if begun.loan.holds():
            return pixels
        kept = self.again(begun.loan.wanted)
        if (extra := self._extra(begun.target)) is not None:
            self.store.put(begun.loan.wanted, Entry(kept, extra))
        return executed(begun.program, kept)

    # ---- parts

    def _partial(self, index: int, renewed: int, image: Any) -> Any:
        """Draw the program of the partial part."""
        seed, size = partial_seed(self.renewal.seed, renewed, index), size_of(image)
        if self.meter is not None:
            self.meter.partial(index, renewed, seed, size)
        return self.chain.draw(seed, size, None, 0, self.split)

    def _final(self, index: int, renewed: int, size: Size, seed: int) -> Any:
        """Draw the program of the final part."""
        if self.meter is not None:
            self.meter.use(index, self.schedule.epoch, renewed, seed, size, company())
        return self.chain.draw(seed, size, company(), self.split)

    def _there(self, index: int, entry: Entry) -> tuple[Image, Any] | None:
        """Return the stored partial part and the target; None if the target cannot be read."""
        if self.source.knows_targets:
            return entry.values, self.source.target_of(index)
        try:
            return entry.values, self._loads(entry.extra)
        except Exception:  # noqa: BLE001 - whatever a user's object raises here: then the sample is read again
            return None

    def _extra(self, target: Any) -> bytes | None:
        """Serialize a target; None if that fails, and then the sample cannot be stored."""
        if self.source.knows_targets:
            return b""
        try:
            return self._dumps(target)
        except Exception:  # noqa: BLE001 - as above
            return None
