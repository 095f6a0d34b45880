"""The operations behind the core's handlers: obtain memory, place, free, cancel, start over. Pure, like the core.

Memory is first come, first served in due order. If the due batch finds none, the arena grows up to its limit; then the
latest batches give theirs up and are prepared again later; then the consumer is asked to release some; then it is an
error. While a batch is short of memory no later one gets any, so that freed memory adds up for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core import events as ev
from penstock.core.events import UNBOUNDED, Action, Kind, Task, Trouble
from penstock.core.ledger import Batch, Issued, Slab, Unplaced
from penstock.core.pools import WorkerState
from penstock.core.state import State
from penstock.wire.extents import aligned, lane_offsets
from penstock.wire.kinds import STAGES

DEATHS_PER_SAMPLE = 3
HANGS_PER_SAMPLE = 2
STREAM_ROOM = 4
"""Place stream batches out of turn only while all due ones would fill at most 1/STREAM_ROOM of the arena."""


# ---- memory


def free_if_unused(state: State, slab: Slab) -> None:
    if not (slab.owned or slab.pins or slab.holds):  # guard: slab-in-use
        state.memory.release(slab.offset, slab.nbytes)


def let_go(state: State, slabs: Iterable[Slab]) -> None:
    """Drop the batch's ownership; tasks that can still touch the slabs keep them from being reused."""
    for slab in slabs:
        slab.owned = False
        free_if_unused(state, slab)


def disown(state: State, batch: Batch) -> None:
    let_go(state, batch.slabs())
    batch.slab = None
    batch.parts.clear()


def unpin(state: State, issued: Issued) -> None:
    for slab in issued.slabs:
        slab.pins -= 1
        free_if_unused(state, slab)
    issued.slabs.clear()


def unhold(state: State, issued: Issued) -> None:
    for slab in issued.held:
        slab.holds -= 1
        free_if_unused(state, slab)
    issued.held.clear()


def fits(state: State, nbytes: int) -> bool:
    offset = state.memory.alloc(nbytes)
    if offset is None:
        return more_memory(state, nbytes) is not None
    state.memory.release(offset, nbytes)
    return True


def more_memory(state: State, nbytes: int) -> tuple[int, int] | None:
    """Return the span to ask the system for so that `nbytes` fit; None if that is as much as it has refused."""
    span = state.memory.span_for(nbytes, state.limit)
    return None if span is None or 0 < state.refused <= span[1] - span[0] else span


def has_enough(state: State, nbytes: int) -> bool:
    """Whether the arena already holds `config.enough` batches of this size."""
    return 0 < state.config.enough * aligned(nbytes) <= state.memory.end - state.config.base


def obtain(state: State, nbytes: int, seq: int, out: list[Action]) -> Slab | None:
    """Allocate memory for batch `seq`; None means ask again when something changes."""
    if state.short >= 0 and not precedes(state, seq, state.short):  # guard: due-batch-memory
        return None
    offset = state.memory.alloc(nbytes)
    if offset is None and not state.growing:
        is_due = state.due[0] == seq
        span = more_memory(state, nbytes) if is_due or not has_enough(state, nbytes) else None
        if span is not None:
            state.growing = span[1] - span[0]
            out.append(ev.Grow(*span))
        elif is_due:
            offset = make_room(state, nbytes, seq, out)
    if offset is None:
        state.short, state.short_bytes = seq, nbytes
        return None
    if state.short == seq:
        state.short = -1
    return Slab(offset, nbytes)


def precedes(state: State, seq: int, other: int) -> bool:
    """Whether `seq` is due no later than `other`, or `other` is no longer due."""
    for one in state.due:
        if one == seq:
            return True
        if one == other:
            return False
    return False


def draining(state: State) -> bool:
    """Whether cancelled tasks are still at workers: their memory comes back once they are gone."""
    return any(issued.cancelled for worker in state.workers for issued in worker.tasks.values())


