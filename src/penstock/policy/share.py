"""What share of the samples the GPU lane takes, searched from batch to batch. Pure.

Batches pass two stages one after the other: workers make them (and pack what they do not make), the lane makes what is packed and
brings all of it to the device. The slower stage sets the pace, and the share moves work between them: the best one makes both
equally long. Which one is longer shows in who waits for whom: the lane for workers (`pull_s`), or the training loop for neither
(`put_s`: the lane waits for room). What a sample costs in each stage is learned meanwhile, so the search does not creep.

Rule 1: while training itself is the bottleneck the share goes to nothing, and costs nothing.
Rule 2: a share is only ever moved part of the way to where the costs say it should be: they are noisy, and change.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 0.1
"""The first share, large enough to learn from what the lane costs."""
MOVE = 0.5
MOST = 0.95
"""Some samples are always left to workers, so that what they cost stays known."""
LEAST = 0.02
FADE = 0.3
SLACK = 0.05
"""Share of a batch's time that a stage may wait before it counts as waiting."""
DOUBT = 0.03
MOST_DOUBT = 0.3
"""By how much workers are thought faster for each batch in a row that the lane did not wait for."""
CALM = 3
"""Batches in a row that training must have been the bottleneck before the lane steps back."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One batch: how long the lane waited for it, worked on it, and waited to hand it on; its samples and those that were packed."""

    pull_s: float
    work_s: float
    put_s: float
    samples: int
    packed: int


@dataclass(slots=True)
class ShareSearch:
    share: float = FIRST
    worker_s: float | None = None
    """Seconds per sample that workers prepare, all of them together."""
    lane_s: float | None = None
    """Seconds per sample that the lane prepares."""
    _calm: int = 0
    _doubt: float = 0.0

    def on_batch(self, seen: Seen) -> float:
        """The share from now on."""
        period_s = seen.pull_s + seen.work_s + seen.put_s
        if period_s <= 0 or not seen.samples:
            return self.share
        self._calm = self._calm + 1 if seen.put_s > SLACK * period_s else 0
        if self._calm >= CALM:
            self.share = self.share / 2 if self.share > LEAST else 0.0
            return self.share
        if self._calm:
            return self.share
        self._learn(seen, period_s)
        if self.lane_s is None or self.worker_s is None:
            self.share = max(self.share, FIRST)
            return self.share
        best = min(MOST, self.worker_s / (self.worker_s + self.lane_s))
        self.share += MOVE * (best - self.share)
        self.share = max(self.share, LEAST)
        return self.share

    def _learn(self, seen: Seen, period_s: float) -> None:
        prepared = seen.samples - seen.packed
        if prepared and (seen.pull_s > SLACK * period_s or self.worker_s is None):
            self.worker_s, self._doubt = faded(self.worker_s, period_s / prepared), 0.0
        elif self.worker_s is not None:  # the lane did not wait: workers may be faster than they had to be
            self._doubt = min(MOST_DOUBT, self._doubt + DOUBT)
            self.worker_s *= 1.0 - self._doubt
        if seen.packed:
            self.lane_s = faded(self.lane_s, seen.work_s / seen.packed)


def faded(before: float | None, found: float) -> float:
    return found if before is None else before + FADE * (found - before)
