"""Training while the number of workers changes: images/s between changes, and the longest wait after each.

A loop runs ahead of its device, so what it waits for a batch is not what training loses: that is how long the device had nothing to do between
two steps (`idle`), by the device's own clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from _gpu_feeds import Feed, Ground, feeding
from _gpu_measure import Pace, Training, lane_figures, warm_up, window_of
from _gpu_plan import SUBJECTS, Choice, Job

ABOUT_S = 3.0
"""After a change, in which waits are laid to it."""


class Step(NamedTuple):
    """One batch: when it was trained on, how many images, how long it was waited for, by the loop and by the device."""

    at_s: float
    images: int
    wait_s: float
    idle_s: float = 0.0


class Idle:
    """How long a device had nothing to do before each step; without a device of its own, how long the loop waited."""

    def __init__(self, device: str) -> None:
        self._marks: list[tuple[Any, Any]] | None = None if device == "cpu" else []

    def mark(self) -> Any:
        """The moment at which the device comes to this point."""
        if self._marks is None:
            return None
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def step(self, begun: Any) -> None:
        """A step was told to the device behind the mark `begun`."""
        if self._marks is not None:
            self._marks.append((begun, self.mark()))

    def of(self, steps: Sequence[Step]) -> list[Step]:
        """The steps with it; when the device has done them all."""
        if self._marks is None:
            return [step._replace(idle_s=step.wait_s) for step in steps]
        before = [self._marks[0][0], *(end for _, end in self._marks[:-1])]
        idle = [end.elapsed_time(begin) / 1e3 for end, (begin, _) in zip(before, self._marks, strict=True)]
        return [step._replace(idle_s=each) for step, each in zip(steps, idle, strict=True)]


def about(steps: Sequence[Step], changes: Sequence[tuple[float, int]], end_s: float) -> list[dict[str, Any]]:
    """Of each stretch between changes: its workers, its images/s once it has settled, the longest wait after it began and later."""
    found = []
    ends = [at for at, _ in changes[1:]] + [end_s]
    for (begin, workers), end in zip(changes, ends, strict=True):
        within = [step for step in steps if begin <= step.at_s < end]
        early = [step for step in within if step.at_s < begin + ABOUT_S]
        later = [step for step in within if step.at_s >= begin + ABOUT_S]
        settled = (
            sum(step.images for step in later) / (end - begin - ABOUT_S) if end > begin + ABOUT_S else 0.0
        )
        found.append(
            {
                "at_s": begin,
                "workers": workers,
                "images_per_s": settled,
                "longest_wait_ms": 1e3 * max((step.wait_s for step in early), default=0.0),
                "longest_wait_later_ms": 1e3 * max((step.wait_s for step in later), default=0.0),
                "longest_idle_ms": 1e3 * max((step.idle_s for step in early), default=0.0),
                "longest_idle_later_ms": 1e3 * max((step.idle_s for step in later), default=0.0),
            }
        )
    return found


def trained(
    training: Training, feed: Feed, chosen: Choice
) -> tuple[list[Step], list[tuple[float, int]], float]:
    """The steps, and when there were to be how many workers; the first entry is the beginning."""
    pace, idle, steps = Pace(training.device), Idle(training.device), list[Step]()
    left = list(chosen.crew[1:])
    changes = [(0.0, chosen.crew[0])]
    start = time.perf_counter()
    while (now := time.perf_counter() - start) < chosen.period * len(chosen.crew):
        if left and now >= chosen.period * len(changes):
            feed.loader.set_workers(left[0])
            changes.append((now, left.pop(0)))
        asked = time.perf_counter()
        batch = next(feed.batches)
        wait_s = time.perf_counter() - asked
        begun = idle.mark()
        training.step(*batch)
        idle.step(begun)
        pace()
        steps.append(Step(time.perf_counter() - start, len(batch[0]), wait_s))
    training.finish()
    return idle.of(steps), changes, time.perf_counter() - start


def workers(job: Job, training: Training, ground: Ground, chosen: Choice) -> dict[str, Any]:
    with feeding(job, SUBJECTS[job.subject], ground) as feed:
        warm_up(training, feed, window_of(job, chosen))
        lane = feed.lane()
        steps, changes, took = trained(training, feed, chosen)
        figures = lane_figures(lane, feed.lane())
    return {
        "images_per_s": sum(step.images for step in steps) / took,
        "changes": about(steps, changes, took),
        **figures,
    }
