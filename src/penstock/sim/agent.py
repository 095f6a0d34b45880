"""The simulator's driver: performs the core's actions, as `agent/loop.py` does, and objects to illegal ones."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.core import events as ev
from penstock.core.core import CoreConfig, new_state, on_event
from penstock.core.events import Action, Event, Kind
from penstock.core.pools import PoolConfig
from penstock.epochs.feed import Ask
from penstock.policy.tasks import deepest
from penstock.sim.agenda import Link
from penstock.sim.memory import FakeMemory, Shape, Violation, room_beside
from penstock.sim.scenario import FakePool, Scenario
from penstock.sim.worker import FakeWorker, PlaceMessage, RestartMessage, TaskMessage
from penstock.wire.extents import ALIGN, aligned, lane_offsets

TICK_S, SLOW_TICK_S = 0.05, 0.5
DUMP_WAIT_S = 0.3
SPARES_FAIL = 0.3
"""Share of spare workers that are not started, and of others whose init fails."""


class Lost(NamedTuple):
    """A worker's last message: its board when it ended."""

    task: int
    ordinal: int


class Delivery(NamedTuple):
    """A batch, or the error in its place, in transit to the training process."""

    seq: int
    offset: int = -1
    layout: Shape | None = None
    dropped: tuple[int, ...] = ()
    error: ev.Error | None = None
    nbytes: int = 0


class Gone(NamedTuple):
    """The agent has ended."""


@dataclass(slots=True, eq=False)
class FakeHandle:
    worker: FakeWorker
    to_worker: Link
    from_worker: Link
    lost: bool = False
    hung: bool = False
    unreachable: bool = False
    """It was given up because its link was silent."""
    beat: int = 0
    """The worker's newest beat known to the agent."""
    issued: dict[int, ev.Task] = field(default_factory=dict)
    offered: dict[int, int] = field(default_factory=dict)
    """Results that wait for memory, and the bytes they need."""


