"""How many samples workers leave to the GPU lane as files (its backlog). Pure.

Workers leave a sample to the lane while fewer than a limit are in transit or queued there. So the lane gets a new one for each
it finishes, and both sides run at full speed without knowing the other's. Only the limit must be found:

Rule 1: raise the limit if hardly a batch is ready, the lane has time, and workers hit the limit: workers are too slow.
        Don't raise it if the lane is saturated or its queue had room.
Rule 2: lower it, down to zero, if batches are ready and training does not wait: workers are fast enough.
Rule 3: lower it slowly if batches are ready and training still waits: the lane is too slow. A change only shows after
        all ready batches have passed.
Rule 4: the lane takes over finishing decoded samples first and gives it up last: a few launches serve many samples.
        Giving it up is a trial; after a failed trial the next comes later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FIRST, MOST = 1.0, 4.0
"""The limit, in batches, at first and at most: the lane needs others while a batch is gathered, copied and made."""
GROWS, SHRINKS = 1.1, 0.9
SLOWLY = 0.3
"""Share of the limit withdrawn while all prefetched batches pass."""
LEAST = 0.03
"""A smaller limit counts as 0."""
WAITS = 0.02
"""Share of its time that training must wait to count as waiting."""
BUSY = 0.9
"""Busy share from which the lane is saturated."""
PLENTY = 4
"""Ready batches that are more than enough, if the prefetch allows so many."""
PATIENCE, MOST_PATIENCE = 64, 4096
"""Calm batches in a row before workers are tried without the kernels; doubles with each failed trial."""


class Seen(NamedTuple):
    """Observations when training takes a batch."""

    ready: int
    """Batches ready behind it."""
    ahead: int
    """Batches prefetched."""
    wait_s: float
    """How long training waited for it."""
    period_s: float
    """Time since the previous batch was taken."""
    busy: float
    """Share of that time the lane was at work."""
    full: bool
    """Whether workers hit the limit meanwhile."""

    @property
    def waited(self) -> bool:
        return self.wait_s > WAITS * self.period_s


@dataclass(slots=True)
class Backlog:
    limit: float = FIRST
    """Files that may be in transit to the lane, in batches."""
    finishes: bool = True
    """Whether the GPU kernels finish samples that workers decode."""
    _calm: int = 0
    """Batches in a row taken without a wait, with plenty ready."""
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
