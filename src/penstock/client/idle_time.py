"""Measure how long a device was idle because a batch was late.

A loop may run ahead of its device: waiting in `next()` costs nothing while the device is busy. So each batch records two events on
training's stream: `asked`, after all work queued before the request, and `there`, before all work that needs the batch. The stream is
idle between them. They are read some batches later, when both are over, so that nobody waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

MOST = 64
"""Unread batches to keep; no loop runs that far ahead."""


class Gap(NamedTuple):
    asked: Any
    there: Any
    ready: int
    """Batches ready after this one."""


class IdleTime:
    """Takes timing events of torch.cuda.Event or the like."""

    def __init__(self) -> None:
        self._asked: Any = None
        self._open: deque[Gap] = deque(maxlen=MOST)

    def asked(self, event: Any) -> None:
        """Note a request for a batch: `event` follows all work queued so far."""
        self._asked = event

    def there(self, event: Any, ready: int) -> None:
        """Note the delivery: `event` precedes all work on the batch."""
        if self._asked is not None:
            self._open.append(Gap(self._asked, event, ready))
        self._asked = None

    def read(self) -> Iterator[tuple[float, int]]:
        """Yield (idle seconds, batches that were ready) for each batch the device has started on."""
        while self._open and self._open[0].there.query() and self._open[0].asked.query():
            gap = self._open.popleft()
            yield max(0.0, gap.asked.elapsed_time(gap.there)) / 1e3, gap.ready
