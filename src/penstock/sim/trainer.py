"""The simulated training process: asks for batches, waits, takes and releases them, as `client/iterator.py` does.

It checks each batch when taken and again when released: every sample in its slot, and still there. Deliveries go into the
world's log, whose order and completeness are checked at the end.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from penstock.core import events as ev
from penstock.core.events import Kind
from penstock.epochs.feed import Ask
from penstock.epochs.progress import Run
from penstock.sim.agent import Delivery, FakeAgent, Gone
from penstock.sim.memory import FakeMemory, Violation
from penstock.sim.scenario import Scenario
from penstock.sim.worker import IDLE, RestartMessage


class Held:
    """A batch in the user's hands."""

    def __init__(self, agent: FakeAgent, delivery: Delivery, ask: Ask) -> None:
        self.agent, self.delivery, self.ask = agent, delivery, ask
        self.content = self.read()

    def read(self) -> tuple[Any, ...]:
        """Return the batch's samples, as its memory holds them now."""
        memory: FakeMemory = self.agent.memory
        offset, layout = self.delivery.offset, self.delivery.layout
        if layout is None:
            return memory.read_result(offset)
        tokens = []
        for ordinal in range(self.ask.size):
            if ordinal not in self.delivery.dropped:
                found = memory.read_slot(offset, layout, self.ask.size, ordinal)
                tokens.append(next(iter(found)) if len(found) == 1 else frozenset(map(str, found)))
        return tuple(tokens)


