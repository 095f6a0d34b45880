"""Bookkeeping of a shared arena: which byte ranges are free. Pure; the arena itself is `store/arena.py`.

Rule 1: an extent starts at a multiple of `ALIGN` (a page, so that slabs can be pinned and punched).
Rule 2: the lowest extent that fits is taken, so that a small working set stays in warm memory.
Rule 3: neighbours are merged when freed; bytes used and free always sum to `size`.
"""

from __future__ import annotations

from bisect import bisect_left

ALIGN = 4096


def aligned(nbytes: int, align: int = ALIGN) -> int:
    """`nbytes` rounded up to a multiple of `align`, at least one."""
    return max(align, (nbytes + align - 1) // align * align)


class Extents:
    """A growable set of free byte ranges."""

    def __init__(self, start: int = 0, size: int = 0) -> None:
        self.end = start
        self.used = 0
        self._offsets: list[int] = []
        self._sizes: dict[int, int] = {}
        if size:
            self.grow(size)

    @property
    def free(self) -> int:
        return sum(self._sizes.values())

    def end_for(self, nbytes: int) -> int:
        """Where the end must be for `nbytes` to fit behind what is in use; free memory at the end counts."""
        last = self._offsets[-1] if self._offsets else self.end
        return (last if last + self._sizes.get(last, 0) == self.end else self.end) + aligned(nbytes)

    def grow(self, nbytes: int) -> None:
        """Add `nbytes` of new memory behind the present end."""
        start, self.end = self.end, self.end + nbytes
        self._insert(start, nbytes)

    def trim(self) -> bool:
        """Give up free memory at the end; whether there was any."""
        last = self._offsets[-1] if self._offsets else self.end
        if last + self._sizes.get(last, 0) != self.end or last == self.end:
            return False
        self._offsets.pop()
        del self._sizes[last]
        self.end = last
        return True

    def alloc(self, nbytes: int) -> int | None:
        """Offset of a new extent of `aligned(nbytes)` bytes, or None when nothing fits."""
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


LANE_ALIGN = 64
"""Each lane of a slab starts on a cache line."""


def lane_offsets(items: tuple[int, ...], size: int) -> tuple[list[int], int]:
    """Where each lane of a slab of `size` samples starts, and the slab's bytes; lane i holds `items[i]` per sample."""
    starts, end = [], 0
    for item in items:
        starts.append(end)
        end += aligned(item * size, LANE_ALIGN)
    return starts, end
