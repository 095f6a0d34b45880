"""The simulated arena: cells that remember their last write, and claims on them.

A claim says that someone may still write or read a range: a task at a living worker, a collate whose parts are still
referred to, a batch in the user's hands. Giving such a range to another slab is a fault that tests of real memory may
miss, so it raises here at once, not when bytes go wrong.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from penstock.wire.extents import aligned, lane_offsets

CELL = 64


class Violation(AssertionError):
    """The core broke a promise; the text says which."""


class Shape(NamedTuple):
    """The shape of a sample: tensors of one kind, and a text that needs some room."""

    kind: int
    room: int

    @property
    def items(self) -> tuple[int, ...]:
        return (2 * CELL * (self.kind + 1), CELL * self.room)

    def holds(self, sample: Shape | None) -> bool:
        return sample is not None and sample.kind == self.kind and sample.room <= self.room

    def widened(self, sample: Shape) -> Shape:
        return Shape(sample.kind, max(self.room, sample.room)) if sample.kind == self.kind else sample


class FakeResult(NamedTuple):
    """An encoded result: its samples, and the parts it refers to instead of copying."""

    nbytes: int
    tokens: tuple[Any, ...]
    refers: tuple[int, ...] = ()


class Claim(NamedTuple):
    start: int
    end: int
    slab: Hashable
    """Claims on one slab may overlap: its writers write different slots, or the same bytes."""


class FakeMemory:
    def __init__(self, end: int) -> None:
        self.end = end
        self._cells: list[Any] = [None] * (end // CELL)
        self.claims: dict[Hashable, list[Claim]] = {}

    # ---- who may touch what

    def give_up(self, start: int, end: int) -> None:
        """Return [start, end) to the system: nobody may touch it any more."""
        for who, claims in self.claims.items():
            for claim in claims:
                if claim.start < end and start < claim.end:
                    raise Violation(f"[{start}, {end}) is given up while {who} may touch {claim}")
        self._fill(start, end - start, None)

    def claim(self, who: Hashable, slab: Hashable, offset: int, nbytes: int) -> None:
        end = offset + aligned(nbytes)
        if end > len(self._cells) * CELL:
            raise Violation(f"{who} was given [{offset}, {end}), beyond the end of the arena")
        for other, claims in self.claims.items():
            for claim in claims:
                if claim.start < end and offset < claim.end and claim.slab != slab:
                    raise Violation(
                        f"{who} was given [{offset}, {end}) for {slab}, which {other} still has for {claim.slab}"
                    )
        self.claims.setdefault(who, []).append(Claim(offset, end, slab))

    def unclaim(self, who: Hashable) -> None:
        self.claims.pop(who, None)

    def writers(self, offset: int) -> list[Hashable]:
        """Return the tasks that may still write the slab at `offset`."""
        return [
            who
            for who, claims in self.claims.items()
            if isinstance(who, tuple)
            and who[0] == "writes"
            and any(claim.start == offset for claim in claims)
        ]

    # ---- contents

    def write_slot(self, offset: int, shape: Shape, size: int, ordinal: int, token: Any) -> None:
        starts, _ = lane_offsets(shape.items, size)
        for start, item in zip(starts, shape.items, strict=True):
            self._fill(offset + start + ordinal * item, item, token)

    def read_slot(self, offset: int, shape: Shape, size: int, ordinal: int) -> set[Any]:
        """Return the values in one slot's cells; exactly one, if all is well."""
        starts, _ = lane_offsets(shape.items, size)
        found: set[Any] = set()
        for start, item in zip(starts, shape.items, strict=True):
            first = (offset + start + ordinal * item) // CELL
            found.update(self._cells[first : first + item // CELL])
        return found

    def write_result(self, offset: int, result: FakeResult, share: float = 1.0) -> None:
        """Write a result, or the first `share` of it: a worker may die in the middle."""
        self._fill(offset, int(result.nbytes * share) // CELL * CELL, result)

    def result_at(self, offset: int) -> FakeResult:
        result = self._cells[offset // CELL]
        if not isinstance(result, FakeResult):
            raise Violation(f"no result at {offset}, but {result}")
        return result

    def read_result(self, offset: int) -> tuple[Any, ...]:
        """Return the samples of the result at `offset` and of the parts it refers to; raise if it is incomplete."""
        result, first = self.result_at(offset), offset // CELL
        if set(self._cells[first : first + result.nbytes // CELL]) != {result}:
            raise Violation(f"the result at {offset} is torn")
        return result.tokens + tuple(token for part in result.refers for token in self.read_result(part))

    def _fill(self, offset: int, nbytes: int, value: Any) -> None:
        first, count = offset // CELL, nbytes // CELL
        self._cells[first : first + count] = [value] * count


def room_beside(taken: list[tuple[int, int]], start: int, end: int) -> int:
    """Return the longest free stretch of [start, end) beside the ranges `taken`."""
    best, at = 0, start
    for first, last in sorted(taken):
        best = max(best, first - at)
        at = max(at, last)
    return max(best, end - at)
