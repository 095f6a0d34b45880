"""Who works on what next, and which batches leave. Pure, like the core that calls it after every event.

The due batch comes first, and its work goes to the worker that has least: so all workers share the batch that is waited
for, and only then run ahead. Work that waits behind a slow sample is taken back and given to others.
"""

from __future__ import annotations

from heapq import heappop, heapreplace

from penstock.engine import events as ev
from penstock.engine.events import Action, Kind, Task
from penstock.engine.ledger import Batch, Issued, Lane
from penstock.engine.moves import all_waiting, cancel, disown, give_back, obtain, slab_bytes
from penstock.engine.state import State
from penstock.policy.tasks import DEEPEST, NEW_TASK, is_new, queue_samples, task_size
from penstock.store.extents import aligned

STEAL_FACTOR = 5.0
STEAL_MIN_S = 0.050
"""A task queued behind one that runs this much longer than expected goes to another worker."""


def schedule(state: State, out: list[Action]) -> None:
    """Give every worker with room its next task, the least loaded first."""
    if state.fatal is not None:
        return
    enough = queue_samples(sample_s=state.sample_s)
    most = most_prepared(state)
    room: list[tuple[int, int]] = []
    staffed = any(lane.up for lane in state.lanes[: state.workers])
    for lane in state.lanes:
        # Surplus workers stay until there is one that stays: what is due must not wait for a start.
        leaves = lane.retiring or (staffed and state.is_surplus(lane))
        if lane.up and leaves and not lane.tasks:
            lane.up, lane.stopping, lane.stopped_s = False, True, state.now_s
            out.append(ev.Stop(lane.worker))
        elif (
            lane.up
            and not leaves
            and (not lane.tasks or has_room(state, lane, most, enough))
            and not (lane.tasks and overdue(state, lane))
        ):
            room.append((lane.load, lane.worker))
    room.sort()  # a sorted list is a heap
    while room:
        lane = state.lanes[room[0][1]]
        few = NEW_TASK if begins(state, lane, most) else None
        task = next_task(state, lane, behind_due(state), out, few) if few else None
        task = task or next_task(state, lane, state.due, out, few)
        if task is not None:
            issue(state, lane, task, out)
        elif state.kind is not Kind.STREAM:
            break
        if task is not None and has_room(state, lane, most, enough):
            heapreplace(room, (lane.load, lane.worker))
        else:
            heappop(room)
    if state.waiting:
        use_stalled(state, out)


def has_room(state: State, lane: Lane, most: int, enough: float) -> bool:
    """Whether a worker that has work gets more."""
    return lane.load < enough and len(lane.tasks) < DEEPEST and not begins(state, lane, most)


def most_prepared(state: State) -> int:
    """By a worker that can be counted on."""
    return max(
        (
            lane.prepared
            for lane in state.lanes
            if lane.up and not lane.retiring and not state.is_surplus(lane) and overdue(state, lane) is None
        ),
        default=0,
    )


def begins(state: State, lane: Lane, most: int) -> bool:
    """Whether a worker is to begin with little, which nobody waits for: where batches are cut into tasks as we like."""
    cut = state.kind in (Kind.SLOTS, Kind.PARTS) and not state.config.task_size
    return cut and is_new(lane.prepared, most)


def behind_due(state: State) -> list[int]:
    """What is due later; all where what is due now has only to be put together."""
    first = state.batches[state.due[0]] if state.due else None
    return state.due if first is None or first.awaits_collate else state.due[1:]


def use_stalled(state: State, out: list[Action]) -> None:
    """A worker whose results all wait for memory is idle: the due batch, which they wait for, may need it."""
    for lane in state.lanes:
        if lane.up and lane.tasks and all_waiting(state, lane):
            task = next_task(state, lane, state.due[:1], out)
            if task is not None:
                issue(state, lane, task, out)


def chosen_size(state: State, batch: Batch) -> int:
    if state.config.task_size:
        return state.config.task_size
    return task_size(
        sample_s=state.sample_s,
        batch=batch.size,
        left=sum(count for _, count in batch.todo),
        workers=state.workers,
        due=batch.seq == state.due[0],
    )


