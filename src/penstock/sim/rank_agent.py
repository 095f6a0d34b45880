"""The agent of one rank in the simulator of ranks: the engine's own core, and workers that cost cores time.

Lighter than `sim/agent.py`: a task is one step, memory is not checked, nothing goes wrong but what `ranks.py` lets go wrong.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from penstock.agent.lending import SILENT_S
from penstock.core import events as ev
from penstock.core.core import CoreConfig, new_state, on_event
from penstock.core.events import UNBOUNDED, Event, Kind
from penstock.core.standing import Next, glance, standing
from penstock.policy.lending import MOST, RankView
from penstock.policy.reporting import PAUSE_S, Reporting
from penstock.sim.agenda import Agenda
from penstock.sim.cores import Cores
from penstock.sim.rank_load import RankLoad

TICK_S = 0.05
WAY_S = 0.0001
"""Travel time of a message between agent and worker."""
ITEMS = (1024,)
"""Bytes of a sample, by lane."""


class RankMachine(Protocol):
    """What an agent needs of the machine it is on."""

    load: RankLoad
    agenda: Agenda
    cores: Cores

    def work_s(self, rank: int, task: ev.Task) -> float: ...
    def delivered(self, agent: RankAgent, seq: int) -> None: ...
    def to_manager(self, agent: RankAgent, view: RankView) -> None: ...
    def leave(self, agent: RankAgent) -> None: ...


class RankWorker:
    """A worker's queue."""

    def __init__(self) -> None:
        self.queue: deque[ev.Task] = deque()
        self.running: ev.Task | None = None
        self.beat = 0


