"""A rank of a simulated training, with its agent: asks for batches ahead, uses them in order, dies, and reads by itself what its cache does not give."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.sim.agenda import Link
from penstock.sim.cache_machine import AskOf, CacheMachine, EndOf, OverOf, StreamBatch
from penstock.sim.cache_schedule import CacheSetting
from penstock.sim.memory import Violation

TRAIN_S, STREAM_S, BACK_S = 3.0, 0.2, 20.0


class TrainingRank:
    """`released`: says which ranks may begin their next step now that another one has come to its end."""

    def __init__(
        self,
        world: CacheSetting,
        number: int,
        machine: CacheMachine,
        released: Callable[[], Iterator[TrainingRank]],
    ) -> None:
        self.world, self.number, self.machine, self._released = world, number, machine, released
        self.node = machine.node
        self.at = 0
        """Step that comes next."""
        self.waits = False
        """Whether a step is done, and the next not begun."""
        self._steps = world.steps
        self._life = 0
        self._alive = True
        self._wants = False
        """Whether training wants the batch of this step."""
        self._stream = -1
        self._link: Link | None = None
        self._untold: dict[int, set[int]] = {}
        """Samples of each batch asked for of which nothing was heard yet."""
        self._asked_of: dict[int, int] = {}
        """Stream by which each open batch was asked for."""

    # ---- training

    def begin(self) -> None:
        self._wants = True
        self._go_on()

    def _go_on(self) -> None:
        """Ask ahead, and use the batch of this step if it is there and wanted."""
        if not self._alive:
            return
        for step in range(self.at, min(self._steps, self.at + self.world.schedule.ahead)):
            if step not in self._untold:
                self._ask(step)
        if self._wants and self.at < self._steps and not self._untold[self.at]:
            self._wants = False
            self._use(self.at)

    def _use(self, step: int) -> None:
        del self._untold[step]
        self._end(step, used=True)
        self.at += 1
        self.world.agenda.after(self.world.later(TRAIN_S), self._trained, self._life)

    def _trained(self, life: int) -> None:
        if life == self._life:
            self.waits = True
            for rank in list(self._released()):
                rank.waits = False
                rank.begin()

    # ---- its cache

    def _ask(self, step: int) -> None:
        samples = self.world.batch(step, self.number)
        self._untold[step] = set(range(len(samples)))
        link = self._connected()
        if not samples or link is None:
            self._read_all(step)
            return
        self._asked_of[step] = self._stream
        link.send(AskOf(StreamBatch(self._stream, step), samples, self.told))

    def _connected(self) -> Link | None:
        machine = self.machine
        if self._link is None and machine.up:
            self._stream = machine.open_stream()
            life = machine.life
            self._link = Link(
                self.world.agenda,
                lambda: self.world.later(STREAM_S),
                lambda message: machine.receive(life, message),
            )
        return self._link

    def told(self, batch: StreamBatch, ordinal: int) -> None:
        """Hear that a sample has landed, or is to be read here."""
        if self._asked_of.get(batch.step) == batch.stream:
            self._untold[batch.step].remove(ordinal)
            self._go_on()

    def read_itself(self, step: int) -> None:
        self.world.served[step // self.world.plan.steps] += 1
        self.world.tally["unread"] += 1

    def _read_all(self, step: int) -> None:
        for _ in self._untold[step]:
            self.read_itself(step)
        self._untold[step].clear()

    def _end(self, step: int, *, used: bool) -> None:
        stream = self._asked_of.pop(step, None)
        if stream is not None and stream == self._stream and self._link is not None:
            self._link.send(OverOf(StreamBatch(stream, step), used))

    # ---- deaths

    def die(self) -> bool:
        """Die, and come back at the step that was not done."""
        if not self._alive or self.at >= self._steps:
            return False
        self._alive = False
        self._life += 1
        if self._link is not None:
            self._link.send(EndOf(self._stream))
        self._link = None
        self._untold.clear()
        self._asked_of.clear()
        self.world.agenda.after(self.world.later(BACK_S), self._come_back)
        return True

    def _come_back(self) -> None:
        self._alive = True
        if not self._wants and not self.waits:  # it died in the step
            self._trained(self._life)
        else:
            self._go_on()

    def note_service_death(self, node: int) -> None:
        """Read by itself all that its service owed."""
        if node != self.node or self._link is None:
            return
        self._link.reset()
        self._link = None
        self._asked_of.clear()
        for step in self._untold:
            self._read_all(step)
        self._go_on()

    def must_be_done(self) -> None:
        if self.at < self._steps:
            raise Violation(
                f"rank {self.number} waits for ever at step {self.at} of {self._steps}: {self._untold.get(self.at)}"
            )
