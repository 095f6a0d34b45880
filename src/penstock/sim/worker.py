"""A simulated worker: what `worker/loop.py` does, without user code and without time of its own.

Its life is a generator. It yields the duration of the next step, IDLE if only a message can wake it, DIES or HANGS if the
sample does that to it. The driver decides when, and whether, it goes on. The order of steps is the real worker's: read all
messages, then run one task; drop a cancelled task if it has not begun or waits for memory; keep and announce a result
without a place; write sample by sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

from penstock.core import events as ev
from penstock.core.events import Event, Kind, Task
from penstock.epochs.feed import Ask
from penstock.sim.memory import CELL, FakeMemory, FakeResult, Shape, Violation
from penstock.sim.scenario import FakePool, FakeSample, Scenario

IDLE, DIES, HANGS = -1.0, -2.0, -3.0

Send = Callable[[Event, Shape | None], None]
"""To the agent: an event, and the layout it describes."""


class TaskMessage(NamedTuple):
    task: Task
    ask: Ask
    layout: Shape | None


class PlaceMessage(NamedTuple):
    task: int
    offset: int
    layout: Shape | None


class RestartMessage(NamedTuple):
    epoch: int


class Failure(Exception):
    """User code raised."""

    def __init__(self, ordinal: int) -> None:
        super().__init__()
        self.ordinal = ordinal


Token = tuple[int, int, int]
"""Epoch, batch and ordinal of a sample; for a stream's batch: epoch, worker and number."""


class FakePending(NamedTuple):
    job: TaskMessage
    samples: list[tuple[int, FakeSample]]
    result: FakeResult | None
    dropped: tuple[int, ...]


