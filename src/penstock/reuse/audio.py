"""Partial reuse of recordings, as `reuse.images` does for images.

Rule 1: draws are keyed as there: for the first ops by (seed, sample, renewal epoch), for the others by the sample's position in the epoch.
Rule 2: the output of the first ops (waveform or spectra, of any type) is stored unchanged, in C order. Later ops see the same values in the same
        order whether stored or fresh: float sums depend on that.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from penstock.dataset.offers import Offer, Offers
from penstock.dataset.seeding import call_seed
from penstock.pipeline.audio import AudioFolder
from penstock.plan.renewal import Renewal
from penstock.plan.seeds import partial_seed
from penstock.reuse.draw_tally import DrawTally
from penstock.reuse.metered import SoundNotes
from penstock.reuse.schedule import Schedule
from penstock.reuse.stores.contract import Entry, PartialStore, Wanted
from penstock.transforms.audio import Function


class ReusedAudio(Dataset[tuple[Any, Any]], Offers):
    def __init__(
        self,
        source: AudioFolder,
        split: int,
        renewal: Renewal,
        store: PartialStore,
        tally: DrawTally | None = None,
    ) -> None:
        """`split`: the number of ops in the partial part."""
        self.source = source
        self.chain, self.split, self.renewal, self.store = source.chain, split, renewal, store
        self.schedule, self.tally = Schedule(renewal, store), tally
        self._has_functions = any(isinstance(op, Function) for op in self.chain.ops[split:])

    def __len__(self) -> int:
        return len(self.source)

    def offer(self) -> Offer:
        return replace(self.source.offer(), get=partial(getitem, self), begin=self.schedule.begin, seam=None)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        sample = np.ascontiguousarray(self._prepared(index, call_seed("audio")))
        return torch.from_numpy(sample), self.source.target_of(index)

    def _prepared(self, index: int, seed: int) -> Any:
        when = self.schedule.of(index)
        wanted = Wanted(index, when.renewed)
        borrowed = self.store.borrow(wanted) if when.kept else None
        if borrowed is not None:
            kept = borrowed.entry.values
            if self._has_functions:  # a function may change it in place
                kept = kept.copy()
            found = self._final(wanted, kept, seed)
            if np.may_share_memory(found, borrowed.entry.values):
                found = found.copy()
            if borrowed.holds():
                return found
        made = self._partial(wanted)
        if when.kept:
            self.store.put(wanted, Entry(made))
        return self._final(wanted, made, seed)

    def _partial(self, wanted: Wanted) -> Any:
        """Run the ops up to the split, from the file on."""
        notes = self._notes(wanted.sample)
        seed = partial_seed(self.renewal.seed, wanted.renewed, wanted.sample)
        made = self.chain.through(self.source.wave(wanted.sample), seed, 0, self.split, notes)
        if self.tally is not None and notes is not None:
            self.tally.partial(*wanted, notes.number, notes.outcomes)
        return np.ascontiguousarray(made)

    def _final(self, wanted: Wanted, kept: Any, seed: int) -> Any:
        notes = self._notes(wanted.sample)
        found = self.chain.through(kept, seed, self.split, None, notes)
        if self.tally is not None and notes is not None:
            self.tally.use(wanted.sample, self.schedule.epoch, wanted.renewed, notes.number, notes.outcomes)
        return found

    def _notes(self, sample: int) -> SoundNotes | None:
        return SoundNotes() if self.tally is not None and sample in self.tally.slots else None
