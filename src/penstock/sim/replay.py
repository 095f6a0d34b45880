"""Replay a recorded run to a new core: the same events must lead to the same actions, or a hidden input decides. Also against the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.core.core import CoreConfig, new_state, on_event
from penstock.core.events import Action, Event
from penstock.sim.scenario import Scenario
from penstock.sim.world import World

Steps = list[tuple[Event, list[Action]]]


class Difference(NamedTuple):
    """The first step at which the core acted differently."""

    step: int
    event: Event
    recorded: list[Action]
    replayed: list[Action]


def replay(config: CoreConfig, steps: Steps) -> Difference | None:
    """Tell the events to a new core; return None if it answers each as recorded."""
    state = new_state(config)
    for step, (event, recorded) in enumerate(steps):
        replayed = on_event(state, event)
        if replayed != recorded:
            return Difference(step, event, recorded, replayed)
    return None


def record(scenario: Scenario) -> tuple[CoreConfig, Steps]:
    """Return a run's configuration, events and actions; for scenarios in which no agent dies."""
    world = World(scenario, remembers=True)
    config = world.agent.state.config
    world.run()
    return config, [(event, actions) for _, event, actions in world.history]


def events_per_s(config: CoreConfig, steps: Steps, *, seconds: float, clock: Callable[[], float]) -> float:
    """Return the core's events per second, replaying to fresh states until `seconds` are spent."""
    count, spent_s = 0, 0.0
    while spent_s < seconds:
        state, before_s = new_state(config), clock()
        for event, _ in steps:
            on_event(state, event)
        spent_s += clock() - before_s
        count += len(steps)
    return count / spent_s
