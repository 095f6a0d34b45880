"""The core: events in, actions out. The agent makes all its decisions here.

Rule 1: batches leave in the order they were fed (unless `in_order` is off), whatever order their parts finish in.
Rule 2: all workers work on the due batch before any runs ahead. New workers, still slow, start with a later batch.
Rule 3: the due batch gets memory first; later batches give theirs back rather than block an earlier one.
Rule 4: a lost worker costs time, never a sample: its tasks are issued again under new ids. A sample that kills three
workers, or hangs two, fails its batch (or is skipped, if the user asked for that).
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.core import events as ev
from penstock.core.events import Action, Event, Kind, Trouble
from penstock.core.ledger import Batch, Unplaced
from penstock.core.operations import (
    all_waiting,
    arrive,
    bind,
    blame,
    break_down,
    cancel,
    cancel_all,
    disown,
    draining,
    finish,
    fits,
    give_back,
    give_up,
    let_go,
    relay,
    serve_memory,
    start_over,
    unhold,
    unpin,
)
from penstock.core.pools import LOCAL, WorkerState, blend
from penstock.core.scheduling import deliver, schedule, steal
from penstock.core.state import CoreConfig, State, new_state

__all__ = ["CoreConfig", "State", "new_state", "on_event"]

FRUITLESS_DEATHS = 3
FRUITLESS_STARTS = 1
"""Hangs at start before the loader gives up: each costs the full start timeout."""
START_S = 20.0
"""Minimum start timeout: a starting worker imports modules and runs the user's `worker_init_fn`."""
STOP_S = 5.0
"""Kill a worker that has not ended this long after it was asked to."""
WARN_SILENT_S = 60.0
"""Interval of silent-worker reports when there is no hang timeout."""


def on_event(state: State, event: Event) -> list[Action]:
    """Advance `state` and return what the driver must do next."""
    out: list[Action] = []
    HANDLERS[type(event)](state, event, out)
    deliver(state, out)
    serve_memory(state, out)
    schedule(state, out)
    return out


# ---- events


def on_feed(state: State, event: ev.Feed, _: list[Action]) -> None:
    state.asked, state.now_s = event.seq, max(state.now_s, event.at_s)
    # An empty batch cannot be divided: the collate function alone decides its result.
    kind = Kind.WHOLE if event.size == 0 and state.kind is not Kind.STREAM else state.kind
    batch = Batch(event.seq, event.size, kind, todo=[(0, event.size)])
    if event.fetches and event.size:
        batch.todo, batch.away = [], set(range(event.size))
    if state.fatal is not None:
        batch.fail(0, state.fatal)
    elif state.kind is Kind.STREAM and not bind(state, batch):
        return
    state.batches[event.seq] = batch
    state.due.append(event.seq)


def on_bytes_here(state: State, event: ev.BytesHere, _: list[Action]) -> None:
    batch = state.batches.get(event.seq)
    if batch is not None:  # else its epoch was broken off
        batch.land(event.start, event.samples)


def on_abort(state: State, _: ev.Abort, out: list[Action]) -> None:
    for seq in state.due:
        batch = state.batches.pop(seq)
        cancel_all(state, batch, out)
        disown(state, batch)
    state.due.clear()
    state.ended = False
    for worker in state.workers:
        worker.exhausted, worker.lost = False, None
        if worker.gone:
            worker.gone = False
            out.append(ev.Start(worker.id))  # guard: stream-worker-restart
    state.next_worker = 0


def on_released(state: State, event: ev.Released, _: list[Action]) -> None:
    batch = state.batches.pop(event.seq, None)
    if batch is not None:
        disown(state, batch)


def on_worker_started(state: State, event: ev.WorkerStarted, _: list[Action]) -> None:
    worker = state.workers[event.worker]
    worker.starting, worker.beat_s, worker.dumped_s, state.now_s = True, event.at_s, event.at_s, event.at_s
    worker.wait_s, worker.expected = 0.0, False


def on_worker_up(state: State, event: ev.WorkerUp, _: list[Action]) -> None:
    worker = state.workers[event.worker]
    worker.up, worker.starting, worker.prepared = True, False, 0
    worker.beat_s, worker.dumped_s, state.now_s = event.at_s, event.at_s, event.at_s


