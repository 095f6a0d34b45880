"""What `diagnose()` says about a rank that holds up the others, from `stats()["node"]`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.policy.stragglers import CLEAR, Why

NOTABLE = 0.05
"""Share of the time from which a rank that holds up the others is worth a word."""


def straggler_remark(node: Mapping[str, Any] | None) -> str:
    """Return a sentence that names the rank, says why, and what would help; or ""."""
    last = node.get("slowest") if node else None
    if not last or last["share"] < NOTABLE:
        return ""
    ranks = last["ranks"]
    if len(ranks) == 1:
        who, its, it = f"Rank {ranks[0]} holds", "its", "it has"
    else:
        who, its, it = f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} hold", "their", "they have"
    return f" {who} up the others {last['share']:.0%} of the time: {reason(last, its, it)}"


def reason(last: Mapping[str, Any], its: str, it: str) -> str:
    """Say what differs from the other ranks, and what would help."""
    cores, others = last["cores"], last["other_cores"]
    match last["why"]:
        case Why.SAMPLES:
            return (
                f"{its} samples take {last['sample_times']:.1f} times as much work{despite(cores, others)}. Cheaper samples would help, or "
                f'deal="cost" if the dataset knows what samples cost.'
            )
        case Why.SOURCE:
            return (
                f"{its} samples take {last['sample_times']:.1f} times as long, mostly blocked (reading or waiting, not "
                f"computing){despite(cores, others)}. Faster storage, cache= or more workers (num_workers) would help."
            )
        case Why.CORES:
            return f"{it} {cores:.1f} cores, the others {others:.1f}. The same num_workers and as many cores for each rank would help."
        case Why.CROWD:
            return (
                f"{its} workers wait for a core {last['delayed_share']:.0%} of their time. Cores that no other program uses would help: look "
                f"at what else runs there, and at the cores that the ranks are bound to."
            )
    return f"on average {its} samples and cores are like the others'. Look at single slow samples (trace= shows them)."


def despite(cores: float, others: float) -> str:
    """Mention cores if there are clearly more of them: lending has done what it could."""
    return (
        f" although they have {cores:.1f} cores and the others' {others:.1f}"
        if cores >= CLEAR * others
        else ""
    )