class RankAgent:
    def __init__(self, machine: RankMachine, rank: int, taken: int) -> None:
        self.machine, self.rank, self.load, self.taken = machine, rank, machine.load, taken
        self.alive, self.connected = True, False
        config = CoreConfig(workers=self.load.workers, kind=Kind.SLOTS, trims=False)
        self.state = new_state(config)
        self.workers = [RankWorker() for _ in self.state.workers]
        self.reporting = Reporting()
        self.heard_s = -1.0
        self.own = machine.load.workers
        """Cores that are its own."""
        self._planned = False
        self._events: deque[Event] = deque()
        self.happen(ev.LayoutKnown(0, ITEMS))
        for worker in self.state.workers:
            self._start(worker.id)
        machine.agenda.after(TICK_S, self._tick)

    # ---- the core

    def happen(self, event: Event) -> None:
        """Tell the core and do what it says."""
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            for action in on_event(self.state, self._events[0]):
                self._perform(action)
            self._events.popleft()
        self._report_soon()

    def _perform(self, action: ev.Action) -> None:
        match action:
            case ev.Assign(worker, task):
                self._send(self._on_task, worker, task)
            case ev.Cancel(worker, task_id):
                self._send(self._on_cancel, worker, task_id)
            case ev.PlaceResult(worker, task_id, _, _):
                self._send(self._done, worker, self.state.workers[worker].tasks[task_id].task, 0.0)
            case ev.Deliver(seq):
                self.machine.agenda.after(self.load.delay_s, self.machine.delivered, self, seq)
            case ev.Grow(start, end):
                self._events.append(ev.Grown(start, end))
            case ev.Start(worker):
                self._start(worker)
            case _:
                raise AssertionError(f"{action} is not played here")

    # ---- workers

    def _start(self, worker: int) -> None:
        while len(self.workers) <= worker:
            self.workers.append(RankWorker())
        self.machine.agenda.after(self.load.start_s, self._up, worker)

    def _up(self, worker: int) -> None:
        if self.alive:
            self.happen(ev.WorkerUp(worker, self.machine.agenda.now_s))

    def _send(self, to: object, *message: object) -> None:
        self.machine.agenda.after(WAY_S, self._arrive, to, message)

    def _arrive(self, to: object, message: tuple[object, ...]) -> None:
        if self.alive:
            assert callable(to)
            to(*message)

    def _on_task(self, worker: int, task: ev.Task) -> None:
        self.workers[worker].queue.append(task)
        self._next(worker)

    def _on_cancel(self, worker: int, task_id: int) -> None:
        queue = self.workers[worker].queue
        for task in [task for task in queue if task.id == task_id]:
            queue.remove(task)
            self._send(self.happen, ev.Dropped(worker, task_id))

    def _next(self, worker: int) -> None:
        one = self.workers[worker]
        if one.running is None and one.queue:
            one.running = task = one.queue.popleft()
            one.beat += 1
            work_s = self.machine.work_s(self.rank, task)
            self.machine.cores.run(self, work_s, lambda: self._finished(worker, task, work_s))

    def _finished(self, worker: int, task: ev.Task, work_s: float) -> None:
        one = self.workers[worker]
        one.running = None
        one.beat += 1
        if task.offset < 0:  # the first samples of all: their layout is not known yet
            self._send(self.happen, ev.Prepared(worker, task.id, 0, 0))
        else:
            self._send(self._done, worker, task, work_s)
        self._next(worker)

    def _done(self, worker: int, task: ev.Task, work_s: float) -> None:
        took_s = work_s or self.machine.work_s(self.rank, task)
        self.happen(ev.Done(worker, task.id, took_s, self.machine.agenda.now_s))

    def _tick(self) -> None:
        if self.alive:
            beats = tuple(worker.beat for worker in self.workers)
            self.happen(ev.Tick(self.machine.agenda.now_s, beats))
            self._look_after(self.machine.agenda.now_s)
            self.machine.agenda.after(TICK_S, self._tick)

    def _look_after(self, now_s: float) -> None:
        """Leave a manager that is silent although it lends our cores, or others to us."""
        if not self.connected or self.has_its_own:
            self.heard_s = now_s
        elif now_s - self.heard_s > SILENT_S:
            self.disconnect()
            self.machine.leave(self)

    # ---- training

    def on_ask(self, seq: int) -> None:
        if self.alive:
            self.happen(ev.Feed(seq, self.load.batch_size))

    def on_taken(self, taken: int) -> None:
        """Training takes batch `taken` next, and has no use for those before the last."""
        if self.alive:
            self.taken = taken
            self.happen(ev.Released(taken - 2))

    # ---- the manager

    def connect(self) -> None:
        if self.alive:
            self.connected = True
            self.reporting.begin()
            self._report_soon()

    def disconnect(self) -> None:
        """Without a manager, a rank has its own workers and no others."""
        if self.alive:
            self.connected = False
            self.on_allowed(self.load.workers, self.load.workers)

    @property
    def has_its_own(self) -> bool:
        return self.state.local.allowed in (UNBOUNDED, self.load.workers)

    def on_allowed(self, workers: int, own: int) -> None:
        if not self.alive:
            return
        self.own = own
        self.heard_s = self.machine.agenda.now_s
        size = min(workers, MOST * self.load.workers)
        if size > self.state.local.size:
            self.happen(ev.ResizePool(size))
        self.reporting.wake()
        self.happen(ev.Allow(workers))

    def _report_soon(self) -> None:
        """Look how we stand, now or as soon as it is time."""
        if not self.connected or self._planned:
            return
        now_s, home = self.machine.agenda.now_s, self.load.workers
        taken = Next(0, self.taken, self.taken)
        seen = glance(self.state, taken, self.own)
        wait_s = self.reporting.wait_s(now_s, seen)
        if wait_s > PAUSE_S:
            return  # a tick or another event comes before
        if wait_s > 0:
            self._planned = True
            self.machine.agenda.at(now_s + wait_s, self._report_planned)
            return
        view = standing(self.state, taken, home=home, crew=crew_of(self.load, self.rank))
        if self.reporting.is_news(view, seen, now_s, own=self.own):
            self.machine.to_manager(self, view)

    def _report_planned(self) -> None:
        self._planned = False
        if self.alive:
            self._report_soon()


def crew_of(load: RankLoad, rank: int) -> str:
    return str(rank % load.crews)
