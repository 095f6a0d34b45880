"""Ranks of one machine on one virtual clock: cores move between them by the rules of `policy/lending.py`.

Real are the core of every rank and the manager's decisions; the rest is played: workers, training with a barrier in every step, messages.
A step begins on a rank when its batch is there, and ends when all ranks have begun it and trained.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from penstock.core.events import Task
from penstock.policy.deciding import Deciding
from penstock.policy.lending import RULES, RankView
from penstock.sim.agenda import Agenda
from penstock.sim.cores import Cores
from penstock.sim.rank_agent import RankAgent
from penstock.sim.rank_load import RankFault, RankLoad

PATIENCE_S = 60.0
"""Virtual seconds without a step after which none is expected any more."""
BACK_S = 1.0
"""An agent that has left a silent manager joins again after so long."""


class Hang(AssertionError):
    """No step for a long time."""


@dataclass(slots=True)
class Trainer:
    """The training process of one rank."""

    taken: int = 0
    """Batch that it takes next."""
    asked: int = 0
    trains: bool = False
    ready: set[int] = field(default_factory=set)
    got: list[int] = field(default_factory=list)
    """Batches that it has taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a run."""

    load: RankLoad
    ends_s: tuple[float, ...]
    """When each step of the first job ended."""
    moved: tuple[tuple[float, float], ...]
    """Cores that changed their rank, and when."""
    lent_s: float
    """Core seconds that ranks had beyond their own."""
    reports: int
    decisions: int
    allowed: tuple[int, ...]
    """Workers each rank may use at the end."""
    got: tuple[tuple[int, ...], ...]
    """Batches that each rank's training took, in order."""

    def step_s(self, first: int) -> float:
        return mean_step_s(self.ends_s, first)

    def moves_per_s(self, first: int = 0) -> float:
        """Return the cores that changed their rank in a second, from the step `first` on."""
        since_s = self.ends_s[first - 1] if first else 0.0
        moves = sum(cores for at_s, cores in self.moved if since_s <= at_s <= self.ends_s[-1])
        return moves / (self.ends_s[-1] - since_s)


def mean_step_s(ends_s: tuple[float, ...] | list[float], first: int) -> float:
    """Return the mean time of the steps from `first` on."""
    return (ends_s[-1] - ends_s[first - 1]) / (len(ends_s) - first)


class FakeManager:
    """Hears the ranks and tells them how many workers they are allowed. Its decisions are the real ones."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        load, now_s = machine.load, machine.agenda.now_s
        self.deciding = Deciding(RULES[load.rule], now_s, pause_s=load.decide_s)
        self.alive = True
        self.planned_s = math.inf
        """When to decide next."""

    def on_report(self, rank: int, view: RankView) -> None:
        if not self.alive:
            return
        if rank not in self.deciding.lenders:
            followed = self.machine.load.followed
            self.deciding.join(rank, auto=followed > 0, cores=frozenset(range(followed)))
        now_s = self.machine.agenda.now_s
        self.deciding.hear(rank, now_s)
        self.deciding.report(rank, view, now_s)
        self._plan()

    def on_gone(self, rank: int) -> None:
        """A rank's connection has ended."""
        if self.alive:
            self.deciding.leave(rank)
            self._plan()

    def _plan(self) -> None:
        """Decide when it is due, if that is sooner than planned."""
        due_s = max(self.deciding.due_s, self.machine.agenda.now_s)
        if due_s < self.planned_s:
            self.planned_s = due_s
            self.machine.agenda.at(due_s, self._decide, due_s)

    def _decide(self, planned_s: float) -> None:
        if not self.alive or planned_s != self.planned_s:
            return
        machine, now_s = self.machine, self.machine.agenda.now_s
        self.planned_s = math.inf
        machine.decisions += 1
        before = {number: one.allowed for number, one in self.deciding.lenders.items()}
        for rank, number in self.deciding.decide(now_s).items():
            machine.moved(rank, before[rank], number)
            machine.to_agent(rank, number, self.deciding.lenders[rank].own)
            self.deciding.told(rank, number, now_s)
        self._plan()