class FakeWorker:
    """Worker `id`. The agent reads its board (task, ordinal, beat) when it is gone or silent."""

    def __init__(
        self, scenario: Scenario, worker: int, memory: FakeMemory, send: Send, epoch: int, pool: FakePool
    ) -> None:
        self.pool, self.worked_s = pool, 0.0
        self.scenario, self.id, self.memory, self.send = scenario, worker, memory, send
        self.inbox: deque[Any] = deque()
        self.jobs: deque[TaskMessage] = deque()
        self.pending: dict[int, FakePending] = {}
        self.held: dict[int, int] = {}
        """Collates whose parts are still referred to, and for how many more tasks."""
        self.running, self.alive, self.idle = True, True, False
        self.frozen, self.missed = False, False
        self.task = self.ordinal = -1
        self.beat = 0
        self.epoch, self.yielded = epoch, 0
        self.init_fails = scenario.init_fails and worker == 0
        self.dropped: list[int] = []
        self.life = self._live()

    def _live(self) -> Iterator[float]:
        yield self.scenario.start_s * (0.5 + self.scenario.chance(20, self.id))
        if self.init_fails:
            self.send(ev.InitFailed(self.id, b"init"), None)
        else:
            self.send(ev.WorkerUp(self.id, 0.0), None)
        while self.running:
            if not self.jobs and not self.inbox:
                yield IDLE
            while self.inbox:
                yield from self._on_message(self.inbox.popleft())
            if self.jobs:
                yield from self._run(self.jobs.popleft())
                self._let_go()

    def _on_message(self, message: Any) -> Iterator[float]:
        match message:
            case TaskMessage():
                self.jobs.append(message)
            case PlaceMessage(task, offset, layout):
                if task in self.pending:
                    yield from self._write(self.pending.pop(task), offset, layout)
            case ev.Cancel(_, task):
                self._cancel(task)
            case RestartMessage(epoch):
                if self.jobs:
                    raise Violation(f"worker {self.id} is to start over with {list(self.jobs)} not cancelled")
                self.epoch, self.yielded = epoch, 0
            case ev.Stop():
                self.running = False

    def _cancel(self, task: int) -> None:
        queued = next((job for job in self.jobs if job.task.id == task), None)
        if queued is not None:
            self.jobs.remove(queued)
            self._gone(ev.Dropped(self.id, task))
        elif self.pending.pop(task, None) is not None:
            if task in self.held:
                self._gone(ev.Done(self.id, task, 0.0, 0.0, holds=True))
            else:
                self._gone(ev.Dropped(self.id, task))

    # ---- tasks

    def _run(self, job: TaskMessage) -> Iterator[float]:
        if self.scenario.chance(22, job.task.id) < self.pool.dies:
            yield DIES
        if self.scenario.chance(23, job.task.id) < self.pool.unreached and job.task.kind is not Kind.COLLATE:
            self._gone(ev.Unreached(self.id, job.task.id))
            return
        self.ordinal, self.task, self.worked_s = -1, job.task.id, 0.0
        self.beat += 1
        self.dropped = []
        step = {Kind.SLOTS: self._slots, Kind.PARTS: self._parts, Kind.COLLATE: self._collate}
        try:
            yield from step.get(job.task.kind, self._stream if job.task.kind is Kind.STREAM else self._whole)(
                job
            )
        except Failure as failure:
            name = repr((job.ask.epoch, job.ask.batch, failure.ordinal))
            self._gone(ev.Failed(self.id, job.task.id, failure.ordinal, name.encode()))
        self.task = -1

    def _samples(self, job: TaskMessage) -> Iterator[float | tuple[int, FakeSample]]:
        """Prepare the task's samples one by one: yield durations, and (ordinal, sample) of those prepared."""
        task, ask = job.task, job.ask
        for ordinal in range(task.start, task.start + task.samples):
            self.ordinal = ordinal
            self.beat += 1
            sample = self.scenario.sample(ask.epoch, ask.batch, ordinal)
            poisoned = task.poisoned and self.scenario.skips
            if not poisoned:
                self.worked_s += sample.took_s * self.pool.slower
                yield sample.took_s * self.pool.slower
            if sample.fate in ("kills", "hangs") and not poisoned:
                yield DIES if sample.fate == "kills" else HANGS
            if sample.fate == "fails" and not self.scenario.skips:
                raise Failure(ordinal)
            if sample.fate == "fails" or poisoned:
                self.dropped.append(ordinal)
            else:
                yield ordinal, sample

    def _collect(self, job: TaskMessage) -> Generator[float, None, list[tuple[int, FakeSample]]]:
        found: list[tuple[int, FakeSample]] = []
        for made in self._samples(job):
            if isinstance(made, tuple):
                found.append(made)
            else:
                yield made
        return found

    def _slots(self, job: TaskMessage) -> Iterator[float]:
        task, ask, layout = job.task, job.ask, job.layout
        if task.offset < 0:
            yield from self._unplaced_slots(job)
            return
        assert layout is not None
        for made in self._samples(job):
            if not isinstance(made, tuple):
                yield made
                continue
            ordinal, sample = made
            if not layout.holds(sample.shape):
                self._mismatch(job, layout, sample.shape)
                return
            token = (ask.epoch, ask.batch, ordinal)
            self.memory.write_slot(task.offset, layout, ask.size, ordinal, token)
        self._done(job)

    def _unplaced_slots(self, job: TaskMessage) -> Iterator[float]:
        samples = yield from self._collect(job)
        if not samples:
            self._done(job)
        elif samples[0][1].shape is None:
            self._gone(ev.Refused(self.id, job.task.id))
        else:
            self.pending[job.task.id] = FakePending(job, samples, None, tuple(self.dropped))
            self.send(ev.Prepared(self.id, job.task.id, 0), samples[0][1].shape)

    def _parts(self, job: TaskMessage) -> Iterator[float]:
        samples = yield from self._collect(job)
        if any(sample.shape is None for _, sample in samples):
            self._gone(ev.Refused(self.id, job.task.id))
        else:
            self._offer(job, tokens_of(job, samples))

    def _whole(self, job: TaskMessage) -> Iterator[float]:
        samples = yield from self._collect(job)
        if not samples or self.scenario.collate_fate(job.ask.epoch, job.ask.batch) == "fails":
            raise Failure(0)
        self._offer(job, tokens_of(job, samples))

    def _collate(self, job: TaskMessage) -> Iterator[float]:
        before = [self.memory.read_result(offset) for offset in job.task.parts]
        yield self.scenario.sample_s * self.pool.slower
        tokens = tuple(token for offset in job.task.parts for token in self.memory.read_result(offset))
        if tokens != tuple(token for part in before for token in part):
            raise Violation(f"the parts of {job} changed while they were collated")
        if self.scenario.collate_fate(job.ask.epoch, job.ask.batch) == "fails":
            raise Failure(0)
        if self.scenario.chance(21, job.task.id) < self.scenario.collate_keeps:
            self.held[job.task.id] = 1 + job.task.id % 3
        if self.scenario.refers:
            self._offer(job, (), job.task.parts)
        else:
            self._offer(job, tokens)

    def _stream(self, job: TaskMessage) -> Iterator[float]:
        self.ordinal = 0
        self.beat += 1
        yield self.scenario.sample_s
        if self.yielded >= self.scenario.stream_length(self.epoch, self.id):
            self._gone(ev.Exhausted(self.id, job.task.id))
            return
        number, self.yielded = self.yielded, self.yielded + 1
        if self.scenario.collate_fate(1000 + self.id, number) == "fails":
            self._gone(ev.Failed(self.id, job.task.id, 0, repr((self.epoch, self.id, number)).encode()))
        else:
            self._offer(job, ((self.epoch, self.id, number),))

    # ---- results

    def _offer(self, job: TaskMessage, tokens: tuple[Token, ...], refers: tuple[int, ...] = ()) -> None:
        result = FakeResult(CELL * (1 + self.scenario.cells * len(tokens)), tokens, refers)
        self.pending[job.task.id] = FakePending(job, [], result, tuple(self.dropped))
        self.send(ev.Prepared(self.id, job.task.id, result.nbytes), None)

    def _write(self, pending: FakePending, offset: int, layout: Shape | None) -> Iterator[float]:
        job, ask = pending.job, pending.job.ask
        write_s = self.scenario.sample_s / 10 * self.pool.slower
        if pending.result is not None:
            self.memory.write_result(offset, pending.result, 0.5)
            yield write_s
            self.memory.write_result(offset, pending.result)
        for ordinal, sample in pending.samples:
            assert layout is not None
            if not layout.holds(sample.shape):
                self._mismatch(job, layout, sample.shape)
                return
            yield write_s
            self.memory.write_slot(offset, layout, ask.size, ordinal, (ask.epoch, ask.batch, ordinal))
        self.dropped = list(pending.dropped)
        self._done(job, refers=bool(pending.result and pending.result.refers))

    def _done(self, job: TaskMessage, *, refers: bool = False) -> None:
        took_s = self.worked_s if self.scenario.pools else self.scenario.sample_s * job.task.samples
        holds = job.task.id in self.held
        self._gone(ev.Done(self.id, job.task.id, took_s, 0.0, holds, tuple(self.dropped), refers))

    def _mismatch(self, job: TaskMessage, layout: Shape, sample: Shape | None) -> None:
        if sample is None:
            self._gone(ev.Refused(self.id, job.task.id))
        else:
            self._gone(ev.Misfit(self.id, job.task.id, -1), layout.widened(sample))

    def _let_go(self) -> None:
        for task in [task for task in self.held if task not in self.pending]:
            self.held[task] -= 1
            if not self.held[task]:
                del self.held[task]
                self._gone(ev.Dropped(self.id, task))

    def _gone(self, event: Any, layout: Shape | None = None) -> None:
        """Report that a task is over: it touches no more memory, except parts still referred to."""
        self.memory.unclaim(("writes", self, event.task))
        if not getattr(event, "holds", False):
            self.memory.unclaim(("reads", self, event.task))
        self.send(event, layout)


def tokens_of(job: TaskMessage, samples: list[tuple[int, FakeSample]]) -> tuple[Token, ...]:
    return tuple((job.ask.epoch, job.ask.batch, ordinal) for ordinal, _ in samples)
