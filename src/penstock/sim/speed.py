"""Measure the speed of the core: replay a simulated run's events against the clock."""

from __future__ import annotations

from collections.abc import Callable

from penstock.core.core import CoreConfig, new_state, on_event
from penstock.core.events import Action, Event
from penstock.sim.scenario import Scenario
from penstock.sim.world import World


def record(scenario: Scenario) -> tuple[CoreConfig, list[tuple[Event, list[Action]]]]:
    """Return a run's configuration, events and actions; for scenarios in which no agent dies."""
    world = World(scenario, remembers=True)
    config = world.agent.state.config
    world.run()
    return config, [(event, actions) for _, event, actions in world.history]


def events_per_s(
    config: CoreConfig,
    steps: list[tuple[Event, list[Action]]],
    *,
    seconds: float,
    clock: Callable[[], float],
) -> float:
    """Return the core's events per second, replaying to fresh states until `seconds` are spent."""
    count, spent_s = 0, 0.0
    while spent_s < seconds:
        state, before_s = new_state(config), clock()
        for event, _ in steps:
            on_event(state, event)
        spent_s += clock() - before_s
        count += len(steps)
    return count / spent_s
