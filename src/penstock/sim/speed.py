"""How fast the pure core is: a run is simulated once, and what the core was told is told to it again, against the clock."""

from __future__ import annotations

from collections.abc import Callable

from penstock.engine.core import CoreConfig, new_state, on_event
from penstock.engine.events import Event, Kind
from penstock.sim.scenario import Scenario
from penstock.sim.world import World

WORKLOAD = Scenario(
    seed=0, workers=8, epochs=1, batches=150, batch_size=64, window=16, task_size=4, sample_s=0.001, texts=1,
    limit_bytes=64 << 20, train_s=0.001,
)  # fmt: skip
"""Eight workers on batches of 64 in tasks of 4, two batches ahead per worker: what torch's defaults come to."""


def recorded(scenario: Scenario) -> tuple[CoreConfig, list[Event]]:
    """What the core is told in the course of a scenario."""
    world = World(scenario, remembers=True)
    config = world.agent.state.config
    world.run()
    return config, [event for _, event, _ in world.history]


def events_per_s(
    *, seconds: float, clock: Callable[[], float], scenario: Scenario = WORKLOAD
) -> dict[str, float]:
    """Events per second through the core, in runs of some thousand events each, for about `seconds`."""
    config, events = recorded(scenario)
    count, spent_s = 0, 0.0
    while spent_s < seconds:
        state = new_state(config)
        started_s = clock()
        for event in events:
            on_event(state, event)
        spent_s += clock() - started_s
        count += len(events)
    return {"events_per_s": count / spent_s, "events": float(count)}


KINDS = (Kind.SLOTS, Kind.PARTS, Kind.WHOLE)
