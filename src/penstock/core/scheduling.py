"""Which worker does what next, and which batches leave. Pure; the core calls it after every event.

Work of the due batch goes to the least loaded worker, so all workers share that batch and only then run ahead. Tasks
queued behind a slow sample are reassigned.
"""

from __future__ import annotations

from heapq import heappop, heapreplace
from math import inf
from typing import NamedTuple

from penstock.core import events as ev
from penstock.core.events import Action, Kind, Task
from penstock.core.ledger import Batch, Issued
from penstock.core.operations import all_waiting, cancel, disown, give_back, obtain, slab_bytes
from penstock.core.outlook import (
    Outlook,
    begun_samples,
    chosen_size,
    is_prepared,
    may_take,
    overdue,
    room_in_bytes,
)
from penstock.core.pools import LOCAL, WorkerPool, WorkerState
from penstock.core.state import State
from penstock.policy.pools import is_better_elsewhere
from penstock.policy.tasks import NEW_TASK, deepest, is_new, queue_samples
from penstock.wire.extents import aligned

IN_FLIGHT = 2.0
"""Results in flight from a pool elsewhere: so many times what its link delivers in the time of a way there and back."""


class PoolLimits(NamedTuple):
    """Limits of a pool's workers in one round of scheduling."""

    enough: float
    """Queued samples at which a worker gets no more."""
    deepest: int
    most: int
    """Most samples that any of its workers has prepared."""
    staffed: bool
    """Whether a permanent worker is up. Until then surplus workers stay: the due batch must not wait for a start."""


def limits_of(state: State, pool: WorkerPool) -> PoolLimits:
    permanent, most = pool.members[: pool.size], 0
    staffed = all(worker.given_up for worker in permanent)
    for worker in permanent:
        if worker.up:
            staffed = True
            if worker.prepared > most and not worker.retiring and overdue(state, worker) is None:
                most = worker.prepared
    each_s = pool.sample_s
    if each_s is not None and pool.pace_s is not None and pool.kind != LOCAL:
        each_s = max(each_s, pool.pace_s / IN_FLIGHT)
    enough = queue_samples(
        sample_s=each_s, queue_s=pool.queue_s + pool.latency_s, asked=asked_of(state, pool)
    )
    return PoolLimits(enough, deepest(pool.latency_s), most, staffed)


def asked_of(state: State, pool: WorkerPool) -> float:
    """Return about how many undelivered samples there are for each local worker. Without bound where no other could do them."""
    others = pool.helpers - 1
    if others < 1 or pool.kind != LOCAL or state.kind not in (Kind.SLOTS, Kind.PARTS) or not state.due:
        return inf
    return len(state.due) * state.batches[state.due[-1]].size / (1 + others)


def schedule(state: State, out: list[Action]) -> None:
    """Give every worker with room its next task, soonest finisher first."""
    if state.fatal is not None:
        return
    outlook = Outlook(state) if is_shared(state) else None
    if outlook is not None:
        call_back(state, outlook, out)
    limits: list[PoolLimits] = []
    room: list[tuple[float, int]] = []
    for pool in state.pools:
        limit = limits_of(state, pool)
        limits.append(limit)
        for worker in pool.members:
            if not worker.up:
                continue
            if worker.retiring or (limit.staffed and worker.place >= pool.size):
                dismiss(state, worker, out)
            elif worker.rests or (outlook is None and pool.kind != LOCAL):  # guard: rests
                continue  # its core is lent, or none of its pool may get anything
            elif not worker.tasks or (has_room(state, worker, limit) and not overdue(state, worker)):
                room.append((outlook.finish_s(worker) if outlook else worker.load, worker.id))
            elif outlook is not None:
                outlook.is_full(worker)
    room.sort()  # a sorted list is a heap
    while room:
        worker = state.workers[room[0][1]]
        limit = limits[worker.pool.number]
        task = chosen_task(state, worker, limit, outlook, out)
        if task is not None:
            issue(state, worker, task, out)
        elif outlook is None and state.kind is not Kind.STREAM:
            break
        if task is not None and has_room(state, worker, limit):
            heapreplace(room, (outlook.finish_s(worker) if outlook else worker.load, worker.id))
        else:
            heappop(room)
            if outlook is not None and task is not None:
                outlook.is_full(worker)
    if state.waiting:
        use_stalled(state, out)


def dismiss(state: State, worker: WorkerState, out: list[Action]) -> None:
    """Ask a worker to end, once its tasks are done."""
    if not worker.tasks:
        worker.up, worker.stopping, worker.stopped_s = False, True, state.now_s
        out.append(ev.Stop(worker.id))


def is_shared(state: State) -> bool:
    """Whether workers of another pool do something, or may. If not, an outlook would cost time and change nothing."""
    return any(
        worker.up and (pool.helps or bool(worker.tasks))
        for pool in state.pools[1:]
        for worker in pool.members
    )