def next_task(
    state: State, lane: Lane, due: list[int], out: list[Action], most: int | None = None
) -> Task | None:
    """The most urgent work this worker can do; no more than `most` samples of it, where it is divided."""
    for seq in due:
        batch = state.batches[seq]
        if not batch.todo:
            if batch.kind is Kind.PARTS and batch.awaits_collate:
                parts = tuple(batch.parts[start].offset for start in sorted(batch.parts))
                return Task(new_id(state), seq, Kind.COLLATE, 0, batch.size, parts=parts)
            continue
        if batch.kind is Kind.STREAM and batch.lane != lane.worker:
            continue
        if batch.kind in (Kind.WHOLE, Kind.STREAM):
            batch.todo.clear()
            return Task(new_id(state), seq, batch.kind, 0, batch.size)
        if batch.kind is Kind.SLOTS:
            if batch.layout < 0:
                batch.layout = state.layout
            if batch.layout >= 0 and batch.slab is None:
                batch.slab = obtain(state, slab_bytes(state, batch), seq, out)
                if batch.slab is None:
                    return None
        start, count = batch.take(min(chosen_size(state, batch), most or batch.size))
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


def new_id(state: State) -> int:
    state.next_task += 1
    return state.next_task  # guard: attempt-ids


def issue(state: State, lane: Lane, task: Task, out: list[Action]) -> None:
    batch = state.batches[task.seq]
    issued = Issued(task, state.now_s)
    if task.kind is Kind.SLOTS and batch.slab is not None:
        batch.slab.pins += 1
        issued.slabs.append(batch.slab)
    if task.kind is Kind.COLLATE:
        issued.held.extend(batch.parts.values())
        for slab in issued.held:
            slab.holds += 1
    if not lane.tasks:
        lane.head_s = state.now_s
    lane.add(issued)
    batch.live.add(task.id)
    out.append(ev.Assign(lane.worker, task))


def steal(state: State, out: list[Action]) -> None:
    """What a worker holds beside a slow sample goes back, so that it does not wait for it: if there is another to do it. Both may then
    write it, one of them late."""
    if not state.config.repeatable:
        return
    late = {lane.worker: running for lane in state.lanes if (running := overdue(state, lane)) is not None}
    if not any(lane.up and lane.worker not in late for lane in state.lanes[: state.workers]):
        return
    for worker, running in late.items():
        lane = state.lanes[worker]
        for issued in lane.tasks.values():
            # Before a task that has been taken back already, the slow sample itself may stand, just arrived.
            arrived = running.cancelled and is_prepared(issued)
            if issued is not running and not issued.cancelled and not arrived:
                cancel(state, lane, issued, out)
                give_back(state, issued.task)


def overdue(state: State, lane: Lane) -> Issued | None:
    """The task that a worker has been at for much longer than expected, unless it waits for memory itself."""
    late_s = state.now_s - lane.head_s
    if late_s <= STEAL_MIN_S or not lane.tasks or state.kind is Kind.STREAM:
        return None
    running = next((issued for issued in lane.tasks.values() if not is_prepared(issued)), None)
    if running is None or late_s <= STEAL_FACTOR * (state.pace_s or 0.0) * running.task.samples:
        return None
    return None if any(w.worker == lane.worker for w in state.waiting) else running


def is_prepared(issued: Issued) -> bool:
    """Its result has a place since it was made, and is written there as soon as the worker looks up from the next task."""
    return bool(issued.slabs) and issued.task.offset < 0


# ---- delivery


def deliver(state: State, out: list[Action]) -> None:
    """Hand out what is settled: in order, or whatever is there."""
    while state.due and can_leave(state, state.batches[state.due[0]]):
        hand_out(state, state.due[0], out)
    if not state.config.in_order:  # guard: in-order
        for seq in [seq for seq in state.due if can_leave(state, state.batches[seq])]:
            hand_out(state, seq, out)
    if (
        state.kind is Kind.STREAM
        and not state.due
        and not state.ended
        and all(x.exhausted for x in state.lanes)
    ):
        state.ended = True
        out.append(ev.DeliverEnd(state.asked))


def can_leave(state: State, batch: Batch) -> bool:
    """It is complete, and what could still write it is gone, or will be long in coming."""
    if not batch.complete:
        return False
    return batch.error is not None or not late_writers(batch) or held_up(state, batch)  # guard: late-writers


def late_writers(batch: Batch) -> bool:
    """Tasks that were taken back, of which their workers have not said yet that they are gone."""
    return batch.slab is not None and batch.slab.pins > 0


def held_up(state: State, batch: Batch) -> bool:
    """All that could still write it waits behind slow samples."""
    return all(
        overdue(state, lane) is not None
        for lane in state.lanes
        if any(batch.slab in issued.slabs for issued in lane.tasks.values())
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
    # Late writers write the bytes that are there, but the user may want to write too: their batch is for copying.
    # guard: late-writers-copy
    nbytes = 0 if late_writers(batch) else sum(aligned(slab.nbytes) for slab in batch.slabs())
    out.append(ev.Deliver(seq, batch.slab.offset, layout, tuple(sorted(batch.dropped)), nbytes))