class Machine:
    def __init__(self, load: RankLoad) -> None:
        self.load = load
        self.agenda = Agenda()
        self.cores = Cores(self.agenda, load.cores)
        self.rng = random.Random(load.seed)
        sums = load.samples_s().cumsum(axis=2)
        self.sums: list[list[list[float]]] = [[[0.0, *step] for step in rank] for rank in sums.tolist()]
        """Cost of a batch's samples up to each, by rank and step."""
        self.trainers = [Trainer() for _ in range(load.ranks)]
        self.ends_s: list[list[float]] = [[] for _ in range(load.crews)]
        self.progress_s = 0.0
        self.moved_at: list[tuple[float, float]] = []
        self.lent_s = 0.0
        self.reports = self.decisions = 0
        self._lent, self._lent_since_s = dict.fromkeys(range(load.ranks), 0), 0.0
        self.manager = FakeManager(self)
        self.agents = [RankAgent(self, rank, 0) for rank in range(load.ranks)]
        for agent in self.agents:
            self.agenda.after(load.delay_s, agent.connect)
        for rank in range(load.ranks):
            for _ in range(min(load.window, load.steps)):
                self._ask(rank)
        for fault in load.faults:
            self.agenda.at(fault.at_s, self._strike, fault)

    def run(self) -> Played:
        load = self.load
        while any(trainer.taken < load.steps or trainer.trains for trainer in self.trainers):
            self.agenda.step()
            if self.agenda.now_s - self.progress_s > PATIENCE_S:
                raise Hang(f"no step after {[trainer.taken for trainer in self.trainers]}")
        settled_s = self.agenda.now_s + 0.1
        while self.agenda.now_s < settled_s:
            self.agenda.step()
        return Played(
            load=load,
            ends_s=tuple(self.ends_s[0]),
            moved=tuple(self.moved_at),
            lent_s=self.lent_s,
            reports=self.reports,
            decisions=self.decisions,
            allowed=tuple(agent.state.local.allowed for agent in self.agents),
            got=tuple(tuple(trainer.got) for trainer in self.trainers),
        )

    def work_s(self, rank: int, task: Task) -> float:
        sums = self.sums[rank][task.seq]
        return sums[task.start + task.samples] - sums[task.start]

    # ---- training

    def _ask(self, rank: int) -> None:
        trainer = self.trainers[rank]
        if trainer.asked < self.load.steps:
            self.agenda.after(self.load.delay_s, self.agents[rank].on_ask, trainer.asked)
            trainer.asked += 1

    def delivered(self, agent: RankAgent, seq: int) -> None:
        if agent is self.agents[agent.rank] and agent.alive:
            trainer = self.trainers[agent.rank]
            assert trainer.taken <= seq not in trainer.ready, f"batch {seq} came twice"
            trainer.ready.add(seq)
            self._take(agent.rank)

    def _take(self, rank: int) -> None:
        """Begin the next step on a rank, if it can."""
        trainer = self.trainers[rank]
        if trainer.trains or trainer.taken not in trainer.ready:
            return
        trainer.ready.discard(trainer.taken)
        trainer.got.append(trainer.taken)
        trainer.taken += 1
        trainer.trains = True
        self._ask(rank)
        self.agenda.after(self.load.delay_s, self.agents[rank].on_taken, trainer.taken)
        crew = range(rank % self.load.crews, self.load.ranks, self.load.crews)
        if all(self.trainers[other].trains for other in crew):
            self.agenda.after(self.load.train_s, self._step_ends, crew)

    def _step_ends(self, crew: range) -> None:
        self.progress_s = self.agenda.now_s
        self.ends_s[crew.start].append(self.agenda.now_s)
        for rank in crew:
            self.trainers[rank].trains = False
        for rank in crew:
            self._take(rank)

    # ---- messages to and from the manager

    def to_manager(self, agent: RankAgent, view: RankView) -> None:
        self.reports += 1
        if self.rng.random() >= self.load.lost:
            self.agenda.after(self.load.delay_s, self._manager_hears, self.manager, agent, view)

    def _manager_hears(self, manager: FakeManager, agent: RankAgent, view: RankView) -> None:
        if agent.connected:
            manager.on_report(agent.rank, view)

    def to_agent(self, rank: int, workers: int, own: int) -> None:
        if self.rng.random() >= self.load.lost:
            grant = (self.manager, self.agents[rank], workers, own)
            self.agenda.after(self.load.delay_s, self._agent_hears, *grant)

    def _agent_hears(self, manager: FakeManager, agent: RankAgent, workers: int, own: int) -> None:
        if agent.connected and manager is self.manager:
            agent.on_allowed(workers, own)

    def leave(self, agent: RankAgent) -> None:
        """Let an agent end its connection, and come back."""
        self.agenda.after(self.load.delay_s, self.manager.on_gone, agent.rank)
        self.agenda.after(BACK_S, self._come_back, agent)

    def _come_back(self, agent: RankAgent) -> None:
        if self.manager.alive and not agent.connected:
            agent.connect()

    def moved(self, rank: int, before: int, after: int) -> None:
        if after == before:
            return
        now_s = self.agenda.now_s
        self.moved_at.append((now_s, abs(after - before) / 2))
        self.lent_s += sum(self._lent.values()) * (now_s - self._lent_since_s)
        self._lent[rank], self._lent_since_s = max(0, after - self.load.workers), now_s

    # ---- faults

    def _strike(self, fault: RankFault) -> None:
        agent = self.agents[fault.rank]
        if not (self.manager if fault.what == "manager" else agent).alive:
            return
        if fault.what == "manager":
            self.manager.alive = False
            for each in self.agents:
                self.agenda.after(self.load.delay_s, each.disconnect)
            self.agenda.after(fault.for_s, self._new_manager)
        else:
            agent.alive = agent.connected = False
            self.cores.stop(agent)
            self.agenda.after(self.load.delay_s, self.manager.on_gone, fault.rank)
            self.agenda.after(fault.for_s, self._new_agent, fault.rank)

    def _new_manager(self) -> None:
        self.manager = FakeManager(self)
        for agent in self.agents:
            agent.connect()

    def _new_agent(self, rank: int) -> None:
        """Start an agent in a dead one's place; training asks it for all that it has not taken."""
        trainer, agent = self.trainers[rank], RankAgent(self, rank, self.trainers[rank].taken)
        self.agents[rank] = agent
        trainer.ready.clear()
        for seq in range(trainer.taken, trainer.asked):
            self.agenda.after(self.load.delay_s, agent.on_ask, seq)
        if self.manager.alive:
            self.agenda.after(self.load.delay_s, agent.connect)


def play(load: RankLoad) -> Played:
    """Play a run to its end."""
    return Machine(load).run()
