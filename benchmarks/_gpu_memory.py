"""What preparing on the GPU costs of its memory.

fit: with so much of the card free, the largest batch that trains, by bisection; each trial has a loader of its own and a few steps.
tight: with one hundredth of the card free beyond what training peaks at, many steps with the lane on: nothing may fail, and once
warm nobody may ask the driver for memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from _gpu_card import Card, card_of, is_shortage
from _gpu_feeds import Ground, feeding, resident
from _gpu_measure import Training, lane_figures
from _gpu_plan import SUBJECTS, Choice, Job

FREE_BYTES = 24_000_000_000
TOLERANCE = 0.01
TRIAL_STEPS = 6
SETTLED_STEPS = 50
"""After which nobody may ask for memory."""
PEAK_STEPS = 12
SLACK = 0.01


# ---- the search


def bracketed(fits: Callable[[int], bool], low: int) -> tuple[int, int]:
    """A size that fits and one that does not, by doubling or halving; 0 where none fits."""
    if fits(low):
        high = 2 * low
        while fits(high):
            low, high = high, 2 * high
        return low, high
    while low > 1:
        low, high = low // 2, low
        if fits(low):
            return low, high
    return 0, 1


def largest(fits: Callable[[int], bool], low: int, high: int, tolerance: float = TOLERANCE) -> int:
    """The largest that fits, to a part of itself; `low` does, `high` does not."""
    while high - low > max(1, int(low * tolerance)):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


# ---- the two measurements


@contextmanager
def untuned() -> Any:
    """Without trials of algorithms: they take memory as it happens to be free, and time with each size."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class Fit:
    """Trials of batch sizes."""

    def __init__(self, job: Job, training: Training, ground: Ground, card: Card) -> None:
        self.job, self.training, self.ground, self.card = job, training, ground, card
        self.trials: list[tuple[int, bool]] = []
        self.lane_share = 0.0

    def __call__(self, batch: int) -> bool:
        fitted = self._trains(batch)
        self.training.optimizer.zero_grad(set_to_none=True)
        self.card.clean()
        self.trials.append((batch, fitted))
        return fitted

    def _trains(self, batch: int) -> bool:
        try:
            self.card.check(batch)
            with feeding(replace(self.job, batch=batch), SUBJECTS[self.job.subject], self.ground) as feed:
                before = feed.lane()
                for _ in range(TRIAL_STEPS):
                    self.training.step(*next(feed.batches))
                self.training.finish()
                self.lane_share = lane_figures(before, feed.lane()).get("lane_share", 0.0)
        except Exception as error:
            if not is_shortage(error):
                raise
            return False
        return True


def fit(job: Job, training: Training, ground: Ground) -> dict[str, Any]:
    card = card_of(ground.device)
    with untuned():
        training.step(*next(resident(2, ground.device)))  # the optimizer's state is there from now on
        card.clean()
        ballast = card.held(card.free_and_total()[0] - FREE_BYTES)
        trial = Fit(job, training, ground, card)
        free = card.free_and_total()[0]
        found = largest(trial, *bracketed(trial, job.batch))
        left = card.free_and_total()[0]
        del ballast
        card.clean()
    figures = {"largest_batch": found, "free_gb": free / 1e9, "free_after_gb": left / 1e9}
    return {**figures, "trials": trial.trials, "lane_share": trial.lane_share}


def tight(job: Job, training: Training, ground: Ground, chosen: Choice) -> dict[str, Any]:
    card = card_of(ground.device)

    def trained(subject: str, steps: int) -> None:
        with feeding(job, SUBJECTS[subject], ground) as feed:
            for _ in range(steps):
                training.step(*next(feed.batches))
            training.finish()

    trained("off", PEAK_STEPS)  # algorithms are chosen, in memory that they do not need later
    card.clean()
    peak = card.peak(lambda: trained("off", PEAK_STEPS))
    card.clean()
    free, total = card.free_and_total()
    room = peak - card.reserved() + int(SLACK * total)
    ballast = card.held(free - room)
    try:
        return tight_steps(job, training, ground, chosen, card) | {
            "peak_gb": peak / 1e9,
            "room_gb": room / 1e9,
        }
    finally:
        del ballast
        card.clean()


def tight_steps(job: Job, training: Training, ground: Ground, chosen: Choice, card: Card) -> dict[str, Any]:
    with feeding(job, SUBJECTS[job.subject], ground) as feed:
        for _ in range(min(SETTLED_STEPS, chosen.steps)):
            training.step(*next(feed.batches))
        training.finish()
        before, free, lane = card.counts(), card.free_and_total()[0], feed.lane()
        least = free
        for step in range(chosen.steps):
            training.step(*next(feed.batches))
            if step % 50 == 0:
                least = min(least, card.free_and_total()[0])
        training.finish()
        after = card.counts()
        figures: dict[str, Any] = {name: after[name] - before.get(name, 0) for name in after}
        figures |= lane_figures(lane, feed.lane())
    gone = {"free_gb": free / 1e9, "least_free_gb": least / 1e9}
    return {"steps": chosen.steps, **figures, **gone}


def memory(job: Job, training: Training, ground: Ground, chosen: Choice) -> dict[str, Any]:
    if job.group == "fit":
        return fit(job, training, ground)
    return tight(job, training, ground, chosen)
