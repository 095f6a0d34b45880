"""One simulated run: the core under a virtual clock, fake workers, a fake training process, and faults at any step.

Promises checked here: every batch exactly once and in order, whatever dies; every sample in its slot, as long as the
user holds it; no memory with two owners; every error true; no illegal action; everything in flight bounded; every run
ends; nothing left behind.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

from penstock.core import events as ev
from penstock.core.events import UNBOUNDED, Action, Event, Kind
from penstock.core.state import State
from penstock.epochs.feed import Ask
from penstock.sim.agenda import Agenda, Link
from penstock.sim.agent import FakeAgent, Gone
from penstock.sim.audit import audit
from penstock.sim.memory import Violation
from penstock.sim.scenario import Fault, Scenario
from penstock.sim.trainer import FakeTrainer
from penstock.sim.worker import DIES, HANGS, IDLE, FakeWorker

PATIENCE_S = 100.0
"""Virtual seconds without a batch after which none is expected any more; times the slowest pool's factor, whose one task may hold one up."""
MAX_STEPS = 200_000
"""Steps after which a run counts as an endless loop."""
SHARES = (None, 0.0, 0.1, 0.5, 0.9, 1.0, 1.0)
"""Shares of a pool that a `share` fault sets."""
DRAIN_S = 60.0
"""Virtual seconds in which a sample in work at the end is done; times the slowest pool's factor."""
HISTORY = 200
"""Newest events kept, to explain a violation."""


