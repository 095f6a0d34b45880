"""One simulated schedule of faults, drawn from a seed, and how it went."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from penstock.sim import Violation, draw, simulate


def run(
    seed: int, *, audits: bool | None = None, resizes: bool = True, pools: bool = True, lends: bool = True
) -> dict[str, Any]:
    """Play one schedule; every tenth with the core's books checked after every event, unless told otherwise. In every other one a worker is new,
    and others are not, after so few samples as a schedule has."""
    new, old = (4, 16) if seed % 2 else (16, 128)
    try:
        with patch.multiple("penstock.policy.tasks", NEW_SAMPLES=new, OLD_SAMPLES=old):
            world = simulate(
                draw(seed, resizes=resizes, pools=pools, lends=lends),
                audits=seed % 10 == 0 if audits is None else audits,
            )
    except Violation as violation:
        return {"seed": seed, "ok": False, "why": str(violation)}
    return {"seed": seed, "ok": True, "events": world.events, "faults": world.struck.total()}
