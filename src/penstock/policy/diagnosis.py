"""One sentence about a run: what limits it and what would help, with the predicted gain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

FEW = 10
"""Batches below which a measurement says nothing."""
FINE = 0.02
"""Share of waiting that is not worth a word of advice."""
IDLE = 0.5
"""Share of busy time below which workers are not what is short."""
SLACK = 0.05
"""Workers by which the need may exceed a whole number: the error of its measurement."""


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


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
    # There may have been more workers before, or fewer.
    busy = sum(stats["worker_busy_s"]) / max(1e-9, stats.get("worker_s", workers * stats["elapsed_s"]))
    where = f"{counted(workers, 'worker')} on {counted(cores, 'core')}, busy {busy:.0%} of the time"
    # Preparation needs workers * busy worker-seconds per second of the run; without waiting the run would take
    # (1 - share) of its time, so that much work must fit into the shorter time.
    needed = math.ceil(workers * busy / max(1e-9, 1 - share) - SLACK)
    if busy < IDLE or needed <= workers:
        return (
            f"{waits}, yet {where}: look at the first batch, slow samples, the disk or other load on this machine before "
            f"adding workers."
        )
    if workers >= cores:
        return (
            f"{waits}; {where}: all cores are in use, and about {needed} would be needed. Cheaper samples, reuse or "
            f"more CPUs would help, more workers would not."
        )
    usable = min(needed, cores) - workers
    left = max(0.0, 1 - (workers + usable) / needed) if needed > workers + usable else 0.0
    rest = "remove it" if left <= FINE else f"reduce it to {left:.0%}"
    return f"{waits}; {where}; {usable} more {'is' if usable == 1 else 'are'} predicted to {rest}."