def on_worker_lost(state: State, event: ev.WorkerLost, out: list[Action]) -> None:
    worker = state.workers[event.worker]
    blamed, hung_at_start = worker.tasks.get(event.task), event.hung and worker.starting
    leaves = worker.retiring or worker.stopping or worker.surplus
    worker.fruitless += blamed is None and not leaves and (bool(worker.tasks) or not worker.up)
    for issued in worker.tasks.values():
        unpin(state, issued)
        unhold(state, issued)
        if not issued.cancelled:  # guard: lost-work
            give_back(state, issued.task)
            state.reissued += 1
    for issued in worker.holding.values():
        unhold(state, issued)
    worker.clear()
    worker.up = worker.starting = worker.condemned = worker.retiring = worker.stopping = False
    if state.kind is Kind.STREAM:
        lose_stream(state, worker, event.cause, out)
        return
    if blamed is not None:
        blame(state, blamed.task, event)
    useless = worker.fruitless > (FRUITLESS_STARTS if hung_at_start else FRUITLESS_DEATHS)
    worker.given_up |= useless and worker.pool.kind != LOCAL
    if useless and worker.is_spare:  # guard: fruitless-spare
        give_up(worker, Trouble("start", tries=worker.fruitless, cause=event.cause), out)
    if worker.surplus:
        worker.away, worker.fruitless = True, 0
    elif useless:  # guard: fruitless-worker
        break_down(state, Trouble("start", tries=worker.fruitless, cause=event.cause), out)
    else:
        out.append(ev.Start(event.worker))


def lose_stream(state: State, worker: WorkerState, cause: str, out: list[Action]) -> None:
    """Report the rest of the iterator as lost, once: as the error of the next batch the worker owes."""
    worker.gone = True
    lost = Trouble("stream", cause=cause)
    owed = next(
        (seq for seq in state.due if state.batches[seq].worker == worker.id and state.batches[seq].todo), None
    )
    if owed is not None:
        state.batches[owed].fail(0, lost)
        exhaust(state, worker.id, out)
    elif not worker.exhausted:
        worker.lost = lost


def on_done(state: State, event: ev.Done, _: list[Action]) -> None:
    worker = state.workers[event.worker]
    issued = worker.remove(event.task)
    if issued is None:
        return
    worker.fruitless = 0
    worker.prepared += issued.task.samples
    worker.pool.done += issued.task.samples if issued.task.kind is not Kind.COLLATE else 0
    if issued.task.samples and issued.task.kind is not Kind.COLLATE:
        worker.pool.learn_pace(worker, issued, event.took_s, event.at_s)
    worker.head_s = state.now_s = event.at_s
    task = issued.task
    unpin(state, issued)
    if event.holds:  # guard: held-parts
        worker.holding[task.id] = issued
    else:
        unhold(state, issued)
    if issued.cancelled:  # guard: cancelled-result
        return
    batch = state.batches[task.seq]
    batch.live.discard(task.id)
    batch.dropped.update(event.dropped)
    if batch.size and len(batch.dropped) == batch.size:  # guard: empty-batch
        batch.fail(0, Trouble("empty"))
    if task.kind is Kind.COLLATE:
        batch.collated = True
        if not event.refers:
            let_go(state, batch.parts.values())
            batch.parts.clear()
    elif task.samples:
        worker.pool.sample_s = blend(worker.pool.sample_s, event.took_s / task.samples)


def on_layout_known(state: State, event: ev.LayoutKnown, _: list[Action]) -> None:
    state.layouts[event.layout] = event.items


def on_prepared(state: State, event: ev.Prepared, out: list[Action]) -> None:
    issued = state.workers[event.worker].tasks.get(event.task)
    if issued is None or issued.cancelled:
        return
    task = issued.task
    batch = state.batches[task.seq]
    if event.layout >= 0:
        if batch.layout < 0:
            batch.layout = state.layout = event.layout
        elif batch.layout != event.layout:
            relay(state, batch, event.layout, out)
            return
        state.sample_bytes = float(sum(state.layouts[event.layout]))
    elif task.samples:
        state.sample_bytes = blend(state.sample_bytes or None, event.nbytes / task.samples)
    if batch.kind is Kind.STREAM and not state.config.in_order:
        arrive(state, batch)
    state.waiting.append(Unplaced(task.seq, task.start, task.id, event.worker, event.nbytes))


def on_mismatch(state: State, event: ev.Misfit, out: list[Action]) -> None:
    issued = finish(state, event.worker, event.task)
    if issued is not None:
        relay(state, state.batches[issued.task.seq], event.layout, out)


