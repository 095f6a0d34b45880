"""The recent steady state of a run: how long training waited for batches, and the workers' cost per batch.

Rule 1: an epoch's first batch does not count: workers start, caches are empty. Nor do pauses of the training loop (validation, a
        checkpoint) or the time between epochs.
Rule 2: the window slides over the last `WINDOW_S` seconds, or the last `WINDOW_BATCHES` batches if these took longer. It restarts when
        the worker count or the GPU lane's mode changes: older numbers measure another setup.
Rule 3: if work is queued ahead on a device, training waits only while the device is idle. Where that is measured (`idled`), it replaces the
        time in `next()`.
Rule 4: taking a ready batch is not a wait. Its cost is counted separately (`handover_s`).

Times are arguments; nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

WINDOW_S, WINDOW_BATCHES = 30.0, 40
MARK_S = 1.0
"""Time between two marks; the window begins at one of them."""
HANDOVER_S = 0.001
"""Shorter waits are no waits if more batches were ready."""
PAUSE_S, PAUSE_TIMES, PAUSE_AFTER = 1.0, 10.0, 5
"""A step is a pause if it takes this many seconds and this many times the window's mean step, once the window has this many batches.
Two in a row are not pauses: steps have become slower."""


class Work(NamedTuple):
    """The workers' work so far."""

    prepared: int = 0
    """Samples prepared."""
    busy_ns: int = 0
    cpu_ns: int = 0
    delayed_ns: int = 0
    workers: int = 0
    """Present worker count, without those for borrowed cores; 0: unknown."""
    extra_ns: int = 0
    """Core-time borrowed, less that lent."""


class Mark(NamedTuple):
    """Sums over all counted batches, and the work so far, at one moment."""

    batches: int
    samples: int
    elapsed_s: float
    wait_s: float
    handover_s: float
    timed: int
    idle_s: float
    work: Work


@dataclass(slots=True)
class Steady:
    """Steady state of one loader over all its epochs. Used by the thread that takes batches; `recent` by any."""

    batches: int = 0
    samples: int = 0
    elapsed_s: float = 0.0
    wait_s: float = 0.0
    handover_s: float = 0.0
    timed: int = 0
    """Batches whose device idle time was measured."""
    idle_s: float = 0.0
    """Device idle time of those batches."""
    marks: deque[Mark] = field(default_factory=deque)
    workers: int = -1
    """Intended worker count."""
    mode: str = "off"
    """The GPU lane's mode."""
    present: int = 0
    """Actual worker count at the last look: lower than intended while a GPU lane needs cores."""
    is_first: bool = True
    """Whether the next batch is the first of its epoch."""
    was_slow: bool = False
    """Whether the last step was as long as a pause."""
    epochs: int = 0
    first_wait_s: float = 0.0
    """Waits for the first batch of each epoch after the first epoch."""

    def begin(self) -> None:
        """Begin an epoch."""
        self.is_first = True

    def delivered(
        self,
        *,
        period_s: float,
        wait_s: float,
        samples: int,
        ready: int,
        workers: int,
        mode: str,
        work: Callable[[], Work],
    ) -> None:
        """Count a batch that came after `wait_s`, `period_s` after the one before, with `ready` more ready. Calls `work` now and then."""
        if (workers, mode) != (self.workers, self.mode):
            base = work() if self.workers >= 0 else Work()
            self.workers, self.mode, self.present = workers, mode, 0
            self.marks = deque([self._mark(base)])
        if self.is_first:
            self.is_first = False
            self.first_wait_s += wait_s if self.epochs else 0.0
            self.epochs += 1
            return
        was_slow, self.was_slow = self.was_slow, self._is_slow(period_s - wait_s)
        if self.was_slow and not was_slow:
            return
        self.batches += 1
        self.samples += samples
        self.elapsed_s += period_s
        if is_handover(wait_s, ready):
            self.handover_s += wait_s
        else:
            self.wait_s += wait_s
        if self.elapsed_s - self.marks[-1].elapsed_s >= MARK_S:
            marks, done = self.marks, work()
            self.present = done.workers
            marks.append(self._mark(done))
            while len(marks) > 1 and self._is_enough(marks[1]):
                marks.popleft()

    @property
    def waited_s(self) -> float:
        """Time that training waited, by the device's idle time where that is measured."""
        return self.idle_s if self.timed else self.wait_s

    def idled(self, idle_s: float, ready: int) -> None:
        """Count the device's idle time before a batch, with `ready` more ready."""
        self.timed += 1
        if not is_handover(idle_s, ready):
            self.idle_s += idle_s

    def _mark(self, work: Work) -> Mark:
        return Mark._make([*(getattr(self, name) for name in Mark._fields[:-1]), work])

    def _is_slow(self, step_s: float) -> bool:
        if step_s < PAUSE_S:
            return False
        base = self.marks[0]
        batches = self.batches - base.batches
        return batches >= PAUSE_AFTER and step_s > PAUSE_TIMES * (self.elapsed_s - base.elapsed_s) / batches

    def _is_enough(self, mark: Mark) -> bool:
        """Return whether a window that begins at `mark` is long enough."""
        return self.elapsed_s - mark.elapsed_s >= WINDOW_S and self.batches - mark.batches >= WINDOW_BATCHES

    def recent(self, work: Work, elapsed_s: float) -> dict[str, Any]:
        """Return the window as `stats()["recent"]`. `work`: all work so far; `elapsed_s`: the time of all epochs."""
        now = self._mark(work)
        then = self.marks[0] if self.marks else Steady()._mark(Work())
        batches, samples, passed_s, wait_s, handover_s, timed, idle_s = (
            one - other for one, other in zip(now[:-1], then[:-1], strict=True)
        )
        if timed > 0:  # the device reports a batch some batches later
            wait_s = min(passed_s, idle_s * batches / timed)
        # Workers prefetch, so their work includes batches outside the window. Scale it to the samples inside.
        prepared, busy_ns, cpu_ns, delayed_ns, _, extra_ns = (
            one - other for one, other in zip(now.work, then.work, strict=True)
        )
        scale = samples / prepared / 1e9 if prepared > 0 else 0.0
        busy_s, cpu_s, delayed_s = (scale * ns for ns in (busy_ns, cpu_ns, delayed_ns))
        workers = work.workers or self.present or max(0, self.workers)
        extra = extra_ns / 1e9 / passed_s if passed_s > 0 else 0.0
        later = max(0, self.epochs - 1)
        return {
            "batches": batches,
            "samples": samples,
            "elapsed_s": passed_s,
            "wait_s": wait_s,
            "wait_share": min(1.0, wait_s / passed_s) if passed_s > 0 else 0.0,
            "workers": max(min(1, workers), round(workers + extra)),
            "borrowed_cores": extra,
            "waits_of": "device" if timed > 0 else "loop",
            "handover_s": handover_s,
            "busy_s": busy_s,
            "cpu_s": cpu_s,
            "delayed_s": delayed_s,
            "first_wait_s": self.first_wait_s / later if later else 0.0,
            "first_share": min(1.0, self.first_wait_s / elapsed_s) if elapsed_s > 0 else 0.0,
        }


def is_handover(wait_s: float, ready: int) -> bool:
    return wait_s <= HANDOVER_S and ready > 0