def chosen_task(
    state: State, worker: WorkerState, limit: PoolLimits, outlook: Outlook | None, out: list[Action]
) -> Task | None:
    """Return the next task of a worker with room; a new worker begins with a small one that is not due yet."""
    due, most = state.due, None
    if outlook is not None:
        if due and waits_for_local(state, state.batches[due[0]]) and may_collate(state, worker):
            # Whoever would be faster may not do it, and may wait for this batch's memory.
            return next_task(state, worker, due[:1], out)
        due, most = outlook.in_time(worker), room_in_bytes(state, worker.pool)
        if most == 0:
            return None
    if not begins(state, worker, limit.most):
        return next_task(state, worker, due, out, most)
    most = min(NEW_TASK, most or NEW_TASK)
    return next_task(state, worker, behind_due(state, due), out, most) or next_task(
        state, worker, due, out, most
    )


def has_room(state: State, worker: WorkerState, limit: PoolLimits) -> bool:
    """Whether a busy worker gets more."""
    return (
        worker.load - begun_samples(state, worker) < limit.enough
        and len(worker.tasks) < limit.deepest
        and not begins(state, worker, limit.most)
    )


def begins(state: State, worker: WorkerState, most: int) -> bool:
    """Whether a worker is new and begins with small tasks nobody waits for; only if we choose the task size."""
    cut = state.kind in (Kind.SLOTS, Kind.PARTS) and not (state.config.task_size or worker.pool.whole)
    return cut and is_new(worker.prepared, most)


def behind_due(state: State, due: list[int]) -> list[int]:
    """Return the batches after the due one; all of them if the due one only needs collating."""
    first = state.batches[state.due[0]] if state.due else None
    return due if first is None or first.awaits_collate or due[:1] != state.due[:1] else due[1:]


def use_stalled(state: State, out: list[Action]) -> None:
    """Let workers whose results all wait for memory help the due batch: those results wait for it."""
    for worker in state.workers:
        room = room_in_bytes(state, worker.pool)
        if worker.up and worker.tasks and room != 0 and all_waiting(state, worker):
            task = next_task(state, worker, state.due[:1], out, room)
            if task is not None:
                issue(state, worker, task, out)


def next_task(
    state: State, worker: WorkerState, due: list[int], out: list[Action], most: int | None = None
) -> Task | None:
    """Return the most urgent task this worker can do, of at most `most` samples if the batch is divided."""
    for seq in due:
        batch = state.batches[seq]
        if not batch.todo:
            if batch.kind is Kind.PARTS and batch.awaits_collate and may_collate(state, worker):
                parts = tuple(batch.parts[start].offset for start in sorted(batch.parts))
                return Task(new_id(state), seq, Kind.COLLATE, 0, batch.size, parts=parts)
            continue
        if batch.kind is Kind.STREAM and batch.worker != worker.id:
            continue
        if not may_take(batch, worker.pool) and not may_collate(state, worker):
            continue
        undivided = batch.kind in (Kind.WHOLE, Kind.STREAM)
        if (undivided or worker.pool.whole) and most is not None:
            if batch.size > most and worker.pool.owed_bytes:
                return None
            most = None
        if undivided:
            batch.todo.clear()
            return Task(new_id(state), seq, batch.kind, 0, batch.size)
        if batch.kind is Kind.SLOTS:
            if batch.layout < 0:
                batch.layout = state.layout
            if batch.layout < 0 and not may_collate(state, worker):
                continue
            if batch.layout >= 0 and batch.slab is None:
                batch.slab = obtain(state, slab_bytes(state, batch), seq, out)
                if batch.slab is None:
                    return None
        start, count = batch.take(min(chosen_size(state, batch, worker.pool), most or batch.size))
        state.task_size = count
        offset = batch.slab.offset if batch.slab is not None else -1
        return Task(
            new_id(state),
            seq,
            batch.kind,
            start,
            count,
            offset,
            batch.layout,
            poisoned=start in batch.poisoned,
        )
    return None


def may_collate(state: State, worker: WorkerState) -> bool:
    """Whether a worker may collate, or make the first samples, whose layout is unknown: local ones only, if there are any. Only they see the
    parts, and can pass on any object."""
    return worker.pool is state.local or not state.local.size


def waits_for_local(state: State, batch: Batch) -> bool:
    """Whether a batch goes on only if a local worker takes its next task."""
    if batch.awaits_collate:
        return True
    return bool(batch.todo) and not any(may_take(batch, pool) for pool in state.pools[1:])


def new_id(state: State) -> int:
    state.next_task += 1
    return state.next_task  # guard: attempt-ids


