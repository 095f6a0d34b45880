"""Progress of workers that iterate an iterable dataset, and how they resume after one is lost.

A worker reports its place with each batch, when it begins an epoch, and at its end. From the places of delivered batches, a new agent's
workers resume where the old ones were, if the dataset or its iterator has a state.
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
from penstock.worker.streaming import StreamPlace, is_stateful

HEAR_S = 60.0
"""How long a state taken before the first batch waits for workers to report their start."""


class Stream:
    """Places of an iterable dataset's workers, by batches taken from them; `on` only for such datasets."""

    def __init__(self, blueprint: Blueprint) -> None:
        core, spec = blueprint.agent.core, blueprint.spec
        self.on = core.kind is Kind.STREAM
        self._dataset = spec.recipe.dataset
        self._taken = Shares(max(1, core.workers), dict(spec.places or {}), core.first_worker - 1)
        self._epoch, self._mark = spec.epoch, 0
        self.told = Told()

    @property
    def resumable(self) -> bool:
        """Whether workers can resume where they were."""
        if not self.on:
            return False
        known = [*self.told.started.values(), *self._taken.places.values()]
        return is_stateful(self._dataset) or any(place.snapshot is not None for place in known)

    def start_over(self, epoch: int, mark: int) -> bytes:
        """Begin an epoch, forget the old places, and return the message for the workers."""
        self._epoch, self._mark = epoch, mark
        self._taken = Shares(self._taken.workers)
        self.told.clear()
        return wire.BEGIN.pack(mark, epoch)

    def hear(self, payload: bytes) -> None:
        """Read a worker's report: where it begins, or its state for the next epoch."""
        mark, worker, ended = wire.SHARE.unpack_from(payload)
        if mark == self._mark:
            places = self.told.ended if ended else self.told.started
            places[worker] = loads(payload[wire.SHARE.size :])

    @property
    def heard_all(self) -> bool:
        return not self.on or len(self.told.started) >= self._taken.workers

    def advance(self, worker: int, place: StreamPlace) -> tuple[int, StreamPlace]:
        """Note a batch taken from `worker`; return the place to deliver with it."""
        before = self._taken.places.get(worker)
        if before is None or before.carried:  # from the last epoch: use the start that the worker reported
            before = self.told.started.get(worker)
        self._taken.advance(worker, place.after(before))
        return worker, self._taken.places[worker]

    def lost_worker(self, error: bytes) -> bool:
        """Return whether this error only means that workers must resume from their datasets' states."""
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
    """Wait until all workers have reported their start, or one fails; read other frames as usual meanwhile."""
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
