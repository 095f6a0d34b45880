"""Count how much core-time a rank has borrowed or lent, and show when that changes."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.wire import frames as wire
from penstock.wire.arena import Board


class CoreTime:
    """`row`: the agent's row of the board. `tell` gets a message for the trace at each change."""

    def __init__(
        self,
        row: memoryview,
        tell: Callable[[bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._row, self._tell, self._clock = row, tell, clock
        self._held: tuple[int, int] | None = None
        """The rank's own workers, and those that may begin tasks."""
        self._counted_s = 0.0

    def hold(self, own: int, allowed: int) -> None:
        """Count until now, and with these numbers from now on."""
        now_s = self._clock()
        if self._held is not None:
            before, used = self._held
            self._row[Board.EXTRA_NS] += round((used - before) * (now_s - self._counted_s) * 1e9)
        self._counted_s = now_s
        if self._held != (own, allowed):
            self._held, self._row[Board.OWN] = (own, allowed), own
            self._tell(wire.CORES.pack(round(now_s * 1e9), own, allowed))
