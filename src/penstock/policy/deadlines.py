"""Which read a node's fetch pool begins next: earliest deadline first over all ranks of the node. Pure.

A deadline is the step that needs the bytes. Among equal deadlines, ranks take turns: none waits for all reads of another.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class PendingRead(NamedTuple):
    step: int
    """The step that needs it."""
    turn: int
    """Reads that its rank has asked for that step before."""
    rank: int
    sample: int


@dataclass(slots=True)
class ReadQueue:
    """Reads that have not begun."""

    _heap: list[PendingRead] = field(default_factory=list)
    _turns: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, step: int, rank: int, sample: int) -> None:
        turn = self._turns[step, rank]
        self._turns[step, rank] += 1
        heapq.heappush(self._heap, PendingRead(step, turn, rank, sample))

    def take(self) -> PendingRead:
        """Return the next read to begin; the queue must not be empty."""
        return heapq.heappop(self._heap)

    def put_back(self, read: PendingRead) -> None:
        """Have a read that was taken in its old place again."""
        heapq.heappush(self._heap, read)

    def passed(self, step: int) -> None:
        """Forget the turns of steps up to this one."""
        for old in [key for key in self._turns if key[0] <= step]:
            del self._turns[old]
