"""Shares of unequal workers by deficit counters. Pure and deterministic.

A worker's deficit is its share of all tasks so far, less the tasks it got. The next task goes to the worker in deficit whose
deficit would first reach one task (worst-case fair queueing, WF2Q).

Rule 1: while rates stay, each worker's count is within one task of its share. Over a window that begins later: within two.
Rule 2: a new rate counts from now on. Deficits stay, so frequent changes starve nobody.
Rule 3: a new worker begins without a deficit. The deficit of one that leaves is divided among the others by their rates.
Rule 4: who cannot take a task (a full queue) neither gets one nor is owed one.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Generic, TypeVar

Worker = TypeVar("Worker", bound=Hashable)
TINY = 1e-9
"""Rounding error of a deficit."""


class Deficits(Generic[Worker]):
    def __init__(self, rates: Mapping[Worker, float] | None = None) -> None:
        self.rates: dict[Worker, float] = {}
        self.owed: dict[Worker, float] = {}
        """Tasks that each worker is behind its share; negative: ahead. They add up to 0."""
        self.change(rates or {})

    def change(self, rates: Mapping[Worker, float]) -> None:
        """Set all workers and their rates; workers not named leave. A rate of 0 gets nothing. Order breaks ties."""
        if any(not 0 <= rate < float("inf") for rate in rates.values()):
            raise ValueError(f"rates must be finite and >= 0: {rates}")
        left_over = sum(owed for worker, owed in self.owed.items() if not rates.get(worker))
        self.rates = {worker: rate for worker, rate in rates.items() if rate > 0}
        total = sum(self.rates.values())
        self.owed = {
            worker: self.owed.get(worker, 0.0) + left_over * rate / total
            for worker, rate in self.rates.items()
        }

    def shares(self) -> dict[Worker, float]:
        total = sum(self.rates.values())
        return {worker: rate / total for worker, rate in self.rates.items()}

    def pick(self, among: Collection[Worker] | None = None) -> Worker | None:
        """Give the next task to a worker and return it; None if nobody can take it."""
        able = [worker for worker in self.rates if among is None or worker in among]
        if not able:
            return None
        total = sum(self.rates[worker] for worker in able)
        in_deficit = [worker for worker in able if self.owed[worker] >= -TINY] or able
        chosen = min(in_deficit, key=lambda worker: (1.0 - self.owed[worker]) / self.rates[worker])
        for worker in able:
            self.owed[worker] += self.rates[worker] / total
        self.owed[chosen] -= 1.0
        return chosen
