"""Worker pools: what the core knows of each worker, and has learned of each pool. Bookkeeping, no decisions.

Rule 1: worker numbers run over all pools, in order of arrival. A growing pool first reuses its workers that are away,
then takes new numbers.
Rule 2: costs are learned per pool. The pace says how fast a worker is; `latency_s` (a task's time beyond its work: the
way there and back) says how far ahead it needs work.
Rule 3: a pool may be `allowed` fewer workers than it has: those behind them finish what they have and then rest, at no cost but memory.
Rule 4: local workers behind the rank's `own` are spare: they use borrowed cores. Without them a rank is slower, never stuck.
Rule 5: a share is kept by a credit: every sample issued to anyone earns the pool its share of one, every sample it gets costs one.
It gets tasks while the credit is not below 0, so it is over its share by one task at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.events import UNBOUNDED, Trouble
from penstock.core.ledger import Issued
from penstock.policy.tasks import QUEUE_S

LOCAL, REMOTE = "local", "remote"
NEWEST = 0.2
"""Weight of the newest task in the moving averages."""


class PoolConfig(NamedTuple):
    """A pool beside the local workers."""

    workers: int
    """At first; see `ResizePool`."""
    queue_s: float = QUEUE_S
    """Seconds of work queued at each worker, beyond those in transit."""
    queue_bytes: int = 0
    """Bound on the bytes of results in flight; 0: none."""
    kind: str = REMOTE
    share: float | None = None
    """At first; see `Offload`."""
    whole: bool = False
    """Its workers take whole batches only, and collate those that have no layout."""


@dataclass(slots=True, eq=False)
class WorkerPool:
    """Workers of one kind."""

    number: int
    size: int
    """Target worker count."""
    queue_s: float = QUEUE_S
    queue_bytes: int = 0
    kind: str = LOCAL
    share: float | None = None
    """Most of all samples issued that it gets. None: no bound, it takes what it does not delay. 1: local workers wait while it keeps up.
    0: nothing new."""
    whole: bool = False
    members: list[WorkerState] = field(default_factory=list)
    """All workers so far; those from place `size` on leave or have left."""
    sample_s: float | None = None
    """Work per sample as measured by workers, without waiting for a core."""
    pace_s: float | None = None
    """Time per sample as seen from here; on a busy machine much longer than the work."""
    latency_s: float = 0.0
    """Time per task beyond its work; 0 for local workers, whose pace includes it."""
    heard_s: float = 0.0
    """When it last got or finished work: old measurements may no longer hold."""
    allowed: int = UNBOUNDED
    """Workers that may begin tasks: the first ones of `members`."""
    own: int = UNBOUNDED
    """Workers that the rank has by itself: those behind them are spare."""
    most: int = UNBOUNDED
    """Spare workers are of use up to this number: the next one could not start."""
    owed_bytes: int = 0
    """Bytes of results in flight, if bounded."""
    credit: float = 0.0
    """Samples it may get by its share; below 0: none now."""
    done: int = 0
    """Samples it has prepared."""

    def offload(self, share: float | None) -> None:
        """Have another share from now on."""
        self.share, self.credit = share, 0.0

    def account(self, samples: int, most: int, *, its_own: bool) -> None:
        """Note samples issued to it or to others. Credit beyond `most` lapses: a pool back from an absence does not catch up."""
        if self.share is not None:
            earned = self.share * samples - (samples if its_own else 0)
            self.credit = min(self.credit + earned, float(most))

    @property
    def helps(self) -> bool:
        """Whether its workers may get anything new."""
        return self.share is None or self.share > 0

    @property
    def helpers(self) -> int:
        """Workers that batches are divided among: of another pool only those that are there and may get something."""
        if self.kind == LOCAL:
            return min(self.size, self.allowed)
        return sum(one.up for one in self.members[: self.size]) if self.helps else 0

    @property
    def is_spent(self) -> bool:
        """Whether its share is used up for now."""
        return self.share is not None and (self.share <= 0 or self.credit < 0)

    def learn_pace(self, worker: WorkerState, issued: Issued, took_s: float, at_s: float) -> None:
        """Learn from a finished task, even a cancelled one."""
        begun_s = worker.head_s
        if self.kind != LOCAL:
            if issued.at_s == worker.head_s and not worker.tasks:  # alone there, from first to last
                way_s = max(0.0, at_s - issued.at_s - took_s)
                rises = 0.0 < self.latency_s < way_s
                self.latency_s = blend(self.latency_s, way_s) if rises else way_s
            begun_s = min(max(begun_s, issued.at_s + self.latency_s), at_s - took_s)
            self.heard_s = at_s
        self.pace_s = blend(self.pace_s, (at_s - begun_s) / issued.task.samples)

    def finish_s(self, load: int, samples: float) -> float:
        """Return the seconds until a worker with `load` samples queued would finish `samples` more."""
        return float("inf") if self.pace_s is None else self.latency_s + (load + samples) * self.pace_s


@dataclass(slots=True, eq=False)
class WorkerState:
    """One worker as the core sees it."""

    id: int
    pool: WorkerPool
    place: int
    """Index in its pool."""
    up: bool = False
    starting: bool = False
    """Its process exists but is not up yet."""
    condemned: bool = False
    """It hung, or does not end, and is being killed."""
    retiring: bool = False
    """Replace it once it finishes its tasks."""
    stopping: bool = False
    """It has been asked to end."""
    stopped_s: float = 0.0
    """When it was asked."""
    away: bool = False
    """It has no process and gets none until the pool is resized."""
    given_up: bool = False
    """Lost too often with nothing done: its (non-local) pool goes on without it until resized."""
    exhausted: bool = False
    gone: bool = False
    """Died with its iterator: a replacement has nothing to do before the next epoch."""
    lost: Trouble | None = None
    """Error for the next batch it owes, if it died owing none."""
    tasks: dict[int, Issued] = field(default_factory=dict)
    """In order of issue: the first is running."""
    load: int = 0
    """Samples in them."""
    prepared: int = 0
    """Samples prepared by its present process."""
    holding: dict[int, Issued] = field(default_factory=dict)
    """Finished collates whose parts the worker still refers to."""
    head_s: float = 0.0
    """When the running task began, as far as the agent can know."""
    fruitless: int = 0
    """Deaths in a row, at start or before it began any of its tasks: the worker itself is to blame."""
    beat: int = 0
    beat_s: float = 0.0
    wait_s: float = 0.0
    """Its process's total wait for a core at `beat_s`."""
    dumped_s: float = 0.0
    expected: bool = False
    """A beat was expected at the last tick: silence counts from then on."""

    @property
    def rests(self) -> bool:
        """Whether its core is another rank's for now: it begins nothing new."""
        return self.place >= self.pool.allowed

    @property
    def is_spare(self) -> bool:
        """Whether it is there for a borrowed core only."""
        return self.place >= self.pool.own

    @property
    def surplus(self) -> bool:
        """Whether the pool no longer wants this worker."""
        return self.place >= self.pool.size or self.given_up

    def add(self, issued: Issued) -> None:
        self.tasks[issued.task.id] = issued
        self.load += issued.task.weight
        self.pool.owed_bytes += issued.nbytes

    def remove(self, task_id: int) -> Issued | None:
        issued = self.tasks.pop(task_id, None)
        if issued is not None:
            self.load -= issued.task.weight
            self.pool.owed_bytes -= issued.nbytes
        return issued

    def clear(self) -> None:
        for task_id in list(self.tasks):
            self.remove(task_id)
        self.holding.clear()


def blend(before: float | None, newest: float) -> float:
    return newest if before is None else (1 - NEWEST) * before + NEWEST * newest
