"""What the GPU lane takes of workers: the share of samples that it makes from their files, searched from batch to batch, and whether its
kernels finish what workers decode. Pure.

Batches pass three stages: workers make them (and pack what they do not make), the lane makes what is packed, training uses them. The
slowest sets the pace. The share moves work from the first to the second; the best one makes them equally long, or is just large enough
that training waits for neither. What a sample costs in each stage is learned from who waits for whom, and the share follows from the
costs: what is seen now was decided many batches ago, so a share that was pushed up and down by who waits would swing.

Rule 1: while training itself is the bottleneck the lane takes no more than it must; nothing, where workers can do it alone. Finishing is
        the first that it takes and the last that it gives back: it is a few launches for many samples.
Rule 2: a share is only ever moved part of the way to where the costs say it should be: they are noisy, and change.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 0.1
"""The first share, large enough to learn from what the lane costs."""
MOVE = 0.3
MOST = 0.95
"""Some samples are always left to workers, so that what they cost stays known."""
LEAST = 0.02
FADE, QUICK = 0.2, 0.5
SLACK = 0.05
"""Share of a batch's time that a stage may wait before it counts as waiting."""
MARGIN = 0.04
"""The lane takes so much more than training needs: to wait costs more than to help in vain."""
DOUBT, MOST_DOUBTS = 0.03, 64
"""By how much workers are thought faster for each batch in a row that the lane did not wait for, and how many of those count."""
UNSEEN = 0.2
"""What a batch counts there that nobody waited for: how fast workers would be shows even less."""
ALONE = 0.85
"""Share of a step's time in which workers must be able to do all, before they are left alone with it."""
SETTLE = 48
"""Batches after a change of who finishes before it is looked at again: most of them were begun before it."""
CALM = 3
"""Batches in a row that training must have been the bottleneck before that counts."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One batch: how long the lane waited for it, worked on it, and had it ready before training asked; its samples and those that
    were packed; and the time since the batch before it was taken."""

    pull_s: float
    work_s: float
    put_s: float
    samples: int
    packed: int
    period_s: float
    gain: float = 1.0
    """By how much longer workers take to prepare a sample whole than to decode it."""


@dataclass(slots=True)
class ShareSearch:
    share: float = FIRST
    worker_s: float | None = None
    """Seconds per sample that workers prepare, all of them together."""
    lane_s: float | None = None
    """Seconds per sample that the lane prepares."""
    step_s: float | None = None
    """Seconds per sample that training takes, where it was the bottleneck."""
    finishes: bool = True
    """Whether the kernels finish what workers decode."""
    _calm: int = 0
    _settling: int = 0
    """Batches that are still to come from before `finishes` changed."""
    _unwaited: float = 0.0
    """Batches since the lane last waited for workers; those that training was the bottleneck for count less."""

    def on_workers(self, before: int, after: int) -> None:
        """There are more or fewer of them: together they are as much faster or slower."""
        if self.worker_s is not None and before > 0 and after > 0:
            self.worker_s *= before / after

    def on_batch(self, seen: Seen) -> float:
        """The share from now on."""
        if seen.period_s <= 0 or not seen.samples:
            return self.share
        self._learn(seen)
        self._consider_finishing(max(1.0, seen.gain))
        target = self._target()
        self.share += MOVE * (target - self.share)
        if self.share < LEAST:
            self.share = LEAST if target >= LEAST else 0.0
        return self.share

    def _consider_finishing(self, gain: float) -> None:
        """Workers alone take `gain` times as long: if that is fast enough for training, they do it alone. What was measured counts
        here, without doubts: to be wrong about it would make training wait."""
        worker_s, self._settling = self.worker_s, max(0, self._settling - 1)
        if self._settling or worker_s is None:
            if worker_s is None and self._calm >= CALM and not self.share:
                self.finishes = False  # nobody ever waited
            return
        if self.finishes:
            alone = self.step_s is not None and worker_s * gain < ALONE * self.step_s
            if alone and self._calm >= CALM and not self.share:
                self._change(False, gain)
        elif not self._calm:
            self._change(True, 1.0 / gain)

    def _change(self, finishes: bool, factor: float) -> None:
        self.finishes, self._settling = finishes, SETTLE
        if self.worker_s is not None:
            self.worker_s *= factor

    def _target(self) -> float:
        worker_s = self._workers()
        if worker_s is None:  # never waited for: training is the bottleneck, or they have not been seen yet
            return 0.0 if self._calm >= CALM else max(self.share, FIRST)
        needed = MOST
        if self.step_s is not None:
            spare = 1.0 - self.step_s / worker_s
            needed = spare + MARGIN if spare > 0.0 else 0.0
        if self.lane_s is None:
            return min(needed, max(self.share, FIRST))
        return min(needed, MOST, worker_s / (worker_s + self.lane_s))

    def _workers(self) -> float | None:
        if self.worker_s is None:
            return None
        return float(self.worker_s * (1.0 - DOUBT) ** min(MOST_DOUBTS, self._unwaited))

    def _learn(self, seen: Seen) -> None:
        prepared, step_s = seen.samples - seen.packed, seen.period_s / seen.samples
        self._calm = self._calm + 1 if seen.put_s > SLACK * seen.period_s else 0
        if self._calm >= CALM:
            self.step_s = faded(self.step_s, step_s)
        elif self.step_s is not None and not self._calm:
            self.step_s = min(self.step_s, step_s)
        if not self._calm and prepared and seen.pull_s > SLACK * seen.period_s:
            # While workers are behind, a batch comes as often as they make one.
            self.worker_s, self._unwaited = faded(self._workers(), seen.period_s / prepared, QUICK), 0
        else:
            self._unwaited += UNSEEN if self._calm else 1.0
        if seen.packed:
            self.lane_s = faded(self.lane_s, seen.work_s / seen.packed)


def faded(before: float | None, found: float, fade: float = FADE) -> float:
    return found if before is None else before + fade * (found - before)
