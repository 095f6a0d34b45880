"""Samples stored on the device (`Reuse(store="device")`), as stations use them: in place, without a copy.

Rule 1: their memory is allocated once, from what training leaves. Without it nothing is stored, and training goes on.
Rule 2: a new sample is copied from its slot to its place, and read from there. Once the device is done its row is written: from then on workers
        send only its place.
Rule 3: a read from a place is valid only if nothing else was written there meanwhile. Otherwise the CPU makes the sample again, from its slot or
        its file: the same bytes, later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.gpu.slots import KEPT, Bytes, GpuSample, StationTask
from penstock.kernels.run import TaskTooLarge
from penstock.reuse.stores.contract import Wanted
from penstock.reuse.stores.device import CHANNELS, DevicePlace, DeviceStore, Places
from penstock.transforms.steps import Program

log = logging.getLogger("penstock")
OFFSET = DevicePlace._fields.index("offset")
TRIES = 3
"""Halvings of the memory before giving up."""


class Residents:
    """Stored samples of one lane; several lanes may share the store."""

    def __init__(
        self,
        store: DeviceStore,
        again: Callable[[Wanted], Bytes],
        allocate: Callable[[int], torch.Tensor],
    ) -> None:
        """`again`: makes the pixels of a sample anew. `allocate`: returns device memory; raises if it is not spare."""
        self.store, self._again, self._allocate = store, again, allocate

    def open(self) -> None:
        """Allocate the memory, unless that was tried."""
        store = self.store
        with store.opening:
            if store.was_tried:
                return
            store.was_tried = True
            whole = count = len(store.chunks)
            for _ in range(TRIES):
                try:
                    arena = self._allocate(count * store.chunk_bytes) if count else None
                except (RuntimeError, MemoryError) as exc:
                    log.debug("no memory for %d chunks on the device: %s", count, exc)
                    count //= 2
                    continue
                if arena is not None:
                    # Torch would cache it, out of reach of other loaders and processes.
                    store.open(arena, torch.cuda.empty_cache if arena.is_cuda else None)
                break
        if not store.is_open or count < whole:
            log.warning(
                "of the %s bytes of Reuse(store='device', max_bytes=...), the device has %s to spare: %s. Give a smaller max_bytes, or "
                "store='memory'",
                f"{store.max_bytes:,}",
                f"{store.stats()['held_bytes']:,}",
                "samples that find no place are prepared anew each time"
                if store.is_open
                else "nothing is kept there",
            )

    def run(self, task: StationTask, kernels: Callable[[], None], finish: Callable[[], None]) -> list[int]:
        """Copy new samples to their places, run the `kernels` on all samples of a task there, and wait (`finish`). Return the samples that must be
        made otherwise."""
        contents, store, ordinals = task.contents, self.store, np.asarray(task.ordinals)
        arena, places = store.arena, contents.places(task.ordinals)
        if arena is None or is_outside(places, contents.nbytes[ordinals], arena):
            return task.ordinals
        right = np.zeros(len(ordinals), np.bool_)
        new = contents.forms[ordinals] == KEPT
        right[new] = store.begin([DevicePlace(*place) for place in places[new].tolist()])
        written, sizes = [DevicePlace(*place) for place in places[right].tolist()], None
        try:
            try:
                for ordinal, place in zip(ordinals[right].tolist(), written, strict=True):
                    pixels = contents.pixels(ordinal)
                    arena[place.offset : place.offset + len(pixels)].copy_(pixels, non_blocking=True)
                kernels()
            finally:
                finish()  # also on failure: copies may be under way
            sizes = [contents.size(ordinal) for ordinal in ordinals[right].tolist()]
        finally:
            store.end(written, sizes)
        right[~new] = store.hold(places[~new])  # guard: place-still-held
        lost: list[int] = ordinals[~right].tolist()
        return lost

    def addresses(self, task: StationTask) -> NDArray[np.int64]:
        """Return the addresses of a task's samples."""
        arena = self.store.arena
        if arena is None:
            raise TaskTooLarge("nothing is kept on the device any more")
        found: NDArray[np.int64] = arena.data_ptr() + task.contents.places(task.ordinals)[:, OFFSET]
        return found

    def left(self, sample: GpuSample) -> tuple[Program, Bytes]:
        """Return a stored sample's program and pixels, for the CPU."""
        assert sample.place is not None
        if sample.form == KEPT:
            return sample.program, sample.image.reshape(*sample.size, CHANNELS)
        return sample.program, self._again(sample.place.wanted)


def is_outside(places: Places, nbytes: NDArray[np.int64], arena: torch.Tensor) -> bool:
    """Return whether any place lies outside the arena."""
    first = places[:, OFFSET]
    return bool((first < 0).any() or (first + nbytes > len(arena)).any())