def on_refused(state: State, event: ev.Refused, out: list[Action]) -> None:
    issued = finish(state, event.worker, event.task)
    if issued is not None and issued.task.kind is Kind.WHOLE:  # its result cannot leave the machine it is on
        state.workers[event.worker].pool.whole = False  # guard: whole-at-home
        give_back(state, issued.task)
    elif issued is not None:
        state.kind = Kind.WHOLE
        start_over(state, state.batches[issued.task.seq], Kind.WHOLE, out)
        for seq in state.due:
            batch = state.batches[seq]
            if batch.kind is not Kind.WHOLE and batch.todo == [(0, batch.size)]:
                start_over(state, batch, Kind.WHOLE, out)


def on_unreached(state: State, event: ev.Unreached, _: list[Action]) -> None:
    """Have the task done here. If it fails here too, that is the user's error."""
    issued = finish(state, event.worker, event.task)
    if issued is not None:
        state.workers[event.worker].fruitless = 0
        state.batches[issued.task.seq].at_home = True  # guard: unreached-at-home
        give_back(state, issued.task)


def on_failed(state: State, event: ev.Failed, out: list[Action]) -> None:
    issued = finish(state, event.worker, event.task)
    if issued is None:
        return
    state.workers[event.worker].fruitless = 0
    batch = state.batches[issued.task.seq]
    batch.fail(event.ordinal, event.error)
    for worker in state.workers:
        for other in worker.tasks.values():
            if other.task.id in batch.live and other.task.start > event.ordinal:
                cancel(state, worker, other, out)


def on_exhausted(state: State, event: ev.Exhausted, out: list[Action]) -> None:
    issued = finish(state, event.worker, event.task)
    if issued is not None:
        give_back(state, issued.task)
        exhaust(state, event.worker, out, after=event.task)


def exhaust(state: State, worker: int, out: list[Action], *, after: int = -1) -> None:
    """Ask the other workers for the batches that `worker`, at its end, still owes; they queue behind their own."""
    state.workers[worker].exhausted = True
    for seq in [seq for seq in state.due if state.batches[seq].worker == worker]:
        batch = state.batches[seq]
        # A result yielded before the end may still wait for memory: keep it.
        if batch.error is not None or not (batch.todo or any(task > after for task in batch.live)):
            continue
        cancel_all(state, batch, out)
        state.due.remove(seq)
        batch.restart(Kind.STREAM)
        if bind(state, batch):
            state.due.append(seq)
        else:
            del state.batches[seq]


def on_dropped(state: State, event: ev.Dropped, _: list[Action]) -> None:
    worker = state.workers[event.worker]
    issued = worker.remove(event.task)
    if issued is not None:
        unpin(state, issued)
    else:
        issued = worker.holding.pop(event.task, None)
    if issued is not None:
        unhold(state, issued)


def on_init_failed(state: State, event: ev.InitFailed, out: list[Action]) -> None:
    worker = state.workers[event.worker] if event.worker >= 0 else None
    if worker is None or not worker.is_spare:  # guard: init-of-a-spare
        break_down(state, event.error, out)
        return
    give_up(worker, event.error, out)
    if worker.starting:
        worker.stopping, worker.stopped_s = True, state.now_s
        out.append(ev.Stop(worker.id))


def on_not_started(state: State, event: ev.NotStarted, out: list[Action]) -> None:
    """Give up a spare worker whose process could not be started. Start it again if it is one of the rank's own by now."""
    worker = state.workers[event.worker]
    if worker.is_spare:
        give_up(worker, Trouble("start", cause=event.cause), out)
    if worker.surplus:
        worker.away = True
    else:
        out.append(ev.Start(worker.id))


def on_retire(state: State, event: ev.Retire, _: list[Action]) -> None:
    # Replacing a stream worker would lose the rest of its iterator.
    worker = state.workers[event.worker]
    worker.retiring = state.kind is not Kind.STREAM and not worker.away


def on_resize(state: State, event: ev.ResizePool, out: list[Action]) -> None:
    """Start new workers; `schedule` stops surplus ones once they finish their tasks."""
    if state.kind is Kind.STREAM:
        return
    pool = state.pools[event.pool]
    pool.size = event.workers
    state.enlist(pool, event.workers, away=True)
    for worker in pool.members[: event.workers] if state.fatal is None else ():
        if worker.away:
            worker.away = worker.given_up = False
            out.append(ev.Start(worker.id))


def on_offload(state: State, event: ev.Offload, out: list[Action]) -> None:
    if state.kind is not Kind.STREAM:
        state.pools[event.pool].offload(event.share)
        on_resize(state, ev.ResizePool(event.workers, event.pool), out)


