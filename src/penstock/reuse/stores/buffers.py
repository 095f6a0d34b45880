"""Memory for what is read, used again: fresh memory costs more than the reading, since the kernel clears it page by page.

Rule 1: a buffer is used again only when nobody refers to it: whatever is made of it, an array or a view, refers to it.
Rule 2: no more is kept than `MOST_BYTES`; what is needed beyond is memory like any other.
"""

from __future__ import annotations

import sys

LEAST_BYTES = 64 << 10
"""Below, the interpreter's own memory is warm enough."""
MOST_BYTES = 32 << 20


class Buffers:
    """Of one thread at a time."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._bytes = 0

    def of(self, nbytes: int) -> bytearray:
        """At least so many bytes, with anything in them."""
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