class FakeTrainer:
    """One life of a training process; with a `state` it resumes an earlier one. `world`: the `World`, whose module imports this one."""

    def __init__(self, world: Any, state: dict[str, Any] | None) -> None:
        self.world = world
        self.scenario: Scenario = world.scenario
        self.alive, self.frozen, self.idle, self.finished = True, False, False, False
        self.inbox: deque[Any] = deque()
        self.open: dict[int, Ask] = {}
        self.ready: deque[Delivery] = deque()
        self.starved: ev.Starved | None = None
        self.held: deque[Held] = deque()
        self.freed: deque[int] = deque()
        self.held_bytes = 0
        self.asks: Iterator[Ask] = iter(())
        self.seq = self.first_seq = 0
        self.ended = False
        self.first_epoch = self.epoch = state["epoch"] if state else 0
        self.run = self._new_run(self.epoch)
        if state:
            self.run.base, self.run.beyond = state["batches"], set(state["beyond"])
            self.run.total = self.scenario.batches - self.run.base
        self.life = self._live()

    @property
    def agent(self) -> FakeAgent:
        agent: FakeAgent = self.world.agent
        return agent

    def _new_run(self, epoch: int) -> Run:
        streams = self.scenario.kind is Kind.STREAM
        return Run(
            "streamed" if streams else "planned", 0, epoch, total=None if streams else self.scenario.batches
        )

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(json.dumps(self.run.state()))
        return state

    def _live(self) -> Iterator[float]:
        for epoch in range(self.first_epoch, self.scenario.epochs):
            if epoch != self.run.epoch:
                self.run = self._new_run(epoch)
            self._begin(epoch)
            while not (
                epoch in self.scenario.aborts and self.world.taken(epoch) >= self.scenario.break_at(epoch)
            ):
                delivery = yield from self._due()
                if delivery is None:
                    break
                self._take(delivery)
                if (
                    self.scenario.kind is Kind.STREAM
                    and delivery.error is not None
                    and self.agent.state.fatal
                ):
                    break
                yield self.scenario.train_s * (0.5 + self.scenario.chance(30, epoch, delivery.seq))
            self.run.finished = True
        self._abort(self.scenario.epochs)
        while self.held:
            self._let_go()
        self.finished = True
        while True:
            # Batches in transit when the last epoch was broken off are released as well.
            while self.inbox:
                self._on_frame(self.inbox.popleft())
            self._give_back()
            yield IDLE

    # ---- asking

    def _begin(self, epoch: int) -> None:
        self.epoch = epoch
        if self.scenario.proceeds and self.open and {ask.epoch for ask in self.open.values()} == {epoch}:
            return
        if self.open or self.ready or self.ended:
            self._abort(epoch)
        self.asks, self.ended, self.first_seq = self._asks_from(epoch), False, self.seq
        for _ in range(self.scenario.window):
            self._ask()

    def _asks_from(self, epoch: int) -> Iterator[Ask]:
        scenario, run = self.scenario, self.run
        if scenario.kind is Kind.STREAM:
            yield from (Ask(epoch, 0, 0, 1, [], scenario.batch_size) for _ in iter(int, 1))
        for batch in range(run.base, scenario.batches):
            if batch - run.base not in run.beyond:
                yield Ask(epoch, batch, 0, 1, [], scenario.size(epoch, batch))
        while scenario.proceeds and scenario.in_order and epoch + 1 < scenario.epochs:
            epoch += 1
            for batch in range(scenario.batches):
                yield Ask(epoch, batch, 0, 1, [], scenario.size(epoch, batch))

    def _ask(self) -> None:
        ask = next(self.asks, None)
        if ask is not None:
            seq, self.seq = self.seq, self.seq + 1
            self.open[seq] = ask._replace(first=seq)
            self.world.tell_agent(self.open[seq])

    def _abort(self, epoch: int) -> None:
        self.open.clear()
        self.freed.extend(delivery.seq for delivery in self.ready if delivery.error is None)
        self.ready.clear()
        self.world.tell_agent(RestartMessage(epoch))

    # ---- waiting

    def _due(self) -> Generator[float, None, Delivery | None]:
        while True:
            if self.ready and self.open[self.ready[0].seq].epoch == self.epoch:
                return self.ready.popleft()
            if self.ended or not any(ask.epoch == self.epoch for ask in self.open.values()):
                return None
            self._give_back()
            if self.starved is not None:
                # Only now is it certain that nothing more will be released.
                self.world.tell_agent(ev.Stuck(*self.starved))
                self.starved = None
            while not self.inbox:
                yield IDLE
            while self.inbox:
                self._on_frame(self.inbox.popleft())

    def _on_frame(self, frame: Any) -> None:
        match frame:
            case Delivery(seq):
                if seq in self.open:
                    self.ready.append(frame)
                elif frame.error is None:
                    self.freed.append(seq)
            case ev.DeliverEnd(asked) if asked >= self.first_seq:
                self.ended = True
                self.open = {delivery.seq: self.open[delivery.seq] for delivery in self.ready}
            case ev.Starved():
                self.starved = frame
            case Gone() if not self.finished:
                self.ready.clear()
                self.freed.clear()
                self.starved = None
                self.world.new_agent(self.agent.state.local.size, self.epoch)
                for ask in self.open.values():
                    self.world.tell_agent(ask)

    def _give_back(self) -> None:
        while self.freed:
            self.world.tell_agent(ev.Released(self.freed.popleft()))

    # ---- taking

    def _take(self, delivery: Delivery) -> None:
        ask = self.open.pop(delivery.seq)
        self._ask()
        if delivery.error is not None:
            self.world.judge_error(ask, delivery.error)
        else:
            held = Held(self.agent, delivery, ask)
            self.world.judge_batch(ask, held.content, delivery.dropped)
            if not delivery.nbytes or self.held_bytes + delivery.nbytes > self.scenario.limit_bytes // 2:
                self.freed.append(delivery.seq)
            else:
                self.held.append(held)
                self.held_bytes += delivery.nbytes
        self.run.deliver(ask)
        self.world.delivered(ask, self)
        while len(self.held) > self.scenario.keeps - 1:
            self._let_go()

    def _let_go(self) -> None:
        held = self.held.popleft()
        self.held_bytes -= held.delivery.nbytes
        if held.read() != held.content:
            raise Violation(f"{held.ask} changed in the user's hands: {held.content} became {held.read()}")
        if held.agent is self.agent:
            self.freed.append(held.delivery.seq)
