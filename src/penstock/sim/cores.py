"""A machine's cores under the virtual clock. Busy workers share them equally: are there more than cores, each is slower."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from penstock.sim.agenda import Agenda

CLOSE = 1e-12


class Cores:
    def __init__(self, agenda: Agenda, count: int) -> None:
        self.agenda, self.count = agenda, count
        self.busy_s = 0.0
        """Core seconds used so far."""
        self._running: list[tuple[float, int, Any, Callable[[], None]]] = []
        self._each_s = 0.0
        """Work that a worker busy from the beginning would have done."""
        self._since_s = 0.0
        self._plan = 0
        self._begun = 0

    def run(self, owner: Any, work_s: float, then: Callable[[], None]) -> None:
        """Call `then` when a worker of `owner` has done so much work."""
        self._pass()
        self._begun += 1
        heapq.heappush(self._running, (self._each_s + work_s, self._begun, owner, then))
        self._plan_next()

    def stop(self, owner: Any) -> None:
        """End all work of an owner."""
        self._pass()
        self._running = [one for one in self._running if one[2] is not owner]
        heapq.heapify(self._running)
        self._plan_next()

    @property
    def _speed(self) -> float:
        return min(1.0, self.count / max(1, len(self._running)))

    def _pass(self) -> None:
        """Account for the time since the last change."""
        passed_s = (self.agenda.now_s - self._since_s) * self._speed
        self._each_s += passed_s
        self.busy_s += passed_s * len(self._running)
        self._since_s = self.agenda.now_s

    def _plan_next(self) -> None:
        self._plan += 1
        if self._running:
            left_s = max(0.0, self._running[0][0] - self._each_s)
            self.agenda.after(left_s / self._speed, self._finish, self._plan)

    def _finish(self, plan: int) -> None:
        if plan != self._plan:
            return  # something changed meanwhile
        self._pass()
        done = []
        while self._running and self._running[0][0] <= self._each_s + CLOSE:
            done.append(heapq.heappop(self._running)[3])
        self._plan_next()
        for then in done:
            then()
