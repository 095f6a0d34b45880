"""Replay a recorded run to a new core: the same events must lead to the same actions, or a hidden input decides."""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.core import CoreConfig, new_state, on_event
from penstock.core.events import Action, Event


class Difference(NamedTuple):
    """The first step at which the core acted differently."""

    step: int
    event: Event
    recorded: list[Action]
    replayed: list[Action]


def replay(config: CoreConfig, steps: list[tuple[Event, list[Action]]]) -> Difference | None:
    """Tell the events to a new core; return None if it answers each as recorded."""
    state = new_state(config)
    for step, (event, recorded) in enumerate(steps):
        replayed = on_event(state, event)
        if replayed != recorded:
            return Difference(step, event, recorded, replayed)
    return None
