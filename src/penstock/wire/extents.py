"""Which byte ranges of the shared arena are free. Pure bookkeeping; the arena itself is `wire/arena.py`.

Rule 1: an extent starts at a multiple of `ALIGN` (a page, so that slabs can be pinned and punched).
Rule 2: the lowest extent that fits is taken, so that a small working set stays in warm memory.
Rule 3: neighbours are merged when freed; bytes used, free and in holes always sum to what lies before the end.
Rule 4: a hole is free memory returned to the system: back it again (`fill`) before use.
"""

from __future__ import annotations

from bisect import bisect_left

ALIGN = 4096


def aligned(nbytes: int, align: int = ALIGN) -> int:
    """Return `nbytes` rounded up to a multiple of `align`, at least one."""
    return max(align, (nbytes + align - 1) // align * align)


class Extents:
    """A growable set of free byte ranges."""

    def __init__(self, start: int = 0, size: int = 0) -> None:
        self.end = start
        self.used = 0
        self.holes: list[tuple[int, int]] = []
        """(start, end) of each, in order; none reaches the end."""
        self._offsets: list[int] = []
        self._sizes: dict[int, int] = {}
        if size:
            self.grow(size)

    @property
    def free(self) -> int:
        return sum(self._sizes.values())

    def end_for(self, nbytes: int) -> int:
        """Return the end needed for `nbytes` to fit behind the memory in use; free memory at the end counts."""
        last = self._offsets[-1] if self._offsets else self.end
        return (last if last + self._sizes.get(last, 0) == self.end else self.end) + aligned(nbytes)

    def grow(self, nbytes: int) -> None:
        """Add `nbytes` of new memory behind the present end."""
        start, self.end = self.end, self.end + nbytes
        self._insert(start, nbytes)

    def span_for(self, nbytes: int, limit: int) -> tuple[int, int] | None:
        """Return what to back so that `nbytes` fit, or come nearer to it: the lowest large enough hole, else memory behind
        the end, else any hole, which may merge with its neighbours."""
        need = aligned(nbytes)
        hole = next(((start, start + need) for start, end in self.holes if end - start >= need), None)
        if hole is None and self.end_for(nbytes) <= limit:
            return self.end, self.end_for(nbytes)
        return hole or next(iter(self.holes), None)

    def fill(self, start: int, end: int) -> None:
        """Add [start, end), now backed: the beginning of a hole, or memory behind the end."""
        if start == self.end:
            self.grow(end - start)
            return
        at = next(i for i, hole in enumerate(self.holes) if hole[0] == start)
        last = self.holes[at][1]
        self.holes[at : at + 1] = [(end, last)] if end < last else []
        self._insert(start, end - start)

    def give_up(self) -> list[tuple[int, int]]:
        """Turn all free memory into holes, lower the end to the memory in use, and return the ranges given up."""
        given = [(offset, offset + self._sizes[offset]) for offset in self._offsets]
        self._offsets.clear()
        self._sizes.clear()
        self.holes = joined([*self.holes, *given])
        if self.holes and self.holes[-1][1] == self.end:
            self.end = self.holes.pop()[0]
        return given

    def alloc(self, nbytes: int) -> int | None:
        """Return the offset of a new extent of `aligned(nbytes)` bytes, or None if nothing fits."""
        need = aligned(nbytes)
        for at, offset in enumerate(self._offsets):
            size = self._sizes[offset]
            if size < need:
                continue
            del self._offsets[at], self._sizes[offset]
            if size > need:
                self._offsets.insert(at, offset + need)
                self._sizes[offset + need] = size - need
            self.used += need
            return offset
        return None

    def release(self, offset: int, nbytes: int) -> None:
        """Give back what `alloc(nbytes)` returned."""
        self.used -= aligned(nbytes)
        self._insert(offset, aligned(nbytes))

    def _insert(self, offset: int, size: int) -> None:
        at = bisect_left(self._offsets, offset)
        if at < len(self._offsets) and offset + size == self._offsets[at]:
            size += self._sizes.pop(self._offsets.pop(at))
        if at and self._offsets[at - 1] + self._sizes[self._offsets[at - 1]] == offset:
            self._sizes[self._offsets[at - 1]] += size
            return
        self._offsets.insert(at, offset)
        self._sizes[offset] = size


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, with neighbours merged."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


LANE_ALIGN = 64
"""Each lane of a slab starts on a cache line."""


def lane_offsets(items: tuple[int, ...], size: int) -> tuple[list[int], int]:
    """Return the start of each lane of a slab of `size` samples, and the slab's bytes; lane i has `items[i]` per sample."""
    starts, end = [], 0
    for item in items:
        starts.append(end)
        end += aligned(item * size, LANE_ALIGN)
    return starts, end
