"""One sentence about a run: what limits it and what would help, with the predicted gain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FEW = 10
"""Batches below which a measurement says nothing."""
FINE = 0.02
"""Share of waiting that is not worth a word of advice."""


def diagnose(stats: Mapping[str, Any], *, cores: int) -> str:
    if stats["engine"] == "torch":
        return "torch's own loader runs here, so nothing is measured."
    if stats["batches"] < FEW:
        return f"only {stats['batches']} batches so far; a diagnosis needs {FEW}."
    share = stats["wait_share"]
    waits = f"training waits {share:.0%} of the time for preparation"
    if share < FINE:
        return f"{waits}: the loader keeps up, and nothing here would make training faster."
    workers = stats["workers"]
    if not workers:
        return f"{waits}, which happens in the training process itself; num_workers='auto' would use {cores} cores."
    busy = sum(stats["worker_busy_s"]) / max(1e-9, workers * stats["elapsed_s"])
    where = f"{workers} workers on {cores} cores, busy {busy:.0%} of the time"
    if busy < 0.5:
        return (
            f"{waits}, yet {where}: look at the first batch, slow samples or the disk before adding workers."
        )
    # Preparation needs workers * busy worker-seconds per second of the run; without waiting the run would take
    # (1 - share) of its time, so that much work must fit into the shorter time.
    needed = workers * busy / max(1e-9, 1 - share)
    more = max(1, round(needed + 0.49) - workers)
    if workers >= cores:
        return (
            f"{waits}; {where}: all cores are in use, and about {needed:.0f} would be needed. Cheaper samples, reuse or "
            f"more CPUs would help, more workers would not."
        )
    usable = min(more, cores - workers)
    left = max(0.0, 1 - (workers + usable) / needed) if needed > workers + usable else 0.0
    rest = "remove it" if left <= FINE else f"reduce it to {left:.0%}"
    return f"{waits}; {where}; {usable} more {'is' if usable == 1 else 'are'} predicted to {rest}."
