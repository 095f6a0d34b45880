"""A rank's workers, GPU and training loop under a virtual clock. Who makes which samples, the division says (`sim.division`).

Rule 1: workers and the GPU take new work as soon as they are free.
Rule 2: in idle mode the GPU prepares only while training waits. In concurrent mode both slow each other down.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.policy.paper_split import Side
from penstock.policy.sharing import Sharing
from penstock.sim.agenda import Agenda
from penstock.sim.division_jobs import DivisionJob, rates_of

IN_LANE = 3
"""Batches in the lane and on the device, beyond those prefetched."""
GPU_TASK = 64
"""Samples that the GPU makes together at most."""


class TimedWork(NamedTuple):
    """Work done without a break."""

    batch: int
    seconds: float
    units: int = 1
    """Tasks or samples that are done then."""
    makes: bool = True
    """Whether pixels are made: files may be read alone, for the GPU."""


class Taken(NamedTuple):
    """Training begins a batch."""

    now_s: float
    wait_s: float
    period_s: float
    """Since it began the one before."""
    lane_s: float
    """Seconds of that in which the GPU was preparing."""


class Division(Protocol):
    """Called by `DivisionMachine` only."""

    def for_worker(self, worker: int, *, staying: bool) -> TimedWork | None:
        """Return what a worker does next; one that is leaving only ends what it began."""

    def for_gpu(self) -> TimedWork | None: ...
    def done(self, work: TimedWork, side: Side, worker: int, workers: int) -> None: ...
    def is_ready(self, batch: int) -> bool: ...
    def on_taken(self, taken: Taken) -> None: ...


class Card:
    """A GPU that trains and prepares. Each has its speed alone, and another beside the other."""

    def __init__(self, agenda: Agenda, *, lane_rate: float, train_rate: float) -> None:
        self._agenda = agenda
        self._rates = {"lane": lane_rate, "train": train_rate}
        self._left: dict[str, float] = {}
        self._then: dict[str, Callable[[], None]] = {}
        self._at_s, self._plans = 0.0, 0

    def does(self, what: str) -> bool:
        return what in self._left

    def begin(self, what: str, seconds: float, then: Callable[[], None]) -> None:
        self._advance()
        self._left[what], self._then[what] = seconds, then
        self._plan()

    def _rate(self, what: str) -> float:
        return self._rates[what] if len(self._left) > 1 else 1.0

    def _advance(self) -> None:
        passed_s = self._agenda.now_s - self._at_s
        self._at_s = self._agenda.now_s
        for what in self._left:
            self._left[what] -= passed_s * self._rate(what)

    def _plan(self) -> None:
        """Plan what ends next; earlier plans are void."""
        self._plans += 1
        ends = [(left / rate, what) for what, left in self._left.items() if (rate := self._rate(what)) > 0.0]
        if ends:
            delay_s, what = min(ends)
            self._agenda.after(max(0.0, delay_s), self._end, what, self._plans)

    def _end(self, what: str, plan: int) -> None:
        if plan != self._plans:
            return
        self._advance()
        del self._left[what]
        self._plan()
        self._then.pop(what)()


class DivisionMachine:
    """Workers, a GPU and the training loop of one job."""

    def __init__(self, job: DivisionJob, mode: Sharing, division: Division) -> None:
        self.job, self.division = job, division
        self.agenda = Agenda()
        lane_rate, train_rate = rates_of(job, mode)
        self.card = Card(self.agenda, lane_rate=lane_rate, train_rate=train_rate)
        self.takes_turns = mode is Sharing.IDLE
        self.workers, self.free = job.workers, set(range(job.workers))
        self.made_s: list[float] = []
        """When each batch, and all before it, was prepared."""
        self.ends_s: list[float] = []
        """Of each training step."""
        self.taken, self.asked_s, self.taken_s, self.lane_s = 0, 0.0, 0.0, 0.0
        if job.changes:
            self.agenda.at(job.changes_s, self._change)

    def run(self) -> None:
        self._go_on()
        while len(self.ends_s) < self.job.batches:
            if not self.agenda.step():
                raise RuntimeError(f"{self.job.seed}: batch {self.taken} never becomes ready")

    def _change(self) -> None:
        self.free |= set(range(self.workers, self.job.workers_later))
        self.workers = self.job.workers_later
        self._go_on()

    def _go_on(self) -> None:
        """Let everyone begin who is free."""
        while len(self.made_s) < self.job.batches and self.division.is_ready(len(self.made_s)):
            self.made_s.append(self.agenda.now_s)
        if not self.card.does("train") and self.taken < len(self.made_s):
            self._train()
        for worker in sorted(self.free):
            work = self.division.for_worker(worker, staying=worker < self.workers)
            if work is not None:
                self.free.discard(worker)
                self.agenda.after(work.seconds, self._worker_done, worker, work)
        if not self.card.does("lane") and not (self.takes_turns and self.card.does("train")):
            begun_s, given = self.agenda.now_s, self.division.for_gpu()
            if given is not None:
                self.card.begin("lane", given.seconds, lambda: self._lane_done(given, begun_s))

    def _train(self) -> None:
        now_s = self.agenda.now_s
        seen = Taken(now_s, now_s - self.asked_s, now_s - self.taken_s, self.lane_s)
        self.taken, self.taken_s, self.lane_s = self.taken + 1, now_s, 0.0
        self.card.begin("train", self.job.train_s, self._trained)
        self.division.on_taken(seen)

    def _trained(self) -> None:
        self.asked_s = self.agenda.now_s
        self.ends_s.append(self.asked_s)
        self._go_on()

    def _worker_done(self, worker: int, work: TimedWork) -> None:
        self.free.add(worker)
        self.division.done(work, Side.WORKERS, worker, self.workers)
        self._go_on()

    def _lane_done(self, work: TimedWork, begun_s: float) -> None:
        self.lane_s += self.agenda.now_s - begun_s
        self.division.done(work, Side.GPU, -1, self.workers)
        self._go_on()
