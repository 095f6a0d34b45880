"""Leases: a delivered batch's memory is the user's until nothing refers to it.

A tensor over arena memory keeps its `memoryview` alive through all views, slices and NumPy aliases. When the last view of a batch dies,
its memory returns to the arena. Once the user holds half of the arena, further batches are copied to private memory, so that
`list(loader)` works and never starves the engine.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.agent.exposure import Child, watch
from penstock.wire import frames as wire
from penstock.wire.arena import Arena
from penstock.wire.layout import Layout, read_batch
from penstock.wire.pickles import Ref, rebuild, unpack


class WatchedTensor(weakref.ref[memoryview]):
    """A watched view of one tensor's memory; when it dies, it joins a list."""

    tenancy: Tenancy | None = None
    """None only until the next line sets it; an interrupt may come between."""
    number: int = 0


@dataclass(slots=True, eq=False)
class Tenancy:
    """The live views of one batch's memory."""

    seq: int
    nbytes: int
    """Arena bytes in use; 0 for a private copy."""
    views: dict[int, WatchedTensor] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    """Processes forked while the batch was held: they share its memory."""
    made: int = 0
    sealed: bool = False
    """All views have been made: no views left now means the batch is free."""


class Leases:
    """Lends arena memory and notices its release. `freed` collects batches that are free again."""

    def __init__(self, arena: Arena, limit_bytes: int) -> None:
        self._arena, self._limit = arena, limit_bytes
        self._tenancies: dict[int, Tenancy] = {}
        self._owner = os.getpid()
        self._dead: deque[WatchedTensor] = deque()
        self.freed: deque[int] = deque()
        self.private_copies = 0
        self._held = 0
        self._seen: list[Tenancy] = []
        """Batches free in this process but still visible to children."""
        watch(self)

    @property
    def held_bytes(self) -> int:
        self.collect()
        return self._held

    def open(self, seq: int, nbytes: int) -> Tenancy:
        """Lend a batch of `nbytes`, or mark it for copying. Copy all or nothing: copying a part frees nothing. `nbytes=0` means copy."""
        if not nbytes or self.held_bytes + nbytes > self._limit // 2:  # guard: half-of-ring
            self.private_copies += 1
            nbytes = 0
        tenancy = self._tenancies[seq] = Tenancy(seq, nbytes)
        self._held += nbytes
        return tenancy

    def lease(self, tenancy: Tenancy, offset: int, nbytes: int) -> memoryview:
        """Return memory [offset, offset + nbytes) for one tensor of the batch, or a private copy."""
        if not tenancy.nbytes:
            return np.frombuffer(self._arena.view[offset : offset + nbytes], np.uint8).copy().data
        view = self._arena.view[offset : offset + nbytes]
        # A view may die in any thread at any time, even during a send or an interrupt, and Python swallows exceptions
        # raised there. So no Python code runs: the deque's own method records the death.
        watched = WatchedTensor(view, self._dead.append)
        watched.tenancy, watched.number = tenancy, tenancy.made
        tenancy.views[tenancy.made] = watched
        tenancy.made += 1
        return view

    def unpacked(self, payload: bytes, layouts: dict[int, Layout], size: int) -> Any:
        """Return the batch of `size` samples that a BATCH frame names: views of the arena, leased to the caller."""
        seq, offset, in_use, layout, count = wire.BATCH.unpack_from(payload)
        tenancy = self.open(seq, in_use)

        def lease(at: int, nbytes: int) -> memoryview:
            return self.lease(tenancy, at, nbytes)

        def load(ref: Ref) -> Any:
            return rebuild(ref, lease(ref.offset, ref.nbytes))

        try:
            if layout < 0:
                return unpack(self._arena.view, offset, load)
            batch = read_batch(layouts[layout], size, offset, lease)
            if count:
                tail = payload[wire.BATCH.size :]
                gone = {int.from_bytes(tail[4 * i : 4 * i + 4], "little") for i in range(count)}
                batch = without(batch, [i for i in range(size) if i not in gone])
            return batch
        finally:
            self.seal(tenancy)

    def seal(self, tenancy: Tenancy) -> None:
        """Mark the batch complete; free it at once if nothing refers to the arena (texts, private copies)."""
        tenancy.sealed = True
        if not tenancy.views:
            self._free(tenancy)

    def collect(self) -> None:
        """Process dead views; free batches with none left."""
        while self._dead:
            view = self._dead.popleft()
            tenancy = view.tenancy
            if tenancy is None:
                continue
            tenancy.views.pop(view.number, None)
            if tenancy.sealed and not tenancy.views:  # guard: last-view
                self._free(tenancy)

    def _free(self, tenancy: Tenancy) -> None:
        # guard: child-frees-nothing
        if self._tenancies.pop(tenancy.seq, None) is None or os.getpid() != self._owner:
            return
        if tenancy.children:  # guard: seen-by-child
            self._seen.append(tenancy)
        else:
            self._let_go(tenancy)

    def _let_go(self, tenancy: Tenancy) -> None:
        self._held -= tenancy.nbytes
        self.freed.append(tenancy.seq)

    # ---- forked children of the training process

    def holds_batches(self) -> bool:
        return bool(self._tenancies) and os.getpid() == self._owner

    def expose(self, child: Child) -> None:
        for tenancy in list(self._tenancies.values()):
            tenancy.children.append(child)

    def sweep(self) -> None:
        """Free batches that only children could see, once those have ended."""
        if self._seen:
            waiting, self._seen = self._seen, []
            for tenancy in waiting:
                tenancy.children = [child for child in tenancy.children if not child.gone()]
                if tenancy.children:
                    self._seen.append(tenancy)
                else:
                    self._let_go(tenancy)


def without(batch: Any, keep: list[int]) -> Any:
    """Return only rows `keep` of the batch, after `on_error="skip"` dropped samples."""
    if isinstance(batch, dict):
        return {key: without(value, keep) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)) and isinstance(batch[0], (str, bytes)):
        return type(batch)(batch[i] for i in keep)
    if isinstance(batch, tuple):
        return type(batch)(*(without(value, keep) for value in batch))
    if isinstance(batch, list):
        return [without(value, keep) for value in batch]
    return batch[keep]
