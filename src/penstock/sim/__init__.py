"""Simulators. The engine's own core under a virtual clock, with fake workers and faults at any step:

`simulate(scenario)` plays one run and raises `Violation` when a promise is broken; `draw(seed)` makes a random scenario,
`draw_remote(seed)` one with a remote pool that is late, partitioned and lost.
`record` and `replay` repeat a run's events to the core; `events_per_s` measures how fast it answers.

And the caches of a group of nodes (`cache_group`, `fetch_pace`), which need no torch: so names are imported on first use. `division` plays who makes
which samples, workers or the GPU, beside the paper's rule.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_FROM = {
    "penstock.sim.memory": ("Violation",),
    "penstock.sim.replay": ("Difference", "events_per_s", "record", "replay"),
    "penstock.sim.scenario": ("FakePool", "Fault", "Scenario", "draw", "draw_remote"),
    "penstock.sim.world": ("World", "simulate"),
}


def __getattr__(name: str) -> Any:
    for module, names in _FROM.items():
        if name in names:
            found = import_module(module)
            # All of them: the import has set `replay` to the module of that name.
            globals().update((each, getattr(found, each)) for each in names)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
