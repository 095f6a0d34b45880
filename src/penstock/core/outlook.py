"""What is expected of workers: how much a task holds, which are late, and who will have done a task first. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.events import Kind
from penstock.core.ledger import Batch, Issued
from penstock.core.pools import LOCAL, WorkerPool, WorkerState
from penstock.core.state import State
from penstock.policy.pools import equal_workers, first_in_time, is_stale, rate
from penstock.policy.tasks import task_size

STEAL_FACTOR = 5.0
STEAL_MIN_S = 0.050
"""A task queued behind one that runs this much longer than expected goes to another worker."""


def chosen_size(state: State, batch: Batch, pool: WorkerPool) -> int:
    """Samples in a worker's next task of a batch that is divided."""
    if state.config.task_size:
        return state.config.task_size
    workers: float = pool.size
    if len(state.pools) > 1:
        workers = equal_workers(pool.pace_s, ((one.size, one.pace_s) for one in state.pools))
    return task_size(
        sample_s=pool.sample_s,
        batch=batch.size,
        left=left_of(batch),
        workers=workers,
        due=batch.seq == state.due[0],
    )


def left_of(batch: Batch) -> int:
    return sum(count for _, count in batch.todo)


def overdue(state: State, worker: WorkerState) -> Issued | None:
    """The task that a worker has been at for much longer than expected, unless it waits for memory itself."""
    pool = worker.pool
    late_s = state.now_s - worker.head_s - pool.latency_s
    if late_s <= STEAL_MIN_S or not worker.tasks or state.kind is Kind.STREAM:
        return None
    running = next((issued for issued in worker.tasks.values() if not is_prepared(issued)), None)
    if running is None or late_s <= STEAL_FACTOR * (pool.pace_s or 0.0) * running.task.samples:
        return None
    return None if any(w.worker == worker.id for w in state.waiting) else running


def begun_samples(state: State, worker: WorkerState) -> float:
    """Samples that a distant worker must have done of what it runs: more has to be under way before it says so."""
    pool = worker.pool
    if not pool.latency_s or not pool.pace_s or not worker.tasks or state.kind is not Kind.SLOTS:
        return (
            0.0  # a result that asks for its place is written behind the next task: none is given early then
        )
    running = next(iter(worker.tasks.values()))
    way_s = pool.latency_s if running.at_s == worker.head_s else 0.0
    since_s = state.now_s - worker.head_s - way_s
    return min(float(running.task.weight), max(0.0, since_s / pool.pace_s))


def is_prepared(issued: Issued) -> bool:
    """Its result has a place since it was made, and is written there as soon as the worker looks up from the next task."""
    return bool(issued.slabs) and issued.task.offset < 0


class Outlook:
    """What unequal pools will have done when; for one round of scheduling."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.counted = [worker for worker in state.workers if can_be_counted_on(state, worker)]
        numbers = [worker.pool.number for worker in self.counted]
        self.has_local = 0 in numbers
        urgent = next((state.batches[seq] for seq in state.due if state.batches[seq].todo), None)
        self.urgent = [task_samples(state, urgent, pool) if urgent else 1 for pool in state.pools]
        """Samples in the next task of the most urgent batch, by pool."""
        idle_s = [pool.finish_s(0, samples) for pool, samples in zip(state.pools, self.urgent, strict=True)]
        self.sooner = [
            rate((numbers.count(o.number), o.pace_s) for o in state.pools if idle_s[o.number] < mine_s)
            for mine_s in idle_s
        ]
        """Samples a second of the pools that would have done such a task sooner, by pool."""
        self.full_s = float("inf")
        """When the first of those that have all the work they get would have done one more task."""

    def finish_s(self, worker: WorkerState) -> float:
        """When a worker would have done one more task of the most urgent batch."""
        return worker.pool.finish_s(worker.load, self.urgent[worker.pool.number])

    def is_full(self, worker: WorkerState) -> None:
        """A worker gets no more in this round."""
        if worker in self.counted:
            self.full_s = min(self.full_s, self.finish_s(worker))

    def in_time(self, worker: WorkerState) -> list[int]:
        """The batches that a worker may take work of, most urgent first."""
        state, pool, finish_s = self.state, worker.pool, self.finish_s(worker)
        unknown = pool.pace_s is None and pool.kind != LOCAL and self.has_local
        if finish_s <= self.full_s and not unknown:
            return state.due
        at = first_in_time(self._offers(worker), self.sooner[pool.number])
        if at is not None:
            return state.due[at:]
        if not worker.tasks and (pool.pace_s is None or is_stale(state.now_s - pool.heard_s, finish_s)):
            pool.heard_s = state.now_s
            return [seq for seq in state.due if state.batches[seq].todo][-1:]
        return []

    def _offers(self, worker: WorkerState) -> Iterator[tuple[int, float]]:
        for seq in self.state.due:
            batch = self.state.batches[seq]
            samples = task_samples(self.state, batch, worker.pool)
            yield left_of(batch), worker.pool.finish_s(worker.load, samples)


def task_samples(state: State, batch: Batch, pool: WorkerPool) -> int:
    """Samples in a worker's next task of a batch."""
    if batch.kind not in (Kind.SLOTS, Kind.PARTS):
        return batch.size
    return min(left_of(batch), chosen_size(state, batch, pool))


def can_be_counted_on(state: State, worker: WorkerState) -> bool:
    return worker.up and not (worker.retiring or worker.surplus) and overdue(state, worker) is None


def room_in_bytes(state: State, pool: WorkerPool) -> int | None:
    """Samples that a pool may be given by the bytes it owes; None: as many as one likes. Something always, where it owes nothing."""
    if not pool.queue_bytes or not state.sample_bytes:
        return None
    return max(int((pool.queue_bytes - pool.owed_bytes) / state.sample_bytes), 0 if pool.owed_bytes else 1)
