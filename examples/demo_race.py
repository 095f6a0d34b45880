"""The demo's race: loaders take turns, beside the machine's limit, and the verdict."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from demo_photos import Trainer

import penstock

Step = Callable[[str, str], None]
LEAST_ROUNDS = 5
"""Those that a ratio needs."""
LIMIT_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Laps:
    """How a race is run."""

    rounds: int
    """How often the loaders take turns."""
    warm: int
    """Batches of a turn before the clock starts: workers start and their queues fill."""
    timed: int
    """Batches of a turn on the clock."""
    most_s: float
    """No new round after this, so that a slow machine also gets through in time."""


@dataclass(slots=True)
class Racer:
    """One loader, the network it feeds if any, and what was measured."""

    name: str
    loader: Any
    trainer: Trainer | None = None
    rates: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def turn(self, laps: Laps, step: Step) -> None:
        """Some batches of a new epoch; the first ones are not on the clock."""
        batches = iter(self.loader)
        began = waited = 0.0
        samples = 0
        for number in range(laps.warm + laps.timed):
            if number == laps.warm:
                began, waited, samples = time.perf_counter(), 0.0, 0
            asked = time.perf_counter()
            images, labels = next(batches)
            waited += time.perf_counter() - asked
            samples += len(images)
            if self.trainer is not None:
                self.trainer.step(images, labels)
            step(self.name, self.note())
        took = time.perf_counter() - began
        self.rates.append(samples / took)
        self.waits.append(waited / took)
        # The iterator goes here, and its workers with it: the other loader gets a quiet machine.
        del batches

    def note(self) -> str:
        return f"{median(self.rates):5.0f} images/s" if self.rates else ""


def race(
    racers: tuple[Racer, Racer], laps: Laps, step: Step, limit: Callable[[], float] | None = None
) -> float | None:
    """Runs it; the limit of the machine is measured in every round too, and its best round counts."""
    began = time.monotonic()
    limits: list[float] = []
    for number in range(laps.rounds):
        if number >= LEAST_ROUNDS and time.monotonic() - began > laps.most_s:
            break
        if limit is not None:
            limits.append(limit())
        # Whoever went second goes first in the next round: a machine that slows down is unfair to neither.
        for racer in racers if number % 2 == 0 else racers[::-1]:
            racer.turn(laps, step)
    return max(limits, default=None)


def believable(limit: float | None, rounds: Iterable[Sequence[float]]) -> float | None:
    """The limit, unless a loader went beyond it: then the machine was busy with something else while it was measured."""
    return None if limit is None or any(median(rates) > limit for rates in rounds) else limit


# ---- the limit of the machine


def preparing_rate(dataset: Any, *, batch: int, processes: int, seconds: float) -> float:
    """Images/s of preparation with no loader around it: as many processes as workers, each on its own, nothing carried anywhere."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(processes)
    rates: Any = context.SimpleQueue()

    def prepare(number: int) -> None:
        torch.set_num_threads(1)
        alone = penstock.DataLoader(dataset, batch, shuffle=True, num_workers=0, seed=number)
        batches = endless(alone)
        next(batches)
        start.wait(LIMIT_DEADLINE_S)
        began, done = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds:
            done += len(next(batches)[0])
        rates.put(done / took)

    children = [context.Process(target=prepare, args=(number,)) for number in range(processes)]
    for child in children:
        child.start()
    for child in children:
        child.join(LIMIT_DEADLINE_S)
    if any(child.exitcode != 0 for child in children):
        raise RuntimeError("the limit of the machine could not be measured")
    return float(sum(rates.get() for _ in children))


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def training_rate(trainer: Trainer, batch: tuple[torch.Tensor, torch.Tensor], *, seconds: float) -> float:
    """Images/s of training alone: the same batch again and again."""
    trainer.step(*batch)
    began, done = time.perf_counter(), 0
    while (took := time.perf_counter() - began) < seconds:
        trainer.step(*batch)
        done += len(batch[0])
    return done / took


def training_limit(*, training: float, preparing: float, workers: int, cores: int) -> float:
    """Images/s at best where workers and training share the cores: every core busy, with nothing else.

    training: rate of training alone, on one core.  preparing: rate of `workers` processes that only prepare.
    """
    core_s = 1 / training + min(workers, cores) / preparing
    return min(training, preparing, cores / core_s)


def no_gain(theirs: Racer, ours: Racer) -> str:
    """Why a race was a draw, from what was measured."""
    return (
        f"Training is the limit: it waits {median(theirs.waits):.0%} of the time for torch's loader and {median(ours.waits):.0%} for ours, "
        f"and no loader can give back more than that."
    )
