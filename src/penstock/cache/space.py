"""Which bytes of the memory tier are free. Pure bookkeeping.

Rule 1: an extent's length is rounded up by at most a sixty-fourth (`rounded`), so that the hole of one fits others like it.
Rule 2: the smallest hole that fits is taken, the lowest of several. Its rest stays free.
Rule 3: neighbouring holes are one hole. When nothing is taken, everything is one hole.
Rule 4: where much is free and no hole is large enough, extents that may move are moved down to the start of a hole, one after the other: the hole moves
        up, and grows with each that it meets (`way_to`, `shift`). Samples of many sizes that stay for different times leave such holes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

LINE = 64
STEPS = 64
"""Least lengths between two powers of two. Fewer waste more in each extent; with more, there are more holes of odd lengths to search."""


MOST_TRIES, MOST_MOVED = 16, 8 << 20
"""Holes that are tried, the largest first, and bytes that may be moved for one extent."""


def rounded(nbytes: int) -> int:
    """Return the length of an extent for `nbytes`: at most a sixty-fourth more, or up to the next cache line."""
    step = max(LINE, 1 << max(0, (nbytes // STEPS).bit_length() - 1))
    return max(step, -(-nbytes // step) * step)


class FreeSpace:
    """A growable range of bytes, from 0 on. Callers pass lengths made by `rounded`."""

    def __init__(self) -> None:
        self.end = self.free = 0
        self._by_size: list[tuple[int, int]] = []
        """(length, start) of each hole, in order."""
        self._starts: dict[int, int] = {}
        """Length of the hole that starts there."""
        self._ends: dict[int, int] = {}
        """Start of the hole that ends there."""

    @property
    def largest(self) -> int:
        """Return the length of the largest hole."""
        return self._by_size[-1][0] if self._by_size else 0

    def grow(self, nbytes: int) -> None:
        """Add free bytes behind the end."""
        start, self.end = self.end, self.end + nbytes
        self.give(start, nbytes)

    def take(self, length: int) -> int | None:
        """Return the start of a new extent; None if no hole is large enough."""
        at = bisect_left(self._by_size, (length, 0))
        if at == len(self._by_size):
            return None
        size, start = self._by_size[at]
        self._remove(size, start)
        if size > length:
            self._add(size - length, start + length)
        return start

    def give(self, start: int, length: int) -> None:
        """Make an extent free again."""
        end = start + length
        if (behind := self._starts.get(end)) is not None:
            self._remove(behind, end)
            length += behind
        if (before := self._ends.get(start)) is not None:
            self._remove(start - before, before)
            start, length = before, length + start - before
        self._add(length, start)

    def way_to(self, length: int, movable: Callable[[int], int | None]) -> list[tuple[int, int]] | None:
        """Return what to `shift`, in order, for a hole of this length: (start of the hole, length of the extent behind it). None if there is no short way.
        `movable`: the length of the extent that starts there, if it may be moved."""
        if self.free < length:
            return None
        for size, start in reversed(self._by_size[-MOST_TRIES:]):
            way: list[tuple[int, int]] = []
            hole, moved, at = size, 0, start
            while hole < length and moved <= MOST_MOVED:
                extent = movable(at + hole)
                if extent is None:
                    break
                way.append((at, extent))
                at, moved = at + extent, moved + extent
                hole += self._starts.get(at + hole, 0)
            if hole >= length:
                return way
        return None

    def shift(self, start: int, length: int) -> int:
        """Note that the extent behind a hole was moved to the hole's start; return how far."""
        size = self._starts[start]
        self._remove(size, start)
        self.give(start + length, size)
        return size

    def _add(self, size: int, start: int) -> None:
        insort(self._by_size, (size, start))
        self._starts[start], self._ends[start + size] = size, start
        self.free += size

    def _remove(self, size: int, start: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, start))]
        del self._starts[start], self._ends[start + size]
        self.free -= size
