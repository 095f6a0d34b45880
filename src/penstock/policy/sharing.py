"""How the GPU is shared between training and the preparation lane: not at all, in training's idle time, or beside it. Pure.

Rule 1: a job that does not wait for batches has nothing to gain: the lane stays off and costs nothing, until the job waits.
Rule 2: memory first. Where the peaks of training and of the lane do not fit together, the lane may only use idle time.
Rule 3: then a short trial of each way decides, by whole batches per second: what training loses by sharing is in that.
        A way must be clearly better to be preferred to a gentler one.
Rule 4: the choice is looked at again when its measure changes, when lanes or memory change, and now and then; more rarely each
        time that it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

WINDOW = 16
"""Batches that one measurement is made of; the first few after a change of mode are not counted by whoever measures."""
WAITS = 0.02
"""Share of waiting from which on preparation is worth help."""
CLEARLY = 0.01
"""Gain that makes a way worth it."""
CHANGED = 0.10
"""Change of a batch's time that makes a choice doubtful."""
DOUBTS = 2
"""Windows in a row that it must be there."""
SOONEST, LATEST = 32, 1024
"""Windows after which a choice is looked at again by itself: at first, and after it has stood several times."""


class Sharing(StrEnum):
    OFF = "off"
    IDLE = "idle"
    """Temporal sharing: the lane works while the training stream is idle."""
    CONCURRENT = "concurrent"
    """Spatial sharing: the lane works beside training."""


GENTLEST_FIRST = (Sharing.OFF, Sharing.IDLE, Sharing.CONCURRENT)


class Memory(NamedTuple):
    """Peak device bytes of training and of the lane, each alone, and what there is."""

    training: int
    lane: int
    total: int

    @property
    def fits(self) -> bool:
        return self.training + self.lane <= self.total


class Measured(NamedTuple):
    """Means over one window."""

    batch_s: float
    """From batch to batch."""
    wait_s: float
    """Of which training waited for the batch."""
    step_s: float
    """Time of a training step on the device, by its events."""

    @property
    def wait_share(self) -> float:
        return self.wait_s / self.batch_s if self.batch_s > 0 else 0.0


class Trial(NamedTuple):
    mode: Sharing
    measured: Measured


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the choice stands: what runs now, and what is still to be tried."""

    mode: Sharing
    untried: tuple[Sharing, ...] = ()
    """Modes of the trial that goes on, behind the one that runs."""
    trials: tuple[Trial, ...] = ()
    """Results of the trial that goes on or was the last."""
    trying: bool = False
    doubts: int = 0
    windows: int = 0
    """Windows since the choice."""
    patience: int = SOONEST

    @property
    def inflation(self) -> float:
        """By how much the mode makes a training step longer, as the last trial found: 0.03 is 3 %."""
        steps = {trial.mode: trial.measured.step_s for trial in self.trials}
        off = steps.get(Sharing.OFF, 0.0)
        return steps[self.mode] / off - 1.0 if off > 0 and self.mode in steps else 0.0


def first_choice(asked: str) -> Choice:
    """What runs first. `asked` is the user's word: a mode, which then stays, or "auto", for which the job is measured alone first."""
    return Choice(Sharing.OFF, trying=True) if asked == "auto" else Choice(Sharing(asked))


def after_window(choice: Choice, measured: Measured, *, asked: str, memory: Memory) -> Choice:
    """What runs in the next window."""
    if asked != "auto":
        return choice
    if choice.mode is Sharing.CONCURRENT and not memory.fits:
        return Choice(Sharing.OFF, trying=True)
    if choice.trying:
        return after_trial(choice, Trial(choice.mode, measured), memory)
    return after_use(choice, measured)


def reconsidered(choice: Choice, *, asked: str) -> Choice:
    """Workers, memory or the job have changed: measure anew, unless the user has decided."""
    return Choice(Sharing.OFF, trying=True) if asked == "auto" else choice


def after_trial(choice: Choice, trial: Trial, memory: Memory) -> Choice:
    trials = (*choice.trials, trial)
    untried = choice.untried
    if trial.mode is Sharing.OFF:
        if trial.measured.wait_share < WAITS:
            return decided(choice, trials)
        untried = (Sharing.IDLE, Sharing.CONCURRENT) if memory.fits else (Sharing.IDLE,)
    if untried:
        return replace(choice, mode=untried[0], untried=untried[1:], trials=trials)
    return decided(choice, trials)


def decided(choice: Choice, trials: tuple[Trial, ...]) -> Choice:
    return Choice(preferred(trials), trials=trials, patience=choice.patience)


def preferred(trials: tuple[Trial, ...]) -> Sharing:
    """The gentlest way that no other is clearly faster than."""
    times = {trial.mode: trial.measured.batch_s for trial in trials}
    chosen = Sharing.OFF
    for mode in GENTLEST_FIRST:
        if mode in times and times[mode] < times[chosen] * (1.0 - CLEARLY):
            chosen = mode
    return chosen


def after_use(choice: Choice, measured: Measured) -> Choice:
    """Keep the mode, or try all again."""
    windows = choice.windows + 1
    if choice.mode is Sharing.OFF and measured.wait_share < WAITS:
        return replace(choice, windows=windows, doubts=0)
    doubts = choice.doubts + 1 if is_doubtful(choice, measured) else 0
    if doubts >= DOUBTS:
        return Choice(Sharing.OFF, trying=True)
    if windows >= choice.patience:
        return Choice(Sharing.OFF, trying=True, patience=min(LATEST, 2 * choice.patience))
    return replace(choice, windows=windows, doubts=doubts)


def is_doubtful(choice: Choice, measured: Measured) -> bool:
    """The mode is not what it was when it was chosen, or there is waiting where there was none."""
    then = next((trial.measured for trial in choice.trials if trial.mode is choice.mode), None)
    if then is None:
        return False
    if choice.mode is Sharing.OFF and then.wait_share < WAITS <= measured.wait_share:
        return True
    return abs(measured.batch_s - then.batch_s) > CHANGED * then.batch_s
