"""Pools of workers: what the core knows of each worker, and what it has learned of the kind. Bookkeeping, no decisions.

Rule 1: workers are numbered in the order in which they come, over all pools. A pool that grows first takes back its own
workers that are away, then numbers that nobody has had.
Rule 2: what workers cost is learned per pool. `latency_s` is what a task takes beyond its work (the way there and back), so
a pool's pace says how fast it is, and its latency how far ahead it must be given work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.events import Trouble
from penstock.core.ledger import Issued
from penstock.policy.tasks import QUEUE_S

LOCAL, REMOTE = "local", "remote"
NEWEST = 0.2
"""Weight of the newest task in what is learned."""


class PoolConfig(NamedTuple):
    """A pool beside that of the local workers."""

    workers: int
    """At first; see `ResizePool`."""
    queue_s: float = QUEUE_S
    """Seconds of work before each of its workers, beyond what is on its way."""
    queue_bytes: int = 0
    """Bytes of results that the pool may owe at once; 0: no bound."""
    kind: str = REMOTE


@dataclass(slots=True, eq=False)
class WorkerPool:
    """Workers of one kind."""

    number: int
    size: int
    """Workers that there are to be."""
    queue_s: float = QUEUE_S
    queue_bytes: int = 0
    kind: str = LOCAL
    members: list[WorkerState] = field(default_factory=list)
    """All that there have been; those from place `size` on leave, or have left."""
    sample_s: float | None = None
    """Work in a sample, as workers measure it: without their waiting for a core."""
    pace_s: float | None = None
    """Time a sample takes a worker, as seen from here: on a busy machine much longer than its work."""
    latency_s: float = 0.0
    """Time a task takes beyond its work: 0 for local workers, whose way is part of their pace."""
    heard_s: float = 0.0
    """When it was last given work, or had done some: what was learned long ago may no longer be true."""
    owed_bytes: int = 0
    """Bytes of results that its workers owe; counted where they are bounded."""

    def learn_pace(self, worker: WorkerState, issued: Issued, took_s: float, at_s: float) -> None:
        """A task of samples is done, whether it still counts or not."""
        begun_s = worker.head_s
        if self.kind != LOCAL:
            if issued.at_s == worker.head_s and not worker.tasks:  # alone there, from first to last
                way_s = max(0.0, at_s - issued.at_s - took_s)
                rises = 0.0 < self.latency_s < way_s
                self.latency_s = blend(self.latency_s, way_s) if rises else way_s
            begun_s = min(max(begun_s, issued.at_s + self.latency_s), at_s - took_s)
            self.heard_s = at_s
        self.pace_s = blend(self.pace_s, (at_s - begun_s) / issued.task.samples)

    def learn_cost(self, cost_s: float) -> None:
        self.sample_s = blend(self.sample_s, cost_s)

    def finish_s(self, load: int, samples: float) -> float:
        """Seconds until a worker that has `load` samples before it would have done `samples` more."""
        return float("inf") if self.pace_s is None else self.latency_s + (load + samples) * self.pace_s


@dataclass(slots=True, eq=False)
class WorkerState:
    """One worker as the core sees it."""

    id: int
    pool: WorkerPool
    place: int
    """Which of its pool it is."""
    up: bool = False
    starting: bool = False
    """Its process is there and has not said yet that it is up."""
    condemned: bool = False
    """It hung and is being killed."""
    retiring: bool = False
    """It is to be replaced when it has done what it has."""
    stopping: bool = False
    """It has been asked to end."""
    stopped_s: float = 0.0
    """When."""
    away: bool = False
    """It has no process and is to have none: there are fewer workers now."""
    given_up: bool = False
    """It was lost too often, with nothing done: its pool, not a local one, goes on without it until it is resized."""
    exhausted: bool = False
    gone: bool = False
    """Died with its iterator: there is nothing for a replacement to do before the next epoch."""
    lost: Trouble | None = None
    """The error for the next batch that it owes, where it died owing none."""
    tasks: dict[int, Issued] = field(default_factory=dict)
    """In the order they were issued: the first is running."""
    load: int = 0
    """Samples in them."""
    prepared: int = 0
    """Samples that its process has prepared."""
    holding: dict[int, Issued] = field(default_factory=dict)
    """Finished collates whose parts the worker still refers to."""
    head_s: float = 0.0
    """When the running task began, as far as the agent can know."""
    fruitless: int = 0
    """Deaths in a row with work to do but none begun, and none finished between: nobody but the worker is to blame."""
    beat: int = 0
    beat_s: float = 0.0
    wait_s: float = 0.0
    """What its process had waited for a core by then."""
    dumped_s: float = 0.0
    expected: bool = False
    """It was to show a beat when time passed last: from then on it can be silent."""

    @property
    def surplus(self) -> bool:
        """Whether this worker is one too many."""
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
