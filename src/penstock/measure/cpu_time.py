"""CPU time of other processes, user and system, all threads. Linux; read-only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

SCHED = 2
"""The precise clock of a process's CPU time (CPUCLOCK_SCHED in the kernel)."""


def cpu_seconds(pid: int) -> float:
    """Return a process's CPU time so far, without its children; 0 if it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | SCHED)
    except OSError:  # gone, or a kernel that has no such clock: the other one counts in hundredths
        pass
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def cpu_times(pids: Iterable[int]) -> dict[int, float]:
    return {pid: cpu_seconds(pid) for pid in set(pids) if pid > 0}


def spent_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the CPU time between two looks; processes that have ended meanwhile do not count."""
    return sum(max(0.0, now - before.get(pid, 0.0)) for pid, now in after.items())


def children_of(pid: int) -> list[int]:
    """Return the processes that a process's first thread has started and that live."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (OSError, ValueError):
        return []
