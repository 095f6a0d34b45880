"""One simulated schedule of faults for the caches of a group, drawn from a seed, and how it went."""

from __future__ import annotations

from typing import Any

from penstock.sim import Violation
from penstock.sim.cache_faults import play
from penstock.sim.cache_schedule import draw_cache


def run(seed: int, *, audits: bool | None = None) -> dict[str, Any]:
    """Play one schedule; every seventh with the keepers' books checked after every event, unless told otherwise."""
    try:
        world = play(draw_cache(seed), audits=seed % 7 == 0 if audits is None else audits)
    except Violation as violation:
        return {"seed": seed, "ok": False, "why": str(violation)}
    except Exception as exc:
        return {"seed": seed, "ok": False, "why": f"{type(exc).__name__}: {exc}"}
    tally = world.tally
    return {
        "seed": seed,
        "ok": True,
        "events": world.agenda.steps,
        "deaths and cuts": tally["rank"] + tally["service"] + tally["cut"],
        "troubles": sum(
            tally[name] for name in ("source failed", "disk failed", "peer refused", "damaged", "refused")
        ),
        "unread": tally["unread"],
        "without room": tally["no room"],
    }