def issue(state: State, worker: WorkerState, task: Task, out: list[Action]) -> None:
    batch = state.batches[task.seq]
    issued = Issued(task, state.now_s)
    if worker.pool.queue_bytes and task.kind is not Kind.COLLATE:
        issued.nbytes = round(task.samples * state.sample_bytes)
    if task.kind is Kind.SLOTS and batch.slab is not None:
        batch.slab.pins += 1
        issued.slabs.append(batch.slab)
    if task.kind is Kind.COLLATE:
        issued.held.extend(batch.parts.values())
        for slab in issued.held:
            slab.holds += 1
    if not worker.tasks:
        worker.head_s = state.now_s
    if task.kind is not Kind.COLLATE:
        for pool in state.pools[1:]:
            pool.account(task.samples, batch.size, its_own=pool is worker.pool)
    worker.add(issued)
    batch.live.add(task.id)
    out.append(ev.Assign(worker.id, task))


def steal(state: State, out: list[Action]) -> None:
    """Reassign tasks queued behind a slow sample, if another worker is available. Both may write them, one late."""
    if not state.config.repeatable:
        return
    late = [(worker, running) for worker in state.workers if (running := overdue(state, worker)) is not None]
    stuck = {worker.id for worker, _ in late}
    if not any(worker.up and not worker.surplus and worker.id not in stuck for worker in state.workers):
        return
    for worker, running in late:
        for issued in worker.tasks.values():
            # If the running task was cancelled before, a prepared result may be the slow sample, just arrived.
            arrived = running.cancelled and is_prepared(issued)
            if issued is not running and not issued.cancelled and not arrived:
                cancel(state, worker, issued, out)
                give_back(state, issued.task)


def call_back(state: State, outlook: Outlook, out: list[Action]) -> None:
    """Reassign queued tasks of the due batch, once all of it is issued, to workers that will finish much sooner."""
    batch = state.batches[state.due[0]] if state.due else None
    if batch is None or batch.todo or not batch.live or not (state.config.repeatable and outlook.counted):
        return
    soonest = min(outlook.counted, key=lambda worker: (outlook.finish_s(worker), worker.id))
    if soonest.pool.kind != LOCAL and (batch.at_home or batch.kind is Kind.WHOLE or soonest.pool.whole):
        return  # it may not take them
    if room_in_bytes(state, soonest.pool) == 0:
        return  # nor may it now, and they would go to and fro
    for worker in state.workers:
        if worker.pool is soonest.pool or worker.pool.pace_s is None:
            continue
        ahead, since_s = 0, state.now_s - worker.head_s
        for issued in list(worker.tasks.values()):
            task = issued.task
            begun = not ahead or is_prepared(issued) or task.kind is Kind.COLLATE  # others may not collate
            ahead += task.weight
            here_s = worker.pool.finish_s(ahead, 0) - since_s
            there_s = soonest.pool.finish_s(soonest.load, task.weight)
            if task.id in batch.live and not begun and is_better_elsewhere(here_s, there_s):
                cancel(state, worker, issued, out)
                give_back(state, task)


# ---- delivery


def deliver(state: State, out: list[Action]) -> None:
    """Deliver settled batches, in order or as they come."""
    while state.due and can_leave(state, state.batches[state.due[0]]):
        hand_out(state, state.due[0], out)
    if not state.config.in_order:  # guard: in-order
        for seq in [seq for seq in state.due if can_leave(state, state.batches[seq])]:
            hand_out(state, seq, out)
    if (
        state.kind is Kind.STREAM
        and not state.due
        and not state.ended
        and all(x.exhausted for x in state.workers)
    ):
        state.ended = True
        out.append(ev.DeliverEnd(state.asked))


def can_leave(state: State, batch: Batch) -> bool:
    """Whether a batch is complete and its late writers are gone, or will take long."""
    if not batch.complete:
        return False
    return batch.error is not None or not late_writers(batch) or held_up(state, batch)  # guard: late-writers


def late_writers(batch: Batch) -> bool:
    """Whether cancelled tasks, not yet confirmed by their workers, may still write the batch."""
    return batch.slab is not None and batch.slab.pins > 0


def held_up(state: State, batch: Batch) -> bool:
    """Whether all late writers wait behind slow samples."""
    return all(
        overdue(state, worker) is not None
        for worker in state.workers
        if any(batch.slab in issued.slabs for issued in worker.tasks.values())
    )


def hand_out(state: State, seq: int, out: list[Action]) -> None:
    state.due.remove(seq)
    batch = state.batches[seq]
    if state.deaths:
        state.deaths = {key: tries for key, tries in state.deaths.items() if key[0] != seq}
    if batch.error is not None:
        disown(state, batch)
        del state.batches[seq]
        out.append(ev.DeliverError(seq, batch.error[1]))
        return
    assert batch.slab is not None, "a complete batch without an error has its memory"
    batch.delivered = True
    layout = batch.layout if batch.kind is Kind.SLOTS else -1
    # Late writers write the same bytes again, but the user may write too: this batch must be copied.
    # guard: late-writers-copy
    nbytes = 0 if late_writers(batch) else sum(aligned(slab.nbytes) for slab in batch.slabs())
    out.append(ev.Deliver(seq, batch.slab.offset, layout, tuple(sorted(batch.dropped)), nbytes))
