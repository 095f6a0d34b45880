"""The ledger: what each batch still needs, who works on it, which memory it owns. Bookkeeping, no decisions.

Rule 1: a sample is in exactly one place: its bytes are away, it is still to do, in a live task, or done.
Rule 2: memory is freed only when its batch has let go of it *and* no task can still touch it. A cancelled task counts
until its worker confirms, so a late write never reaches memory with a new owner.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.events import Error, Kind, Task


@dataclass(slots=True, eq=False)
class Slab:
    """An extent of the arena."""

    offset: int
    nbytes: int
    owned: bool = True
    pins: int = 0
    """Tasks that may still write it."""
    holds: int = 0
    """Tasks whose worker may still read it."""


@dataclass(slots=True, eq=False)
class Batch:
    """A batch from feed to release."""

    seq: int
    size: int
    kind: Kind
    worker: int = -1
    """Streams: the worker whose iterator owes it."""
    todo: list[tuple[int, int]] = field(default_factory=list)
    """Ranges (start, count) that no live task covers, in order."""
    away: set[int] = field(default_factory=set)
    """Samples whose bytes are being fetched."""
    live: set[int] = field(default_factory=set)
    layout: int = -1
    slab: Slab | None = None
    parts: dict[int, Slab] = field(default_factory=dict)
    arrived: bool = False
    """Streams, out of order: the iterator has yielded it."""
    relaid: bool = False
    returned: bool = False
    """A task of it was lost, late or taken back: nobody waits for the pool that had it."""
    collated: bool = False
    delivered: bool = False
    error: tuple[int, Error] | None = None
    """First failed sample and its error, so that the raised error does not depend on timing."""
    dropped: set[int] = field(default_factory=set)
    poisoned: set[int] = field(default_factory=set)
    at_home: bool = False
    """Its data could not be read elsewhere: only local workers take the rest."""

    def take(self, count: int) -> tuple[int, int]:
        """Remove up to `count` samples from the front of `todo`; a poisoned sample goes alone."""
        start, size = self.todo.pop(0)
        count = min(count, size)
        if self.poisoned:
            bad = next((i for i in range(start, start + count) if i in self.poisoned), None)
            if bad is not None:
                count = 1 if bad == start else bad - start
        if count < size:
            self.todo.insert(0, (start + count, size - count))
        return start, count

    def land(self, start: int, count: int) -> None:
        """Add samples whose bytes have arrived to `todo`; what cannot be divided only when all are here."""
        landed = self.away.intersection(range(start, start + count))
        self.away -= landed
        if self.kind is Kind.WHOLE:
            self.todo = [(0, self.size)] if landed and not self.away and self.error is None else self.todo
            return
        needed = [ordinal for ordinal in landed if self.error is None or ordinal < self.error[0]]
        if needed:
            for first, length in self.todo:
                needed.extend(range(first, first + length))
            self.todo = runs(needed)

    @property
    def awaits_bytes(self) -> bool:
        """Whether samples are away, and not behind a failure."""
        return bool(self.away) and (self.error is None or min(self.away) < self.error[0])

    def give_back(self, start: int, count: int) -> None:
        """Return a void task's samples to `todo`, except those behind a failure."""
        if self.error is not None:
            count = min(count, self.error[0] - start)
        if count > 0 or (not self.size and self.error is None):
            insort(self.todo, (start, count))

    def fail(self, ordinal: int, error: Error) -> None:
        """Record a failure; samples from `ordinal` on are no longer needed."""
        if self.kind in (Kind.WHOLE, Kind.STREAM):
            ordinal = 0  # all or nothing
        if self.error is None or ordinal < self.error[0]:  # guard: first-failure
            self.error = (ordinal, error)
            self.todo = [(s, min(c, ordinal - s)) for s, c in self.todo if s < ordinal]

    def restart(self, kind: Kind) -> None:
        """Forget all progress; the caller handles memory and live tasks."""
        self.kind, self.layout, self.collated, self.error = kind, -1, False, None
        here = [(0, self.size)] if not self.away else runs(set(range(self.size)) - self.away)
        self.todo = [] if self.away and kind is Kind.WHOLE else here
        self.arrived, self.returned = False, False
        self.live.clear()
        self.dropped.clear()

    @property
    def complete(self) -> bool:
        """Whether all samples are done or a failure is certain. Cancelled tasks may still write."""
        if self.todo or self.live or self.awaits_bytes:
            return False
        return self.error is not None or (
            self.slab is not None and (self.kind is not Kind.PARTS or self.collated)
        )

    @property
    def awaits_collate(self) -> bool:
        return (
            self.kind is Kind.PARTS
            and not (self.todo or self.live or self.away or self.collated or self.error)
            and all(slab.pins == 0 for slab in self.parts.values())
        )

    def slabs(self) -> list[Slab]:
        return [*self.parts.values(), *([self.slab] if self.slab is not None else [])]


def runs(ordinals: Iterable[int]) -> list[tuple[int, int]]:
    """Return numbers as ranges (start, count)."""
    found: list[tuple[int, int]] = []
    for ordinal in sorted(ordinals):
        if found and sum(found[-1]) == ordinal:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((ordinal, 1))
    return found


@dataclass(slots=True, eq=False)
class Issued:
    """A task at a worker."""

    task: Task
    at_s: float
    cancelled: bool = False
    slabs: list[Slab] = field(default_factory=list)
    """Memory it may write (`pins`); a collate's parts are in `held`."""
    held: list[Slab] = field(default_factory=list)
    nbytes: int = 0
    """Expected bytes of its result, if its pool is bounded by bytes."""


class Unplaced(NamedTuple):
    """A result, ready in its worker, that has no memory yet."""

    seq: int
    start: int
    task: int
    worker: int
    nbytes: int
