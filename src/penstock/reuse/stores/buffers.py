"""Reusable read buffers: fresh memory costs more than the read, since the kernel clears it page by page.

Rule 1: reuse a buffer only when nobody refers to it; every array or view made from it does.
Rule 2: pool at most `MOST_BYTES`; beyond that, allocate normally.
"""

from __future__ import annotations

import sys

LEAST_BYTES = 64 << 10
"""Below this the interpreter's allocator is warm enough."""
MOST_BYTES = 32 << 20


class Buffers:
    """A buffer pool for one thread at a time."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._bytes = 0

    def of(self, nbytes: int) -> bytearray:
        """Return a buffer of at least `nbytes`, with arbitrary content."""
        for at in range(len(self._kept)):
            # guard: buffer-in-use
            if nbytes <= len(self._kept[at]) <= 2 * nbytes and sys.getrefcount(self._kept[at]) == 2:
                return self._kept[at]
        made = bytearray(nbytes + nbytes // 8)  # the next one may be a little larger
        self._kept.append(made)
        self._bytes += len(made)
        while self._bytes > MOST_BYTES:
            self._bytes -= len(self._kept.pop(0))
        return made
