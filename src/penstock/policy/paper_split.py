"""FusionFlow's division of a batch between CPU workers and a GPU (the paper's "task affinity-aware" scheduler). Pure.

The simulator plays it beside our own division (docs/benchmarks/gpu.md#the-papers-division); the loader does not use it.

Rule 1: a batch is cut into small tasks, sorted by size. Workers take the smallest, the GPU the largest, until none is left.
Rule 2: the last tasks of a batch are reserved for the GPU. Their number may change at any time; it must be 0 where the GPU cannot work, so
        that no task is stranded.
Rule 3: the number reserved is searched, from 0: after a batch one more if workers finished last, one less if the GPU did.
Rule 4: the search stops once it has turned `TURNS` times (a turn may be chance), at the median of where it turned. A new number of
        workers resumes the search from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median_low

TURNS = 4
"""Changes of direction that end the search."""


class Side(StrEnum):
    WORKERS = "workers"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Reserve:
    """How many tasks at the end of a batch only the GPU may take, and the search for that number."""

    tasks: int = 0
    workers: int = 0
    """The number of workers it is searched for."""
    last: Side | None = None
    """Who finished the newest batch."""
    turned: tuple[int, ...] = ()
    """Where the search changed its direction."""

    @property
    def is_found(self) -> bool:
        return len(self.turned) >= TURNS


def after_batch(reserve: Reserve, *, last: Side, tasks: int, workers: int) -> Reserve:
    """Return the reserve for the next batch, after one of so many `tasks` whose last task was done by `last`."""
    if (
        workers != reserve.workers
    ):  # this batch was divided between other workers: it says nothing about these
        return Reserve(reserve.tasks, workers)
    if reserve.is_found:
        return reserve
    turned = reserve.turned
    if reserve.last not in (None, last):
        turned = (*turned, reserve.tasks)
    if len(turned) >= TURNS:
        return replace(reserve, tasks=median_low(turned), last=last, turned=turned)
    step = 1 if last is Side.WORKERS else -1
    # A short batch at an epoch's end does not lower the bound for full ones.
    most = max(tasks, reserve.tasks)
    return replace(reserve, tasks=min(most, max(0, reserve.tasks + step)), last=last, turned=turned)


@dataclass(slots=True)
class BatchTasks:
    """The tasks of one batch, dealt to both sides."""

    sizes: Sequence[float]
    """Of each task."""
    reserved: int = 0
    """Tasks that only the GPU may take."""
    _waiting: deque[int] = field(init=False)

    def __post_init__(self) -> None:
        self._waiting = deque(sorted(range(len(self.sizes)), key=lambda task: (self.sizes[task], task)))

    @property
    def left(self) -> int:
        return len(self._waiting)

    def take(self, side: Side) -> int | None:
        """Return the side's next task; None if nothing is left for it."""
        if side is Side.GPU:
            return self._waiting.pop() if self._waiting else None
        return self._waiting.popleft() if len(self._waiting) > self.reserved else None