class World:
    def __init__(
        self,
        scenario: Scenario,
        *,
        audits: bool = False,
        remembers: bool = False,
        agent_type: type[FakeAgent] = FakeAgent,
    ) -> None:
        self.scenario, self.audits, self.agent_type = scenario, audits, agent_type
        self.rng = random.Random(scenario.seed)
        self.agenda = Agenda()
        self.history: deque[tuple[float, Event, list[Action]]] = deque(maxlen=None if remembers else HISTORY)
        self.events = 0
        self.log: list[tuple[int, int]] = []
        """Epoch and number of every batch taken by the training process, errors included."""
        self.streamed: list[Any] = []
        self.errors = 0
        """Errors that the training process got in place of a batch."""
        self.progress_s = 0.0
        self.checkpoint: tuple[int, dict[str, Any] | None] = (0, None)
        self.struck: Counter[str] = Counter()
        self.agent = agent_type(self, scenario.workers, 0)
        self.trainer = FakeTrainer(self, None)
        self.to_agent = Link(self.agenda, self.delay, self._agent_reads)
        self.enter(self.trainer)

    def run(self) -> World:
        """Play to the end; raise Violation if a promise is broken."""
        faults = deque(self.scenario.faults)
        patience_s = PATIENCE_S * self._slowest()
        while not self.trainer.finished:
            while faults and faults[0].step <= self.agenda.steps:
                self.strike(faults.popleft())
            self.agenda.step()
            if self.agenda.now_s - self.progress_s > patience_s or self.agenda.steps > MAX_STEPS:
                raise Violation(f"no batch for {patience_s} s: {self.trainer.open} are open")
        self._drain()
        self._judge_end()
        return self

    def newest(self, count: int = 20) -> list[str]:
        """Return the core's newest events and actions, as lines."""
        lines = []
        for time_s, event, actions in list(self.history)[-count:]:
            lines.append(f"{time_s:.4f} {event}")
            lines += [f"    {action}" for action in actions]
        return lines

    # ---- actors

    def enter(self, actor: Any) -> None:
        self.agenda.after(0.0, self._advance, actor)

    def _advance(self, actor: Any) -> None:
        if not actor.alive:
            return
        if actor.frozen:
            actor.missed = True
            return
        delay = next(actor.life, DIES)
        if delay == IDLE:
            actor.idle = True
        elif delay == DIES:
            self.kill(actor)
        elif delay != HANGS:
            self.agenda.after(delay, self._advance, actor)

    def wake(self, actor: Any, message: Any) -> None:
        actor.inbox.append(message)
        if actor.idle:
            actor.idle = False
            self._advance(actor)

    def delay(self) -> float:
        return self.scenario.delay_s * (0.2 + self.rng.random() * 1.6)

    def tell_trainer(self, message: Any) -> None:
        self.wake(self.trainer, message)

    def tell_agent(self, message: Any) -> None:
        self.to_agent.send((self.agent, message))

    def _agent_reads(self, message: tuple[FakeAgent, Any]) -> None:
        agent, content = message
        if agent.alive:
            agent.on_trainer(content)

    # ---- faults

    def strike(self, fault: Fault) -> None:
        """Let a fault happen now."""
        if not self.agent.alive:
            return
        living = [hand.worker for hand in self.agent.hands.values() if hand.worker.alive]
        self.struck[fault.what] += 1
        match fault.what:
            case "agent":
                self._kill_agent()
                self.agent.to_trainer.send(Gone())
            case "restore":
                self._restore(1 + fault.which % 8)
            case "kill" if living:
                self.kill(living[fault.which % len(living)])
            case "freeze" if living:
                worker = living[fault.which % len(living)]
                worker.frozen = True
                self.agenda.after(self.rng.random() * 5, self._thaw, worker)
            case "retire":
                self.agent.happen(ev.Retire(fault.which % len(self.agent.hands)))
            case "resize" if self.scenario.kind is not Kind.STREAM:
                pool = fault.step % len(self.agent.pools)
                workers = fault.which % 5 if pool else 1 + fault.which % 8
                self.agent.happen(ev.ResizePool(workers, pool))
            case "lend" if self.scenario.kind is not Kind.STREAM:
                self._lend(fault.which)
            case "borrow" if self.scenario.kind is not Kind.STREAM:
                self._borrow(fault.which)
            case "share" if self.scenario.pools and self.scenario.kind is not Kind.STREAM:
                number = 1 + fault.which % len(self.scenario.pools)
                workers = self.agent.state.pools[number].size if fault.which % 3 else fault.which % 7
                share = SHARES[fault.step % len(SHARES)]
                self.agent.happen(ev.Offload(workers, share, number))
            case "late" | "partition" | "outage" if self.scenario.pools:
                self._silence(fault)

    def _borrow(self, which: int) -> None:
        """Start spare workers, of which some fail."""
        agent, own = self.agent, self.agent.state.local.own
        own = min(own, agent.state.local.size)
        agent.happen(ev.ResizePool(max(own, min(own + 1 + which % 3, agent.state.local.most))))
        agent.happen(ev.Allow(UNBOUNDED, own))

    def _lend(self, which: int) -> None:
        """Allow some workers only, more than there are, or none; all again after a while."""
        agent = self.agent
        agent.happen(ev.Allow(which % (agent.state.local.size + 2), agent.state.local.own))
        self.agenda.after(10.0 * self.rng.random() ** 3, self._give_back, agent)

    def _give_back(self, agent: FakeAgent) -> None:
        if agent.alive:
            agent.happen(ev.Allow(UNBOUNDED, agent.state.local.own))

    def _silence(self, fault: Fault) -> None:
        """Hold back all messages of a pool's workers (late: of one of them) until an end, at which they are lost (outage)."""
        pool = self.agent.state.pools[1 + fault.which % len(self.scenario.pools)]
        hands = [self.agent.hands[one.id] for one in pool.members if one.id in self.agent.hands]
        hands = [hand for hand in hands if hand.worker.alive]
        if fault.what == "late":
            hands = hands[fault.which % len(hands) :][:1] if hands else []
        until_s = self.agenda.now_s + (1.0 if fault.what == "late" else 10.0) * self.rng.random() ** 3
        for hand in hands:
            hand.to_worker.hold(until_s)
            hand.from_worker.hold(until_s)
            if fault.what == "outage":
                # Just before the links open: what is under way is lost.
                self.agenda.at(until_s - 1e-9, self.kill, hand.worker)

    def kill(self, worker: FakeWorker) -> None:
        if worker.alive:
            worker.alive = False
            self.agent.lose(worker)

    def _thaw(self, worker: FakeWorker) -> None:
        worker.frozen = False
        if worker.missed:
            worker.missed = False
            self._advance(worker)

    def _kill_agent(self) -> None:
        self.agent.alive = False
        for hand in self.agent.hands.values():
            hand.worker.alive = False
            hand.to_worker.cut = True

    def new_agent(self, workers: int, epoch: int) -> None:
        self.agent = self.agent_type(self, workers, epoch)

    def _restore(self, workers: int) -> None:
        """Kill the training process and resume from the last checkpoint, with another worker count."""
        self._kill_agent()
        self.agent.to_trainer.cut = True
        self.trainer.alive = False
        length, state = self.checkpoint
        del self.log[length:]
        self.new_agent(workers, state["epoch"] if state else 0)
        self.trainer = FakeTrainer(self, state)
        self.enter(self.trainer)

    # ---- promises

    def witness(self, state: State, event: Event, actions: list[Action]) -> None:
        self.events += 1
        self.history.append((self.agenda.now_s, event, actions))
        if self.audits:
            audit(state)

    def taken(self, epoch: int) -> int:
        return sum(1 for one, _ in self.log if one == epoch)

    def delivered(self, ask: Ask, trainer: FakeTrainer) -> None:
        self.progress_s = self.agenda.now_s
        self.log.append((ask.epoch, ask.batch))
        if self.scenario.chance(40, len(self.log)) < 0.3:
            self.checkpoint = (len(self.log), trainer.state())

    def judge_batch(self, ask: Ask, content: tuple[Any, ...], dropped: tuple[int, ...]) -> None:
        if self.scenario.kind is Kind.STREAM:
            self.streamed.extend(content)
            return
        wanted = tuple(
            (ask.epoch, ask.batch, ordinal) for ordinal in range(ask.size) if ordinal not in dropped
        )
        if content != wanted:
            raise Violation(f"{ask} holds {content}, not {wanted}")
        for ordinal in dropped:
            fine = self.scenario.sample(ask.epoch, ask.batch, ordinal).fate == "fine"
            if fine and self.agent.deaths[ask.first, ordinal] < 2:
                raise Violation(f"sample {ordinal} of {ask} was left out without a reason")

    def judge_error(self, ask: Ask, error: ev.Error) -> None:
        """Check a sample's error: it must be the batch's first failure. (The agent has checked the engine's own.)"""
        self.errors += 1
        scenario = self.scenario
        if not isinstance(error, bytes):
            if error.kind == "empty" and not scenario.skips:
                raise Violation(f"{error} of {ask}")
            if scenario.kind is Kind.STREAM:
                self.streamed.append(error)
            return
        if error == b"init":
            if not scenario.init_fails:
                raise Violation(f"{error!r} of {ask}")
            return
        if scenario.kind is Kind.STREAM:
            self.streamed.append(token_of(error))
            return
        fates = [scenario.sample(ask.epoch, ask.batch, ordinal).fate for ordinal in range(ask.size)]
        bad = [ordinal for ordinal, fate in enumerate(fates) if fate != "fine"]
        if scenario.skips or not bad:
            empty = not ask.size or len(bad) == ask.size
            if not empty and scenario.collate_fate(ask.epoch, ask.batch) != "fails":
                raise Violation(f"{error!r} of {ask}, which is fine")
        elif token_of(error) != (ask.epoch, ask.batch, bad[0]):
            raise Violation(f"{error!r} of {ask}, whose first bad sample is {bad[0]}")

    def _slowest(self) -> float:
        """Return how many times as long as a local worker the slowest one takes."""
        return max([1.0, *(pool.slower for pool in self.scenario.pools)])

    def _drain(self) -> None:
        """Let the agent and its workers finish, now that the training process has released everything."""
        end_s = self.agenda.now_s + DRAIN_S * self._slowest()
        while self.agenda.now_s < end_s and self.agenda.step():
            state = self.agent.state
            if (
                not any(worker.tasks for worker in state.workers)
                and not state.batches
                and not misstaffed(state)
            ):
                break

    def _judge_end(self) -> None:
        scenario = self.scenario
        if scenario.kind is Kind.STREAM:
            judge_streams(self)
        else:
            for epoch in range(scenario.epochs):
                judge_epoch(self, epoch)
        if self.struck["agent"] and self.trainer.agent.alive is False:
            return
        state = self.agent.state
        held = {
            slab for worker in state.workers for issued in worker.holding.values() for slab in issued.held
        }
        left = state.memory.used - sum(-(-slab.nbytes // 4096) * 4096 for slab in held)
        tasks = [task for worker in state.workers for task in worker.tasks]
        if left or state.batches or tasks:
            raise Violation(f"{left} bytes, batches {list(state.batches)} and tasks {tasks} are left")
        if wrong := misstaffed(state):
            raise Violation(
                f"workers {wrong} are there although {[pool.size for pool in state.pools]} are wanted, or are not"
            )


def misstaffed(state: State) -> list[int]:
    """Return workers that should have left and have not, or have left and should not."""
    if state.fatal is not None:
        return []
    return [worker.id for worker in state.workers if worker.away != worker.surplus]


def simulate(scenario: Scenario, *, audits: bool = False) -> World:
    """Play a scenario to its end; add the newest events to a violation."""
    world = World(scenario, audits=audits)
    try:
        return world.run()
    except Violation as violation:
        violation.add_note(f"{scenario}\n" + "\n".join(world.newest()))
        raise


def token_of(error: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in error.decode().strip("()").split(","))


def judge_epoch(world: World, epoch: int) -> None:
    """Check that an epoch's batches came once each and in order; only the first ones if the user broke it off."""
    scenario = world.scenario
    taken = [batch for one, batch in world.log if one == epoch]
    wanted = list(range(scenario.batches))
    if epoch in scenario.aborts:
        wanted = wanted[: scenario.break_at(epoch)]
    if scenario.in_order and taken != wanted:
        raise Violation(f"epoch {epoch} delivered {taken}, not {wanted}")
    if not scenario.in_order and (len(set(taken)) != len(taken) or len(taken) != len(wanted)):
        raise Violation(f"epoch {epoch} delivered {taken}, out of order, not {len(wanted)} different batches")


def judge_streams(world: World) -> None:
    """Check that each worker's batches came once and in its order; all of them, unless an error or a break cut them short."""
    scenario = world.scenario
    troubles = [token for token in world.streamed if isinstance(token, ev.Trouble)]
    tokens = [token for token in world.streamed if not isinstance(token, ev.Trouble)]
    for epoch in range(scenario.epochs):
        partial = bool(troubles) or epoch in scenario.aborts or scenario.init_fails
        for worker in range(scenario.workers):
            taken = [number for one, who, number in tokens if (one, who) == (epoch, worker)]
            if len(set(taken)) != len(taken) or (scenario.in_order and taken != sorted(taken)):
                raise Violation(f"epoch {epoch}: worker {worker}'s batches came as {taken}")
            length = scenario.stream_length(epoch, worker)
            if len(taken) != length and not partial:
                raise Violation(f"epoch {epoch}: worker {worker} yielded {length} batches, {taken} arrived")
