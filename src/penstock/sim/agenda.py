"""Virtual time. Planned calls happen in order of time, ties in order of planning: a run is a function of its seed."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any


class Agenda:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps = 0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time_s: float, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._planned, (time_s, self._count, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self.at(self.now_s + delay_s, call, *args)

    def step(self) -> bool:
        """Run the next planned call; False if there is none."""
        if not self._planned:
            return False
        self._happen(heapq.heappop(self._planned))
        return True

    def step_out_of_turn(self, which: int) -> None:
        """Run a call before its turn, as on a machine where anything may take any time."""
        planned = sorted(self._planned)
        chosen = planned.pop(which % len(planned))
        self._planned = planned
        self._happen(chosen)

    def _happen(self, planned: tuple[float, int, Callable[..., None], tuple[Any, ...]]) -> None:
        time_s, _, call, args = planned
        self.now_s = max(self.now_s, time_s)
        self.steps += 1
        call(*args)


class Link:
    """Messages from one process to another: in order, each after a delay; dropped once the reader is gone. A partition holds
    them back, and delivers them at its end or never."""

    def __init__(self, agenda: Agenda, delay: Callable[[], float], read: Callable[[Any], None]) -> None:
        self._agenda, self._delay, self._read = agenda, delay, read
        self._under_way: deque[Any] = deque()
        self._newest_s = 0.0
        self._opens_s = 0.0
        self._broken = 0
        self.cut = False

    def send(self, message: Any) -> None:
        self._under_way.append(message)
        self._newest_s = max(self._newest_s, self._agenda.now_s + self._delay())
        self._agenda.at(self._newest_s, self._arrive, self._broken)

    @property
    def silent(self) -> bool:
        return self._agenda.now_s < self._opens_s

    def hold(self, until_s: float) -> None:
        """Deliver nothing until then."""
        self._opens_s = max(self._opens_s, until_s)

    def reset(self) -> None:
        """Lose what is under way, and deliver again from now on."""
        self._under_way.clear()
        self._broken += 1
        self._opens_s = 0.0

    def _arrive(self, broken: int) -> None:
        if broken != self._broken:
            return
        if self.silent:
            self._agenda.at(self._opens_s, self._arrive, broken)
            return
        message = self._under_way.popleft()
        if not self.cut:
            self._read(message)
