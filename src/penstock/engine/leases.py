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

from penstock.store.arena import Arena


@dataclass(slots=True, eq=False)
class Tenancy:
    """The views that are alive over one batch's memory."""

    seq: int
    nbytes: int = 0
    views: dict[int, weakref.ref[memoryview]] = field(default_factory=dict)
    made: int = 0
    sealed: bool = False
    """All views have been made: from now on an empty set means that the batch is free."""


class Leases:
    """Hands out arena memory and notices when it is let go. `freed` collects batches that are free again."""

    def __init__(self, arena: Arena, limit_bytes: int) -> None:
        self._arena, self._limit = arena, limit_bytes
        self._tenancies: dict[int, Tenancy] = {}
        self._owner = os.getpid()
        self.freed: deque[int] = deque()
        self.private_copies = 0

    @property
    def held_bytes(self) -> int:
        return sum(tenancy.nbytes for tenancy in list(self._tenancies.values()))

    def open(self, seq: int) -> Tenancy:
        tenancy = self._tenancies[seq] = Tenancy(seq)
        return tenancy

    def lease(self, tenancy: Tenancy, offset: int, nbytes: int) -> memoryview:
        """Memory [offset, offset + nbytes) for one tensor of the batch, or a private copy of it."""
        if self.held_bytes + nbytes > self._limit // 2:
            self.private_copies += 1
            return np.frombuffer(self._arena.view[offset : offset + nbytes], np.uint8).copy().data
        view = self._arena.view[offset : offset + nbytes]
        tenancy.nbytes += nbytes
        number = tenancy.made = tenancy.made + 1
        tenancy.views[number] = weakref.ref(view, lambda _: self._gone(tenancy, number))
        return view

    def seal(self, tenancy: Tenancy) -> None:
        """The batch is complete; if nothing refers to the arena (texts, private copies), it is free at once."""
        tenancy.sealed = True
        if not tenancy.views:
            self._free(tenancy)

    def _gone(self, tenancy: Tenancy, number: int) -> None:
        # May run in any thread and at any time, the middle of another send included: so it only notes the fact.
        tenancy.views.pop(number, None)
        if tenancy.sealed and not tenancy.views:
            self._free(tenancy)

    def _free(self, tenancy: Tenancy) -> None:
        if self._tenancies.pop(tenancy.seq, None) is not None and os.getpid() == self._owner:
            self.freed.append(tenancy.seq)


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
