"""Iterable datasets that can say where they stand (`state_dict`) go on from there: after a resume, or a lost worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.engine.session import Blueprint
from penstock.engine.troubles import unpacked
from penstock.lanes.kinds import Kind
from penstock.lanes.prepare import is_stateful


class Stream:
    """Where the workers of an iterable dataset stand, by what has been delivered; `on` for such datasets only."""

    def __init__(self, blueprint: Blueprint) -> None:
        core, spec = blueprint.agent.core, blueprint.spec
        self.on = core.kind is Kind.STREAM
        self.resumable = self.on and is_stateful(spec.recipe.dataset)
        self._states = dict(spec.stream_states or {})
        self._next = core.first_lane
        self._workers = core.workers

    def start_over(self) -> None:
        """A new epoch: where the last one left the workers means nothing in it."""
        self._states, self._next = {}, 0

    def advance(self, worker: int, state: Any) -> None:
        self._states[worker] = state
        self._next = (worker + 1) % self._workers

    def lost_worker(self, error: bytes) -> bool:
        """Whether this error only means that a worker must go on from where its dataset said it was."""
        trouble = unpacked(error) if self.resumable else None
        return trouble is not None and trouble.kind in ("died", "start", "stream")

    def resumed(self, blueprint: Blueprint) -> Blueprint:
        if not self.resumable:
            return blueprint
        core = replace(blueprint.agent.core, first_lane=self._next)
        spec = replace(blueprint.spec, stream_states=dict(self._states))
        return replace(blueprint, agent=replace(blueprint.agent, core=core), spec=spec)