def on_take_whole(state: State, event: ev.TakeWhole, _: list[Action]) -> None:
    state.pools[event.pool].whole = event.whole


def on_allow(state: State, event: ev.Allow, _: list[Action]) -> None:
    if state.kind is not Kind.STREAM:  # each of its workers owes its share, and nobody else can do that
        state.local.allowed, state.local.own = event.workers, event.own


def on_stuck(state: State, event: ev.Stuck, out: list[Action]) -> None:
    """Fail the due batch if it still does not fit: the consumer has given back all it can, so it never will."""
    if state.starved != event.seq:
        return
    state.starved = -1
    if state.due[:1] != [state.short] or draining(state) or fits(state, state.short_bytes):
        return
    batch = state.batches[state.short]
    cancel_all(state, batch, out)
    limit = state.config.limit_bytes
    batch.fail(0, Trouble("memory", need_bytes=state.short_bytes, limit_bytes=limit))


def on_grown(state: State, event: ev.Grown, _: list[Action]) -> None:
    state.growing = 0
    state.memory.fill(event.start, event.end)


def on_grow_denied(state: State, _event: ev.GrowDenied, _: list[Action]) -> None:
    state.refused = min(state.growing, state.refused or state.growing)
    state.growing = 0


def on_tick(state: State, event: ev.Tick, out: list[Action]) -> None:
    state.now_s = event.at_s
    waits = event.waits or (0.0,) * len(event.beats)
    for worker, beat, wait_s in zip(state.workers, event.beats, waits, strict=True):
        expected, worker.expected = worker.expected, expects_beats(state, worker)
        if worker.condemned:
            continue
        if worker.stopping and event.at_s - worker.stopped_s >= STOP_S:
            worker.condemned = True
            out.append(ev.Kill(worker.id, "does not end"))
        # guard: hang-at-start
        elif not worker.starting and (beat != worker.beat or not (expected and worker.expected)):
            worker.beat, worker.beat_s, worker.dumped_s, worker.wait_s = beat, event.at_s, event.at_s, wait_s
        else:
            on_silence(state, worker, event.at_s, wait_s, out)
    steal(state, out)
    if state.config.trims and not state.due and not state.growing:
        out.extend(ev.Shrink(*span) for span in state.memory.give_up())
        state.refused = 0


def on_silence(state: State, worker: WorkerState, at_s: float, wait_s: float, out: list[Action]) -> None:
    """Report or kill a silent worker. Time spent waiting for a core does not count as silence."""
    silent = at_s - worker.beat_s - (wait_s - worker.wait_s)
    patience_s = max(state.config.hang_s, START_S) if worker.starting else state.config.hang_s
    patience_s += worker.pool.latency_s
    if state.config.hang_s and silent >= patience_s:  # guard: silent-worker
        worker.up, worker.condemned = False, True
        out.append(ev.Dump(worker.id, silent))
        out.append(ev.Kill(worker.id, "hang"))
    elif at_s - worker.dumped_s >= WARN_SILENT_S <= silent:
        worker.dumped_s = at_s
        out.append(ev.Dump(worker.id, silent))


def expects_beats(state: State, worker: WorkerState) -> bool:
    return worker.up and bool(worker.tasks) and not all_waiting(state, worker)  # guard: waits-for-memory


HANDLERS: dict[type, Callable[..., None]] = {
    ev.Feed: on_feed, ev.BytesHere: on_bytes_here, ev.Abort: on_abort, ev.Released: on_released,
    ev.WorkerStarted: on_worker_started, ev.WorkerUp: on_worker_up, ev.WorkerLost: on_worker_lost, ev.Done: on_done, ev.LayoutKnown: on_layout_known, ev.Prepared: on_prepared,
    ev.Misfit: on_mismatch, ev.Refused: on_refused, ev.Unreached: on_unreached, ev.Failed: on_failed, ev.Exhausted: on_exhausted,
    ev.Dropped: on_dropped, ev.InitFailed: on_init_failed, ev.NotStarted: on_not_started, ev.Grown: on_grown, ev.GrowDenied: on_grow_denied,
    ev.Tick: on_tick, ev.Stuck: on_stuck, ev.Retire: on_retire, ev.ResizePool: on_resize, ev.TakeWhole: on_take_whole,
    ev.Offload: on_offload, ev.Allow: on_allow,
}  # fmt: skip
