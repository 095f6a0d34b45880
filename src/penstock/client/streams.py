"""What the training process knows of workers that iterate an iterable dataset, and how they go on after one of them is lost.

A worker sends its place with each batch, once when it has begun an epoch, and once at its end. With the places of what was taken
from it, a new agent's workers go on where the old one's were, if the dataset or its iterator keeps its own state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from penstock.agent.troubles import unpacked
from penstock.client.session import AgentGone, Blueprint, Session
from penstock.epochs.shares import Shares, Told
from penstock.wire import frames as wire
from penstock.wire.frames import Msg
from penstock.wire.kinds import Kind
from penstock.wire.pickles import loads
from penstock.worker.streaming import Place, is_stateful

HEAR_S = 60.0
"""How long a state taken before the first batch waits for workers to say where they begin."""


class Stream:
    """Where the workers of an iterable dataset stand, by what has been taken from them; `on` for such datasets only."""

    def __init__(self, blueprint: Blueprint) -> None:
        core, spec = blueprint.agent.core, blueprint.spec
        self.on = core.kind is Kind.STREAM
        self._dataset = spec.recipe.dataset
        self._taken = Shares(max(1, core.workers), dict(spec.places or {}), core.first_worker - 1)
        self._epoch, self._mark = spec.epoch, 0
        self.told = Told()

    @property
    def resumable(self) -> bool:
        """Whether workers can be brought to where they stood."""
        if not self.on:
            return False
        known = [*self.told.started.values(), *self._taken.places.values()]
        return is_stateful(self._dataset) or any(place.snapshot is not None for place in known)

    def start_over(self, epoch: int, mark: int) -> bytes:
        """A new epoch: where the last one left the workers means nothing in it. What to tell them."""
        self._epoch, self._mark = epoch, mark
        self._taken = Shares(self._taken.workers)
        self.told.clear()
        return wire.BEGIN.pack(mark, epoch)

    def hear(self, payload: bytes) -> None:
        """A worker says where it begins, or with what it would begin the next epoch."""
        mark, worker, ended = wire.SHARE.unpack_from(payload)
        if mark == self._mark:
            places = self.told.ended if ended else self.told.started
            places[worker] = loads(payload[wire.SHARE.size :])

    @property
    def heard_all(self) -> bool:
        return not self.on or len(self.told.started) >= self._taken.workers

    def advance(self, worker: int, place: Place) -> tuple[int, Place]:
        """A batch of that worker was taken; its place, to go with it."""
        before = self._taken.places.get(worker)
        if before is None or before.carried:  # of an epoch that is over: this one began where the worker says
            before = self.told.started.get(worker)
        self._taken.advance(worker, place.after(before))
        return worker, self._taken.places[worker]

    def lost_worker(self, error: bytes) -> bool:
        """Whether this error only means that a worker must go on from where its dataset said it was."""
        trouble = unpacked(error) if self.resumable else None
        return trouble is not None and trouble.kind in ("died", "start", "stream")

    def resumed(self, blueprint: Blueprint) -> Blueprint:
        if not self.on:
            return blueprint
        places = self.told.started | self._taken.places
        core = replace(blueprint.agent.core, first_worker=self._taken.next)
        spec = replace(blueprint.spec, places=places, epoch=self._epoch, mark=self._mark)
        return replace(blueprint, agent=replace(blueprint.agent, core=core), spec=spec)


def until_heard(
    stream: Stream, session: Session, inbox: deque[tuple[int, bytes]], read: Callable[[], None]
) -> None:
    """Wait until all workers have said where they begin, unless one fails to; what comes meanwhile is read as always."""
    deadline = time.monotonic() + HEAR_S
    read()
    while not stream.heard_all and time.monotonic() < deadline:
        try:
            frames = session.receive(deadline)
        except AgentGone:
            return
        inbox.extend(frames)
        read()
        if any(kind == Msg.ERROR for kind, _ in frames):
            return
