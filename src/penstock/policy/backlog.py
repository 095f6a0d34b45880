"""How much of workers' work is on its way to the GPU lane: samples that they leave to it as files. Pure.

Workers leave a sample to the lane while fewer than a limit are on their way to it or wait there. So the lane is given one for each that
it has done, and both work as fast as they can, without anybody knowing how fast that is. What is
left to find is the limit, by what shows:

Rule 1: hardly a batch is ready, the lane has time, and workers would have left it more: they are too slow, and it gets more. Is it busy all the time,
        more would only wait there; and where there was room, it is not the limit that it lacks.
Rule 2: batches are ready, and training does not wait: workers are fast enough, and the lane gets less, at last nothing.
Rule 3: batches are ready, and training waits: for the lane. It gets less, but slowly: what is decided now shows when all that are
        ready have passed.
Rule 4: finishing what workers decode is the first that the lane takes and the last that it gives back: it is a few launches for many
        samples. It is given back for a trial, and after a trial that failed, more rarely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FIRST, MOST = 1.0, 4.0
"""The limit at first and at most: a batch takes its time to be gathered, copied and made, and meanwhile the lane must have
others."""
GROWS, SHRINKS = 1.1, 0.9
SLOWLY = 0.3
"""Share of the limit that is taken back while all that are asked for ahead pass."""
LEAST = 0.03
"""A smaller limit is none at all."""
WAITS = 0.02
"""Share of its time that training must wait for it to count as waiting."""
BUSY = 0.9
"""Share of its time that a lane works which has no more of it to give."""
PLENTY = 4
"""Batches that are ready, where so many may be: more than enough."""
PATIENCE, MOST_PATIENCE = 64, 4096
"""Batches in a row that nobody waited for before workers are tried without the kernels; it doubles with each trial that failed."""


class Seen(NamedTuple):
    """What there is to see when training takes a batch."""

    ready: int
    """Batches that are ready behind it."""
    ahead: int
    """Batches that are asked for ahead."""
    wait_s: float
    """How long training waited for it."""
    period_s: float
    """Time since it took the one before."""
    busy: float
    """Share of that time that the lane was at work."""
    full: bool
    """Whether workers found no room meanwhile for a file that they would have left."""

    @property
    def waited(self) -> bool:
        return self.wait_s > WAITS * self.period_s


@dataclass(slots=True)
class Backlog:
    limit: float = FIRST
    """Files that may be on their way to the lane, in batches."""
    finishes: bool = True
    """Whether the kernels finish what workers decode."""
    _calm: int = 0
    """Batches in a row that were taken at once, while there were plenty."""
    _patience: int = PATIENCE

    def on_batch(self, seen: Seen) -> None:
        plenty = max(1, min(PLENTY, seen.ahead))
        self._calm = self._calm + 1 if seen.ready >= plenty and not seen.waited else 0
        if seen.ready >= plenty:
            self.limit *= 1.0 - SLOWLY / seen.ahead if seen.waited else SHRINKS
        elif (
            seen.ready <= plenty // 4 and seen.busy < BUSY and self.finishes and (seen.full or not self.limit)
        ):
            self.limit = min(MOST, max(LEAST, GROWS * self.limit))
        if self.limit < LEAST:
            self.limit = 0.0
        if self._calm >= self._patience:
            self.finishes = False
        elif seen.waited and not seen.ready and not self.finishes:
            self.finishes, self._patience = True, min(MOST_PATIENCE, 2 * self._patience)
