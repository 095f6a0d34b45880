"""One simulated schedule with a remote pool whose workers are late, silent or lost, drawn from a seed, and how it went."""

from __future__ import annotations

from typing import Any

from penstock.sim import Violation, draw_remote, simulate


def run(seed: int, *, audits: bool | None = None) -> dict[str, Any]:
    """Play one schedule; every tenth with the core's books checked after every event, unless told otherwise. A remote pool's
    troubles alone must not cost a batch: where nothing else happens, none may be an error."""
    try:
        world = simulate(draw_remote(seed), audits=seed % 10 == 0 if audits is None else audits)
    except Violation as violation:
        return {"seed": seed, "ok": False, "why": str(violation)}
    if seed % 4 == 0 and world.errors:
        return {"seed": seed, "ok": False, "why": f"{world.errors} batches were errors"}
    silences = sum(world.struck[name] for name in ("late", "partition", "outage"))
    return {"seed": seed, "ok": True, "events": world.events, "silences": silences}