def make_room(state: State, nbytes: int, seq: int, out: list[Action]) -> int | None:
    """Take memory for the due batch from the latest batches; if none is left, ask the consumer to release some."""
    for later in reversed(state.due):
        if draining(state):
            return None
        batch = state.batches[later]
        if later != seq and batch.slabs() and batch.kind is not Kind.STREAM:
            start_over(state, batch, batch.kind, out)
            offset = state.memory.alloc(nbytes)
            if offset is not None:
                return offset
    if not draining(state) and state.starved != seq:
        state.starved = seq
        out.append(ev.Starved(seq, nbytes))
    return None


def slab_bytes(state: State, batch: Batch) -> int:
    return lane_offsets(state.layouts[batch.layout], batch.size)[1]


def serve_memory(state: State, out: list[Action]) -> None:
    """Place results that wait in workers, most urgent first."""
    if not state.waiting:
        return
    turn = {seq: at for at, seq in enumerate(state.due)}
    state.waiting = [w for w in state.waiting if is_live(state, w)]
    state.waiting.sort(key=lambda w: (turn[w.seq], w.start))
    # Placing one result may void another behind it.
    while state.waiting and (not is_live(state, state.waiting[0]) or place(state, state.waiting[0], out)):
        state.waiting.pop(0)


def is_live(state: State, waiting: Unplaced) -> bool:
    issued = state.workers[waiting.worker].tasks.get(waiting.task)
    return issued is not None and not issued.cancelled


def place(state: State, waiting: Unplaced, out: list[Action]) -> bool:
    """Give a result its memory; False if there is none now."""
    batch, issued = state.batches[waiting.seq], state.workers[waiting.worker].tasks[waiting.task]
    in_slots = issued.task.kind is Kind.SLOTS
    slab = batch.slab if in_slots else None
    if slab is None:
        need = slab_bytes(state, batch) if in_slots else waiting.nbytes
        if batch.kind is Kind.STREAM and not in_turn(state, batch, need):
            return False
        slab = obtain(state, need, batch.seq, out)
        if slab is None:
            return False
        if issued.task.kind is Kind.PARTS:
            batch.parts[waiting.start] = slab
        else:
            batch.slab = slab
    slab.pins += 1
    issued.slabs.append(slab)
    out.append(ev.PlaceResult(waiting.worker, waiting.task, slab.offset, batch.layout if in_slots else -1))
    return True


def in_turn(state: State, batch: Batch, need: int) -> bool:
    """Whether a stream batch may have memory now. It cannot be prepared again, so its memory cannot be taken back:
    it waits for earlier batches, unless all due ones together need little of the arena."""
    state.largest = max(state.largest, aligned(need))
    if STREAM_ROOM * len(state.due) * state.largest <= state.ceiling - state.config.base:
        return True
    return all(state.batches[seq].slab is not None for seq in state.due[: state.due.index(batch.seq)])


def all_waiting(state: State, worker: WorkerState) -> bool:
    """Whether the worker is silent because it waits for memory (so it does not hang)."""
    return worker.tasks.keys() <= {w.task for w in state.waiting if w.worker == worker.id}


# ---- tasks


def cancel(state: State, worker: WorkerState, issued: Issued, out: list[Action]) -> None:
    issued.cancelled = True  # guard: cancelled-memory
    batch = state.batches.get(issued.task.seq)
    if batch is not None:
        batch.live.discard(issued.task.id)
    out.append(ev.Cancel(worker.id, issued.task.id))


def cancel_all(state: State, batch: Batch, out: list[Action]) -> None:
    for worker in state.workers:
        for issued in worker.tasks.values():
            if issued.task.seq == batch.seq and not issued.cancelled:
                cancel(state, worker, issued, out)


def finish(state: State, number: int, task_id: int) -> Issued | None:
    """Take a task off its worker; None if it was cancelled or is unknown."""
    worker = state.workers[number]
    issued = worker.remove(task_id)
    if issued is None:
        return None
    worker.head_s = state.now_s
    unpin(state, issued)
    unhold(state, issued)
    if issued.cancelled:  # guard: cancelled-task
        return None
    state.batches[issued.task.seq].live.discard(task_id)
    return issued


