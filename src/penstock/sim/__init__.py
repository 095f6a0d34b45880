"""The simulator: the engine's own core under a virtual clock, with fake workers and faults at any step.

`simulate(scenario)` plays one run and raises `Violation` when a promise is broken; `draw(seed)` makes a random scenario,
`draw_remote(seed)` one with a remote pool that is late, partitioned and lost.
`record` and `replay` repeat a run's events to the core; `events_per_s` measures how fast it answers.
"""

from __future__ import annotations

from penstock.sim.memory import Violation
from penstock.sim.replay import Difference, events_per_s, record, replay
from penstock.sim.scenario import FakePool, Fault, Scenario, draw, draw_remote
from penstock.sim.world import World, simulate

__all__ = [
    "Difference",
    "FakePool",
    "Fault",
    "Scenario",
    "Violation",
    "World",
    "draw",
    "draw_remote",
    "events_per_s",
    "record",
    "replay",
    "simulate",
]
