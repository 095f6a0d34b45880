"""Whose memory a delivered batch is: the user's, until nothing refers to it any more.

A tensor over arena memory keeps the `memoryview` it was made from alive through all its views, slices and NumPy
aliases. When the last of a batch's views is gone, its memory goes back to the arena. When the user holds half of what
there is, further batches are copied to private memory instead, so that `list(loader)` works and never starves us.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.agent.exposure import Child, watch
from penstock.wire.arena import Arena


class View(weakref.ref[memoryview]):
    """One tensor's memory, watched: when it dies, this is put on a list."""

    tenancy: Tenancy | None = None
    """None for the moment between its making and the next line, into which an interrupt may fall."""
    number: int = 0


@dataclass(slots=True, eq=False)
class Tenancy:
    """The views that are alive over one batch's memory."""

    seq: int
    nbytes: int
    """Memory that it keeps in use; 0 for a private copy."""
    views: dict[int, View] = field(default_factory=dict)
    children: list[Child] = field(default_factory=list)
    """Processes forked while the batch was held: they see its memory too."""
    made: int = 0
    sealed: bool = False
    """All views have been made: from now on an empty set means that the batch is free."""


class Leases:
    """Hands out arena memory and notices when it is let go. `freed` collects batches that are free again."""

    def __init__(self, arena: Arena, limit_bytes: int) -> None:
        self._arena, self._limit = arena, limit_bytes
        self._tenancies: dict[int, Tenancy] = {}
        self._owner = os.getpid()
        self._dead: deque[View] = deque()
        self.freed: deque[int] = deque()
        self.private_copies = 0
        self._held = 0
        self._seen: list[Tenancy] = []
        """Batches that are free here, but which children can still see."""
        watch(self)

    @property
    def held_bytes(self) -> int:
        self.collect()
        return self._held

    def open(self, seq: int, nbytes: int) -> Tenancy:
        """A batch that keeps `nbytes` of the arena in use, or is copied: the whole of it, since a part frees nothing.
        A batch of 0 bytes is not to be lent at all."""
        if not nbytes or self.held_bytes + nbytes > self._limit // 2:  # guard: half-of-ring
            self.private_copies += 1
            nbytes = 0
        tenancy = self._tenancies[seq] = Tenancy(seq, nbytes)
        self._held += nbytes
        return tenancy

    def lease(self, tenancy: Tenancy, offset: int, nbytes: int) -> memoryview:
        """Memory [offset, offset + nbytes) for one tensor of the batch, or a private copy of it."""
        if not tenancy.nbytes:
            return np.frombuffer(self._arena.view[offset : offset + nbytes], np.uint8).copy().data
        view = self._arena.view[offset : offset + nbytes]
        # A view may die in any thread and at any time, the middle of a send or of an interrupt included, and what Python
        # code raises there is swallowed. So no Python code runs there: the deque's own method takes note.
        watched = View(view, self._dead.append)
        watched.tenancy, watched.number = tenancy, tenancy.made
        tenancy.views[tenancy.made] = watched
        tenancy.made += 1
        return view

    def seal(self, tenancy: Tenancy) -> None:
        """The batch is complete; if nothing refers to the arena (texts, private copies), it is free at once."""
        tenancy.sealed = True
        if not tenancy.views:
            self._free(tenancy)

    def collect(self) -> None:
        """Look through the views that have died: batches without any are free."""
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
        """Free what only children could still see, where they have ended since."""
        if self._seen:
            waiting, self._seen = self._seen, []
            for tenancy in waiting:
                tenancy.children = [child for child in tenancy.children if not child.gone()]
                if tenancy.children:
                    self._seen.append(tenancy)
                else:
                    self._let_go(tenancy)


def without(batch: Any, keep: list[int]) -> Any:
    """The batch's rows `keep`: what is left when `on_error="skip"` left samples out."""
    if isinstance(batch, dict):
        return {key: without(value, keep) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)) and isinstance(batch[0], (str, bytes)):
        return type(batch)(batch[i] for i in keep)
    if isinstance(batch, tuple):
        return type(batch)(*(without(value, keep) for value in batch))
    if isinstance(batch, list):
        return [without(value, keep) for value in batch]
    return batch[keep]
