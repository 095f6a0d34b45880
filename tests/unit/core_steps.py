"""Words for tests of the core: start it, tell it events, look at what it wants done. No workers, no clock, no memory."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.core import events as ev
from penstock.core.core import CoreConfig, State, new_state, on_event
from penstock.core.events import Action, Event, Kind, Task

PAGE = 4096
A = TypeVar("A")


def started(kind: Kind = Kind.SLOTS, *, workers: int = 2, pages: int = 1000, **config: Any) -> State:
    """A core whose workers are up, with layout 0 (a page per four samples) known; sizes of tasks default to 2."""
    config = {"task_size": 2, **config}
    state = new_state(CoreConfig(workers=workers, kind=kind, limit_bytes=pages * PAGE, **config))
    tell(state, ev.LayoutKnown(0, (1024,)), ev.LayoutKnown(1, (2048,)), ev.LayoutKnown(2, (512,)))
    tell(state, *(ev.WorkerUp(worker, 0.0) for worker in range(workers)))
    return state


def laid_out(**config: Any) -> State:
    """The same, where batch 0 has told that samples have layout 0; it is delivered and released."""
    state = started(**config)
    (first, *_) = of(ev.Assign, tell(state, ev.Feed(0, 2)))
    tell(state, ev.Prepared(first.worker, first.task.id, 0, 0), done(first), ev.Released(0))
    return state


def tell(state: State, *events: Event) -> list[Action]:
    """All that the core wants done about these events; memory is given as soon as it is asked for."""
    actions: list[Action] = []
    waiting = list(events)
    while waiting:
        answered = on_event(state, waiting.pop(0))
        actions += answered
        waiting[:0] = [ev.Grown(*action) for action in answered if isinstance(action, ev.Grow)]
    return actions


def of(kind: type[A], actions: list[Action]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def tasks(actions: list[Action]) -> list[tuple[int, int, int, int]]:
    """(worker, batch, first sample, samples) of what was assigned."""
    assigned = of(ev.Assign, actions)
    return [(one.worker, one.task.seq, one.task.start, one.task.samples) for one in assigned]


def done(assign: ev.Assign, *, at_s: float = 0.0, took_s: float = 1.0, **facts: Any) -> ev.Done:
    return ev.Done(assign.worker, assign.task.id, took_s, at_s, **facts)


def lost(assign: ev.Assign, ordinal: int = -1, *, hung: bool = False) -> ev.WorkerLost:
    """The worker died on this task."""
    return ev.WorkerLost(assign.worker, assign.task.id, ordinal, "was killed", hung)


def die(state: State, ordinal: int, *, times: int, hung: bool = False) -> list[Action]:
    """Worker 0 dies again and again on a sample of whatever it is given first; what the core says in the end."""
    actions: list[Action] = []
    for _ in range(times):
        first = ev.Assign(0, running(state)[0])
        actions = tell(state, lost(first, ordinal, hung=hung), ev.WorkerUp(0, 1.0))
    return actions


def failed(assign: ev.Assign, ordinal: int) -> ev.Failed:
    return ev.Failed(assign.worker, assign.task.id, ordinal, b"error of %d" % ordinal)


def only(kind: type[A], actions: list[Action]) -> A:
    """The one action of this kind."""
    (one,) = of(kind, actions)
    return one


def running(state: State) -> list[Task]:
    """Tasks that are at workers and count."""
    return [x.task for worker in state.workers for x in worker.tasks.values() if not x.cancelled]
