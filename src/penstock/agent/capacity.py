"""How many workers the cores allow: the training process's affinity and its cgroup's quota, checked once a second.

The agent applies a new affinity to itself (future workers inherit it) and to the present workers. It leaves alone a worker
that the user has bound elsewhere (`worker_init_fn`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from penstock.agent.handles import WorkerHandle
from penstock.measure import host
from penstock.policy.workers import auto_workers

CHECK_S = 1.0
BINDS = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES")
"""With these, OpenMP binds the training process's thread to a core: its affinity then says nothing about the process."""


def affinity_of(pid: int) -> frozenset[int]:
    """Return the cores a process's first thread may use; empty if unknown."""
    with contextlib.suppress(OSError, AttributeError):
        return frozenset(os.sched_getaffinity(pid))
    return frozenset()


def move_to_cores(pid: int, before: frozenset[int], cores: frozenset[int]) -> None:
    """Bind a process to other cores, unless the user has bound it elsewhere."""
    if affinity_of(pid) == before:
        with contextlib.suppress(OSError):  # it has ended, or a cpuset has taken the cores away since
            os.sched_setaffinity(pid, cores)


def workers_for(affinity: frozenset[int], ranks: int, *, lane: bool) -> int:
    cores = len(affinity) or os.cpu_count() or 1
    return auto_workers(affinity=cores, quota=host.cpu_quota(), ranks=ranks, lane=lane)


class Capacity:
    def __init__(self, parent: int, ranks: int, *, lane: bool) -> None:
        """`ranks` share these cores. `lane`: the training process always runs a GPU lane, which needs cores."""
        self._parent, self._ranks, self._lane = parent, ranks, lane
        self._bound = any(name in os.environ for name in BINDS)
        self._affinity = affinity_of(parent)
        self._alone = self._beside_lane = 0
        self._next_s = 0.0

    @property
    def cores(self) -> frozenset[int]:
        """The cores that the training process could use when last looked at."""
        return self._affinity

    def wanted(self, number: int, now_s: float, workers: Sequence[WorkerHandle], *, lane: bool) -> int:
        """Return the target worker count: `number`, or what the cores allow (0); fewer while a GPU `lane` needs cores. If the cores
        decide, pass a new affinity on to `workers`."""
        if number and not lane:
            return number
        if now_s >= self._next_s:
            self._next_s = now_s + CHECK_S
            self._look(workers if not number else ())
        room = self._beside_lane if lane or self._lane else self._alone
        return min(number, room) if number else room

    def _look(self, workers: Sequence[WorkerHandle]) -> None:
        affinity = self._affinity if self._bound else affinity_of(self._parent) or self._affinity
        if affinity != self._affinity and workers:
            before, self._affinity = self._affinity, affinity
            move_to_cores(0, before, affinity)
            for worker in workers:
                worker.follow_cores(before, affinity)
        self._alone = workers_for(affinity, self._ranks, lane=False)
        self._beside_lane = workers_for(affinity, self._ranks, lane=True)