class FakeAgent:
    def __init__(self, world: Any, workers: int, epoch: int) -> None:
        """`world`: the `World`, whose module imports this one."""
        scenario: Scenario = world.scenario
        self.world, self.scenario, self.epoch = world, scenario, epoch
        config = CoreConfig(
            workers=workers,
            kind=scenario.kind,
            task_size=scenario.task_size,
            in_order=scenario.in_order,
            limit_bytes=scenario.limit_bytes,
            base=ALIGN,
            hang_s=scenario.hang_s,
            poison_raises=not scenario.skips,
            beside=tuple(
                PoolConfig(pool.workers, queue_bytes=pool.queue_bytes, whole=pool.whole)
                for pool in scenario.pools
            ),
        )
        self.pools = (FakePool(workers), *scenario.pools)
        self.state = new_state(config)
        self.memory = FakeMemory(config.base + config.limit_bytes)
        self.to_trainer = Link(world.agenda, world.delay, world.tell_trainer)
        self.hands: dict[int, FakeHandle] = {}
        self.fed: dict[int, Ask] = {}
        self.away: dict[int, set[int]] = {}
        """Samples whose bytes are under way, by batch."""
        self.layouts: list[Shape] = []
        self.events: deque[Event] = deque()
        self.alive = True
        self.deaths: Counter[tuple[int, int]] = Counter()
        """How often a worker was lost on a sample (seq, ordinal), by our own count."""
        self.barren: Counter[int] = Counter()
        """How often a worker was lost since it last finished something."""
        self.last_task = 0
        for worker in self.state.workers:
            self._start(worker.id)
        world.agenda.after(TICK_S, self._tick)

    # ---- the core

    def happen(self, event: Event) -> None:
        """Tell the core and perform its actions. An event caused by an action waits until all are performed."""
        self.events.append(event)
        if len(self.events) > 1:
            return
        while self.events:
            event = self.events[0]
            beside = self._beside(event.seq) if isinstance(event, ev.Stuck) else []
            actions = on_event(self.state, event)
            self.world.witness(self.state, event, actions)
            for action in actions:
                self.perform(action, beside)
            self.events.popleft()

    def perform(self, action: Action, beside: list[tuple[int, int]]) -> None:
        match action:
            case ev.Assign(worker, task):
                self._assign(self._living(worker, action), task)
            case ev.PlaceResult(worker, task_id, offset, layout):
                self._place(self._living(worker, action), task_id, offset, layout)
            case ev.Cancel(worker, task_id):
                hand = self._living(worker, action)
                if task_id not in hand.issued:
                    raise Violation(f"{action}: the worker does not have this task")
                hand.to_worker.send(action)
            case ev.Deliver():
                self._deliver(action)
            case ev.DeliverError(seq, error):
                self._check_error(seq, self.fed.pop(seq), error, beside)
                self.to_trainer.send(Delivery(seq, error=error))
            case ev.DeliverEnd():
                self.fed.clear()
                self.to_trainer.send(action)
            case ev.Start(worker):
                if worker in self.hands and not self.hands[worker].lost:
                    raise Violation(f"{action}: it has not been lost")
                if self.state.workers[worker].surplus:
                    raise Violation(f"{action}: it is one too many")
                self._start(worker)
            case ev.Stop(worker):
                self._living(worker, action).to_worker.send(action)
            case ev.Kill(worker, _):
                hand = self._living(worker, action)
                hand.hung, hand.unreachable = True, hand.from_worker.silent
                self.world.agenda.after(DUMP_WAIT_S, self.world.kill, hand.worker)
            case ev.Grow(start, end):
                self._grow(start, end)
            case ev.Shrink(start, end):
                self.memory.give_up(start, end)
            case ev.Starved():
                self.to_trainer.send(action)

    def _living(self, worker: int, action: Action) -> FakeHandle:
        hand = self.hands[worker]
        if hand.lost:
            raise Violation(f"{action}: the worker is known to be lost")
        return hand

    def _assign(self, hand: FakeHandle, task: ev.Task) -> None:
        if task.id <= self.last_task:
            raise Violation(f"task id {task.id} is used twice")
        self.last_task = task.id
        pool = self.state.workers[hand.worker.id].pool
        stalled = hand.issued and hand.issued.keys() == hand.offered.keys()
        if self.state.workers[hand.worker.id].rests and not stalled:
            raise Violation(f"{task} is given to worker {hand.worker.id}, whose core is lent")
        if hand.issued.keys() != hand.offered.keys():
            if len(hand.issued) >= deepest(pool.latency_s):
                raise Violation(f"{task} is given to worker {hand.worker.id}, which has {list(hand.issued)}")
            if 0 < pool.queue_bytes < pool.owed_bytes and any(
                issued.nbytes
                for worker in pool.members
                if worker.id != hand.worker.id
                for issued in worker.tasks.values()
            ):
                raise Violation(f"{task} is given to pool {pool.number}, which owes {pool.owed_bytes} bytes")
        hand.issued[task.id] = task
        if self.away.get(task.seq, set()) & set(range(task.start, task.start + task.samples)):
            raise Violation(f"{task} is given to a worker before its bytes are here")
        ask, layout = self.fed[task.seq], self._shape(task.layout)
        if task.offset >= 0:
            assert layout is not None
            nbytes = lane_offsets(layout.items, ask.size)[1]
            self._claim(hand, task, (task.seq, task.offset, task.layout), task.offset, nbytes)
        for part in task.parts if hand.worker.alive else ():
            who = ("reads", hand.worker, task.id)
            self.memory.claim(who, ("part", task.seq, part), part, self.memory.result_at(part).nbytes)
        hand.to_worker.send(TaskMessage(task, ask, layout))

    def _place(self, hand: FakeHandle, task_id: int, offset: int, layout: int) -> None:
        if task_id not in hand.offered:
            raise Violation(
                f"worker {hand.worker.id} is given memory for task {task_id}, which has not asked"
            )
        need, task, shape = hand.offered.pop(task_id), hand.issued[task_id], self._shape(layout)
        if task.kind is Kind.SLOTS:
            assert shape is not None
            need = lane_offsets(shape.items, self.fed[task.seq].size)[1]
            self._claim(hand, task, (task.seq, offset, layout), offset, need)
        else:
            self._claim(hand, task, ("own", task.seq, task_id), offset, need)
        hand.to_worker.send(PlaceMessage(task_id, offset, shape))

    def _claim(self, hand: FakeHandle, task: ev.Task, slab: Any, offset: int, nbytes: int) -> None:
        if hand.worker.alive:
            self.memory.claim(("writes", hand.worker, task.id), slab, offset, nbytes)

    def _deliver(self, action: ev.Deliver) -> None:
        seq, memory = action.seq, self.memory
        if seq not in self.fed:
            raise Violation(f"batch {seq} is delivered twice, or was never asked for")
        ask, shape, user = self.fed.pop(seq), self._shape(action.layout), ("user", seq)
        if action.nbytes and (late := memory.writers(action.offset)):
            raise Violation(f"{action} while {late} may still write it")
        if shape is not None:
            nbytes = lane_offsets(shape.items, ask.size)[1]
        else:
            result = memory.result_at(action.offset)
            nbytes = result.nbytes
            for part in result.refers:
                memory.claim(user, ("part", seq, part), part, memory.result_at(part).nbytes)
        # A batch that late tasks may still write is copied: it stays theirs, beside the user who reads it once.
        slab = user if action.nbytes else (seq, action.offset, action.layout)
        memory.claim(user, slab, action.offset, nbytes)
        if action.nbytes and action.nbytes != sum(claim.end - claim.start for claim in memory.claims[user]):
            raise Violation(f"{action} keeps {memory.claims[user]} in use")
        self.to_trainer.send(Delivery(seq, action.offset, shape, action.dropped, None, action.nbytes))

    def _check_error(self, seq: int, ask: Ask, error: ev.Error, beside: list[tuple[int, int]]) -> None:
        """Check the engine's own errors against our own count."""
        if isinstance(error, bytes):
            return
        if error.kind in ("died", "hung"):
            needed = 2 if error.kind == "hung" else 3
            if self.deaths[seq, error.ordinal] < needed:
                raise Violation(
                    f"{error} of {ask}, which took down {self.deaths[seq, error.ordinal]} workers"
                )
        if error.kind == "start" and max(self.barren[one.id] for one in self.state.local.members) <= 3:
            raise Violation(f"{error}, but {self.barren}")
        if error.kind == "memory" and not error.cause:
            taken = [
                (claim.start, claim.end)
                for who, claims in self.memory.claims.items()
                if isinstance(who, tuple) and who[0] == "user"
                for claim in claims
            ]
            holes = self.state.memory.holes if self.state.refused else []
            room = room_beside([*taken, *beside, *holes], self.state.config.base, self.state.ceiling)
            if room >= aligned(error.need_bytes):
                raise Violation(f"{error} of {ask}, although {room} bytes can be had")

    def _beside(self, seq: int) -> list[tuple[int, int]]:
        """Return what a batch must fit beside, apart from the user's memory: its own parts, and parts held by collates."""
        state = self.state
        slabs = [
            slab for worker in state.workers for issued in worker.holding.values() for slab in issued.held
        ]
        for batch in state.batches.values():
            # Streamed batches stay: they had their memory before the arena stopped growing.
            if batch.seq == seq or (batch.kind is Kind.STREAM and state.refused):
                slabs += batch.slabs()
        return [(slab.offset, slab.offset + aligned(slab.nbytes)) for slab in slabs]

    def _grow(self, start: int, end: int) -> None:
        if self.state.memory.used + self.state.memory.free + end - start <= self.scenario.denied_bytes:
            self.happen(ev.Grown(start, end))
            return
        if not self.state.memory.used:
            self.happen(ev.InitFailed(-1, ev.Trouble("memory", cause="denied")))
        self.happen(ev.GrowDenied("denied"))

    def _shape(self, layout: int) -> Shape | None:
        return self.layouts[layout] if layout >= 0 else None

    def _number(self, shape: Shape) -> int:
        if shape not in self.layouts:
            self.layouts.append(shape)
            self.happen(ev.LayoutKnown(len(self.layouts) - 1, shape.items))
        return self.layouts.index(shape)

    def _tick(self) -> None:
        if not self.alive:
            return
        for hand in self.hands.values():
            if not hand.from_worker.silent:
                hand.beat = hand.worker.beat
        hands = [self.hands.get(worker.id) for worker in self.state.workers]
        beats = tuple(0 if hand is None else hand.beat for hand in hands)
        self.happen(ev.Tick(self.world.agenda.now_s, beats))
        busy = any(worker.tasks for worker in self.state.workers)
        self.world.agenda.after(TICK_S if busy else SLOW_TICK_S, self._tick)

    # ---- workers

    def _start(self, worker: int) -> None:
        world, pool = self.world, self.pools[self.state.workers[worker].pool.number]
        is_spare = self.state.workers[worker].is_spare
        if is_spare and world.rng.random() < SPARES_FAIL:
            self.happen(ev.NotStarted(worker, "denied"))
            return

        def delay() -> float:
            way_s = 0.0
            if pool.latency_s:
                way_s = pool.latency_s / 2 * (1 + pool.jitter * (2 * world.rng.random() - 1))
            near_s: float = world.delay()
            return near_s + way_s

        from_worker = Link(world.agenda, delay, lambda said: self._hear(hand, *said))

        def send(event: Event, layout: Shape | None) -> None:
            from_worker.send((event, layout))

        fake = FakeWorker(self.scenario, worker, self.memory, send, self.epoch, pool)
        fake.init_fails |= is_spare and world.rng.random() < SPARES_FAIL
        to_worker = Link(world.agenda, delay, lambda message: world.wake(fake, message))
        hand = self.hands[worker] = FakeHandle(fake, to_worker, from_worker)
        world.enter(fake)
        self.happen(ev.WorkerStarted(worker, world.agenda.now_s))

    def lose(self, worker: FakeWorker) -> None:
        """End a worker: it touches nothing any more, and the agent will notice."""
        hand = self.hands[worker.id]
        for task in hand.issued:
            self.memory.unclaim(("writes", worker, task))
        for task in [*hand.issued, *worker.held]:
            self.memory.unclaim(("reads", worker, task))
        last = (Lost(worker.task, worker.ordinal), None)
        if (
            hand.unreachable or hand.from_worker.silent
        ):  # so its board, and which sample to blame, are unknown
            hand.from_worker.reset()
            last = (Lost(-1, -1), None)
        self.world.agenda.after(self.scenario.notice_s, hand.from_worker.send, last)

    def _hear(self, hand: FakeHandle, event: Any, layout: Shape | None) -> None:
        if not self.alive:
            return
        if isinstance(event, Lost):
            self._on_lost(hand, event)
            return
        now_s = self.world.agenda.now_s
        match event:
            case ev.Prepared():
                hand.offered[event.task] = event.nbytes
            case ev.Done() | ev.Failed():
                self.barren[hand.worker.id] = 0
        if isinstance(event, (ev.Done, ev.WorkerUp)):
            event = event._replace(at_s=now_s)
        if layout is not None:
            event = event._replace(layout=self._number(layout))
        if not isinstance(event, (ev.Prepared, ev.WorkerUp, ev.InitFailed)):
            hand.issued.pop(event.task, None)
            hand.offered.pop(event.task, None)
        self.happen(event)

    def _on_lost(self, hand: FakeHandle, last: Lost) -> None:
        hand.lost = True
        self.barren[hand.worker.id] += 1
        task = hand.issued.get(last.task)
        if task is not None:
            self.deaths[task.seq, last.ordinal if last.ordinal >= 0 else task.start] += 1
        hand.issued.clear()
        self.happen(ev.WorkerLost(hand.worker.id, last.task, last.ordinal, "was killed", hand.hung))

    # ---- bytes

    def _fetch(self, ask: Ask) -> None:
        """Let a batch's bytes arrive, a few samples at a time, in any order."""
        if not self.scenario.fetch_s:
            return
        rng, start = self.world.rng, 0
        self.away[ask.first] = set(range(ask.size))
        while start < ask.size:
            count = min(ask.size - start, rng.randint(1, 4))
            delay_s = self.scenario.fetch_s * rng.expovariate(1.0)
            self.world.agenda.after(delay_s, self._bytes_here, ask.first, start, count, self.away[ask.first])
            start += count

    def _bytes_here(self, seq: int, start: int, count: int, away: set[int]) -> None:
        if self.alive and self.away.get(seq) is away:
            away.difference_update(range(start, start + count))
            self.happen(ev.BytesHere(seq, start, count))

    # ---- the training process

    def on_trainer(self, message: Any) -> None:
        match message:
            case Ask():
                self.fed[message.first] = message
                at_s = self.world.agenda.now_s if self.scenario.pools else 0.0
                self.happen(ev.Feed(message.first, message.size, at_s, self.scenario.fetch_s > 0))
                self._fetch(message)
                if message.first not in self.state.batches and self.state.kind is Kind.STREAM:
                    self.fed.pop(message.first, None)
            case RestartMessage(epoch):
                self.epoch = epoch
                self.away.clear()
                self.happen(ev.Abort())
                self.fed.clear()
                for hand in self.hands.values():
                    hand.to_worker.send(RestartMessage(epoch))
            case ev.Released(seq):
                self.memory.unclaim(("user", seq))
                self.happen(message)
            case _:
                self.happen(message)
