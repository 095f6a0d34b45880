"""How long a device had nothing to do because a batch was not there yet.

A loop may run ahead of its device: it waits in `next()` while the device is still busy, and nothing is lost. So two events are
recorded for each batch on training's stream: `asked`, behind all that the device was given before the batch was asked for, and
`there`, in front of all that needs the batch. Between them the stream is idle. They are read when both are over, some batches
later, so that nobody waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

MOST = 64
"""Batches that are not over; a loop does not get that far ahead."""


class Gap(NamedTuple):
    asked: Any
    there: Any
    ready: int
    """Batches that were ready behind this one."""


class IdleTime:
    """Events are torch.cuda.Event with timing, or alike."""

    def __init__(self) -> None:
        self._asked: Any = None
        self._open: deque[Gap] = deque(maxlen=MOST)

    def asked(self, event: Any) -> None:
        """Training asks for a batch: `event` stands behind what it has given the device."""
        self._asked = event

    def there(self, event: Any, ready: int) -> None:
        """It has the batch: `event` stands in front of what it will do with it."""
        if self._asked is not None:
            self._open.append(Gap(self._asked, event, ready))
        self._asked = None

    def read(self) -> Iterator[tuple[float, int]]:
        """(idle seconds, batches that were ready) of batches that the device has begun with."""
        while self._open and self._open[0].there.query() and self._open[0].asked.query():
            gap = self._open.popleft()
            yield max(0.0, gap.asked.elapsed_time(gap.there)) / 1e3, gap.ready