def give_back(state: State, task: Task) -> None:
    """Void the task: its samples become to-do again, and memory that only it filled is freed."""
    batch = state.batches[task.seq]
    batch.live.discard(task.id)
    batch.returned = True
    void = batch.parts.pop(task.start, None) if task.kind is Kind.PARTS else None
    if task.kind not in (Kind.PARTS, Kind.SLOTS):
        void, batch.slab = batch.slab, None
    if void is not None:
        let_go(state, [void])
    if task.kind is not Kind.COLLATE:
        batch.give_back(task.start, task.samples)


def start_over(state: State, batch: Batch, kind: Kind, out: list[Action]) -> None:
    cancel_all(state, batch, out)
    disown(state, batch)
    batch.restart(kind)


def relay(state: State, batch: Batch, layout: int, out: list[Action]) -> None:
    """Restart a batch whose samples differ from its layout: once with theirs, then whole, by torch's own collate."""
    if batch.relaid:
        start_over(state, batch, Kind.WHOLE, out)
        return
    start_over(state, batch, Kind.SLOTS, out)
    batch.relaid = True
    batch.layout = state.layout = layout


def blame(state: State, task: Task, event: ev.WorkerLost) -> None:
    """Count a lost worker against its current sample, which will be retried even if this task was void."""
    batch = state.batches.get(task.seq)
    if batch is None or batch.delivered:
        return
    ordinal = event.ordinal if event.ordinal >= 0 else task.start
    # guard: deaths-per-sample
    tries = state.deaths[task.seq, ordinal] = state.deaths.get((task.seq, ordinal), 0) + 1
    if tries < (HANGS_PER_SAMPLE if event.hung else DEATHS_PER_SAMPLE):  # guard: deaths-limit
        return
    whole = event.ordinal in STAGES
    if state.config.poison_raises or whole or task.kind not in (Kind.SLOTS, Kind.PARTS):
        at = event.ordinal if whole else ordinal
        batch.fail(ordinal, Trouble("hung" if event.hung else "died", at, tries, event.cause))
    else:
        batch.poisoned.add(ordinal)


def break_down(state: State, error: ev.Error, out: list[Action]) -> None:
    """Fail every batch with the same error: no worker can do anything."""
    state.fatal = error
    for seq in state.due:
        cancel_all(state, state.batches[seq], out)
        state.batches[seq].fail(0, error)


def give_up(worker: WorkerState, error: ev.Error, out: list[Action]) -> None:
    """Go on without a spare worker that cannot start, and without those behind it. The user is told once."""
    pool = worker.pool
    if pool.most == UNBOUNDED:
        out.append(ev.GiveUp(worker.id, error))
    pool.most = min(pool.most, worker.place)
    pool.size = min(pool.size, worker.place)


def bind(state: State, batch: Batch) -> bool:
    """Assign a stream batch to the next worker in turn (out of order: to the one that owes least). False if all have ended."""
    count = len(state.workers)
    turns = [state.workers[(state.next_worker + step) % count] for step in range(count)]
    waiting = [worker for worker in turns if not worker.exhausted]
    if not waiting:
        return False
    worker = waiting[0] if state.config.in_order else min(waiting, key=lambda worker: owed(state, worker))
    batch.worker = worker.id
    state.next_worker = (worker.id + 1) % count
    if worker.lost is not None:
        batch.fail(0, worker.lost)
        worker.exhausted, worker.lost = True, None
    return True


def owed(state: State, worker: WorkerState) -> int:
    """Count the undelivered batches asked of this worker's iterator."""
    return sum(state.batches[seq].worker == worker.id for seq in state.due)


def arrive(state: State, batch: Batch) -> None:
    """Make a batch due in the order of yielding (out of order only): none waits for a slow worker's."""
    state.due.remove(batch.seq)
    here = [at for at, seq in enumerate(state.due) if not state.batches[seq].arrived]
    state.due.insert(here[0] if here else len(state.due), batch.seq)
    batch.arrived = True
