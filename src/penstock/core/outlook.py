"""Forecasts about workers: task size, who is late, who would finish a task first. Pure."""

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
"""Steal tasks queued behind one that runs this much longer than expected."""


def chosen_size(state: State, batch: Batch, pool: WorkerPool) -> int:
    """Return the samples in a worker's next task of a divided batch."""
    if pool.whole:
        return batch.size
    if state.config.task_size:
        return state.config.task_size
    workers: float = pool.helpers if pool.kind == LOCAL else pool.size
    if len(state.pools) > 1:
        workers = equal_workers(pool.pace_s, ((one.helpers, one.pace_s) for one in state.pools))
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
    """Return the task that runs much longer than expected, if any; a worker that waits for memory is not late."""
    pool = worker.pool
    late_s = state.now_s - worker.head_s - pool.latency_s
    if late_s <= STEAL_MIN_S or not worker.tasks or state.kind is Kind.STREAM:
        return None
    running = next((issued for issued in worker.tasks.values() if not is_prepared(issued)), None)
    if running is None or late_s <= STEAL_FACTOR * (pool.pace_s or 0.0) * running.task.samples:
        return None
    return None if any(w.worker == worker.id for w in state.waiting) else running


def begun_samples(state: State, worker: WorkerState) -> float:
    """Estimate how many samples of its running task a distant worker has done, so that it gets more before it reports."""
    pool = worker.pool
    if not pool.latency_s or not pool.pace_s or not worker.tasks or state.kind is not Kind.SLOTS:
        return 0.0  # an unplaced result is written only after the next task, so none is given early
    running = next(iter(worker.tasks.values()))
    way_s = pool.latency_s if running.at_s == worker.head_s else 0.0
    since_s = state.now_s - worker.head_s - way_s
    return min(float(running.task.weight), max(0.0, since_s / pool.pace_s))


def is_prepared(issued: Issued) -> bool:
    """Whether its result has been placed and is written as soon as the worker finishes its present task."""
    return bool(issued.slabs) and issued.task.offset < 0


class Outlook:
    """When workers of unequal pools would finish; valid for one round of scheduling."""

    def __init__(self, state: State) -> None:
        self.state = state
        able = [worker for worker in state.workers if can_be_counted_on(state, worker)]
        self.has_local = any(worker.pool is state.local for worker in able)
        self.offloads_all = any(worker.pool.share == 1 for worker in able)
        """Whether another pool is to do everything, and keeps up."""
        self.counted = [worker for worker in able if self._counts(worker)]
        """Those for whose sake others may leave work alone."""
        numbers = [worker.pool.number for worker in self.counted]
        urgent = next((state.batches[seq] for seq in state.due if state.batches[seq].todo), None)
        self.urgent = [task_samples(state, urgent, pool) if urgent else 1 for pool in state.pools]
        """Samples in the next task of the most urgent batch, per pool."""
        idle_s = [pool.finish_s(0, samples) for pool, samples in zip(state.pools, self.urgent, strict=True)]
        self.sooner = [
            rate((numbers.count(o.number), o.pace_s) for o in state.pools if idle_s[o.number] < mine_s)
            for mine_s in idle_s
        ]
        """Samples per second of all pools that would finish such a task sooner, per pool."""
        self.full_s = float("inf")
        """When the first full worker would finish one more task."""

    def _counts(self, worker: WorkerState) -> bool:
        """A pool with a share may have none left when its turn comes, and local workers do everything if need be."""
        if worker.pool is self.state.local:
            return not self.offloads_all
        return worker.pool.share is None or worker.pool.share == 1

    def finish_s(self, worker: WorkerState) -> float:
        """Return when a worker would finish one more task of the most urgent batch."""
        return worker.pool.finish_s(worker.load, self.urgent[worker.pool.number])

    def is_full(self, worker: WorkerState) -> None:
        """Note that a worker gets no more in this round."""
        if worker in self.counted:
            self.full_s = min(self.full_s, self.finish_s(worker))

    def in_time(self, worker: WorkerState) -> list[int]:
        """Return the batches a worker may work on, most urgent first."""
        state, pool, finish_s = self.state, worker.pool, self.finish_s(worker)
        if pool is state.local and self.offloads_all:
            return [seq for seq in state.due if stays_here(state, state.batches[seq])]
        if pool.is_spent and (self.has_local or not pool.share):
            return []
        unknown = pool.pace_s is None and pool.kind != LOCAL and self.has_local and not self.offloads_all
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


def stays_here(state: State, batch: Batch) -> bool:
    """Whether local workers work on a batch although another pool is to do everything: they alone can, or it is due and the other pool
    has lost a task of it, or was late."""
    if batch.seq == state.due[0] and batch.returned:  # guard: returned-to-local
        return True
    able = any(may_take(batch, pool) for pool in state.pools[1:] if pool.share == 1)
    if batch.todo and not able:  # guard: rest-stays-here
        return True
    if batch.seq == state.due[0] and any(state.workers[w.worker].pool.share == 1 for w in state.waiting):
        return True  # the other pool's results wait for memory, which only this batch may free
    if batch.kind is Kind.SLOTS:
        return batch.layout < 0 and state.layout < 0
    return batch.kind is Kind.WHOLE or not batch.todo


def may_take(batch: Batch, pool: WorkerPool) -> bool:
    """Whether a pool's workers may prepare what is left of a batch; local ones always may."""
    if pool.kind == LOCAL:
        return True
    if batch.at_home:
        return False
    if batch.kind is Kind.WHOLE:
        return pool.whole and batch.size > 0
    return not pool.whole or batch.kind is not Kind.SLOTS or batch.todo == [(0, batch.size)]


def task_samples(state: State, batch: Batch, pool: WorkerPool) -> int:
    """Return the samples in a worker's next task of any batch."""
    if batch.kind not in (Kind.SLOTS, Kind.PARTS):
        return batch.size
    return min(left_of(batch), chosen_size(state, batch, pool))


def can_be_counted_on(state: State, worker: WorkerState) -> bool:
    return (
        worker.up
        and not (worker.retiring or worker.surplus or worker.rests)
        and overdue(state, worker) is None
    )


def room_in_bytes(state: State, pool: WorkerPool) -> int | None:
    """Return how many samples the pool's byte bound still allows; None: no bound. An idle pool always gets one."""
    if not pool.queue_bytes or not state.sample_bytes:
        return None
    return max(int((pool.queue_bytes - pool.owed_bytes) / state.sample_bytes), 0 if pool.owed_bytes else 1)
