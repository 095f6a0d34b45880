"""How training and the preparation lane share the GPU: not at all, in training's idle time, or concurrently. Pure.

Rule 1: a job that does not wait for batches gains nothing. The lane stays off until the job waits.
Rule 2: memory first. If the peaks of training and lane do not fit together, the lane may only use idle time.
Rule 3: a contest decides, by time per batch: "concurrent" against "off". "Idle" is tried if "concurrent" does not win, or
        lengthens training's own steps by more than it gains.
Rule 4: a difference counts if it exceeds its error. Otherwise both modes are measured again, in turns, and all measurements
        count; after `ROUNDS` rounds the gentler mode wins.
Rule 5: a choice is questioned when training waits and batches come more slowly than at the choice; a gentle mode also after a
        while, if training still waits. Each repeated contest doubles the rest before the next, so contests cost little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

BLOCK = 8
"""Batches averaged in one measurement."""
TURN, LONGEST_TURN = 4, 12
"""Blocks per turn of a mode; and the most, while batches still speed up (workers warm up)."""
SHORTEST_TURN, OBVIOUS = 2, 0.25
"""Blocks that suffice if all agree by far: training waits for, or saves, this share of its time."""
WARMING = 0.05
"""A turn continues while its newest block is this much faster than the others."""
ROUNDS = 4
"""Turns per mode before a contest ends without a clear winner."""
ERRORS = 2.0
"""Standard errors a difference must exceed."""
NORMAL = 1.4826 * 1.2533
"""From the median deviation to the standard error of a median, for normal deviations."""
WAITS = 0.02
"""Wait share from which training is worth helping."""
CLEARLY = 0.01
"""Gain from which a bolder mode is worth it."""
CHANGED = 0.15
"""A choice is doubtful when slower than its best by this share."""
RECENT, DOUBTS = 8, 6
"""Newest blocks of the chosen mode, and how many of them must be doubtful."""
SHORTEST_REST, LONGEST_REST = 16, 4096
"""Blocks after a choice in which doubts do not count, from the second contest on."""
LOOK_AGAIN = 256
"""Blocks after which a gentle mode is questioned anyway, if training still waits."""


class Sharing(StrEnum):
    OFF = "off"
    IDLE = "idle"
    """Temporal sharing: the lane works while the training stream is idle."""
    CONCURRENT = "concurrent"
    """Spatial sharing: the lane works beside training."""


class Memory(NamedTuple):
    """Peak device bytes of training and lane, each alone, and the device's total."""

    training: int
    lane: int
    total: int

    @property
    def fits(self) -> bool:
        return self.training + self.lane <= self.total


class Measured(NamedTuple):
    """Means over one block."""

    batch_s: float
    """From batch to batch."""
    wait_s: float
    """Training's wait for the batch, within that."""
    lane_worked: bool = True
    """Whether workers left the lane any work."""

    @property
    def step_s(self) -> float:
        """Training's own time."""
        return max(0.0, self.batch_s - self.wait_s)

    @property
    def wait_share(self) -> float:
        return self.wait_s / self.batch_s if self.batch_s > 0 else 0.0


class Trial(NamedTuple):
    mode: Sharing
    measured: Measured


class Contest(NamedTuple):
    """Two modes, measured in turns."""

    gentle: Sharing
    bold: Sharing

    def other(self, mode: Sharing) -> Sharing:
        return self.bold if mode is self.gentle else self.gentle


CONCURRENT_PAYS = Contest(Sharing.OFF, Sharing.CONCURRENT)
IDLE_PAYS = Contest(Sharing.OFF, Sharing.IDLE)
IDLE_IS_ENOUGH = Contest(Sharing.IDLE, Sharing.CONCURRENT)


@dataclass(frozen=True, slots=True)
class Choice:
    """The present mode, and how it was chosen."""

    mode: Sharing
    contest: Contest | None = None
    """The running contest."""
    turn: tuple[Measured, ...] = ()
    """Blocks of the present turn."""
    trials: tuple[Trial, ...] = ()
    """Blocks of the contests that led here."""
    usual: Measured | None = None
    """The mode's best performance, over some blocks."""
    recent: tuple[Measured, ...] = ()
    """Its newest blocks."""
    blocks: int = 0
    """Blocks since the choice."""
    rest: int = 0

    @property
    def trying(self) -> bool:
        return self.contest is not None


def first_choice(asked: str) -> Choice:
    """Return the mode the user asked for, which then stays; "auto" begins with training alone."""
    return Choice(Sharing.OFF, contest=CONCURRENT_PAYS) if asked == "auto" else Choice(Sharing(asked))


def after_block(choice: Choice, measured: Measured, *, asked: str, memory: Memory) -> Choice:
    """Return the mode for the next block."""
    if asked != "auto":
        return choice
    if choice.mode is Sharing.CONCURRENT and not memory.fits:
        return questioned(choice)
    if choice.contest is None:
        return in_use(choice, measured)
    turn = (*choice.turn, measured)
    is_long = len(turn) >= TURN or (len(turn) >= SHORTEST_TURN and is_obvious(choice, turn))
    if not is_long or (len(turn) < LONGEST_TURN and is_warming(turn)):
        return replace(choice, turn=turn)
    trials = (*choice.trials, *(Trial(choice.mode, each) for each in turn[-TURN:]))
    return after_turn(replace(choice, turn=(), trials=trials), choice.contest, memory)


def is_obvious(choice: Choice, turn: Sequence[Measured]) -> bool:
    """Whether all blocks show a large wait, or a large gain. Slow jobs are helped sooner."""
    if choice.mode is Sharing.OFF:
        return all(each.wait_share >= OBVIOUS for each in turn)
    alone = blocks_of(choice.trials, Sharing.OFF)
    fastest = min((each.batch_s for each in alone), default=0.0)
    return all(each.batch_s <= (1.0 - OBVIOUS) * fastest for each in turn)


def is_warming(turn: Sequence[Measured]) -> bool:
    """Whether batches still speed up from block to block."""
    *before, last = turn[-TURN:]
    return last.batch_s < (1.0 - WARMING) * fmean(each.batch_s for each in before)


def after_turn(choice: Choice, contest: Contest, memory: Memory) -> Choice:
    alone = blocks_of(choice.trials, Sharing.OFF)
    if choice.mode is Sharing.OFF and not waits(usual_of(alone)):
        return chosen(choice, Sharing.OFF)
    if contest.bold is Sharing.CONCURRENT and not memory.fits:
        contest = IDLE_PAYS
    gentle, bold = blocks_of(choice.trials, contest.gentle), blocks_of(choice.trials, contest.bold)
    if not gentle or not bold:
        return replace(choice, mode=contest.bold if not bold else contest.gentle, contest=contest)
    gain, error = gained(gentle, bold)
    if abs(gain - CLEARLY) <= error and min(len(gentle), len(bold)) < ROUNDS * TURN:
        fewer = contest.gentle if len(gentle) < len(bold) else contest.bold
        following = contest.other(choice.mode) if len(gentle) == len(bold) else fewer
        return replace(choice, mode=following, contest=contest)
    return after_contest(choice, contest.bold if gain > max(CLEARLY, error) else contest.gentle)


def after_contest(choice: Choice, winner: Sharing) -> Choice:
    """Return the winner, unless idle time has still to be tried."""
    tried_idle = bool(blocks_of(choice.trials, Sharing.IDLE))
    if not tried_idle and winner is Sharing.OFF:
        return replace(choice, mode=Sharing.IDLE, contest=IDLE_PAYS)
    if not tried_idle and winner is Sharing.CONCURRENT and slows_more_than_it_gains(choice.trials):
        return replace(choice, mode=Sharing.IDLE, contest=IDLE_IS_ENOUGH)
    return chosen(choice, winner)


def slows_more_than_it_gains(trials: Sequence[Trial]) -> bool:
    off = usual_of(blocks_of(trials, Sharing.OFF))
    beside = usual_of(blocks_of(trials, Sharing.CONCURRENT))
    return beside.step_s - off.step_s > off.batch_s - beside.batch_s


def chosen(choice: Choice, mode: Sharing) -> Choice:
    usual = usual_of(blocks_of(choice.trials, mode))
    return Choice(mode, trials=choice.trials, usual=usual, rest=choice.rest)


def questioned(choice: Choice) -> Choice:
    """Start a new contest, after which doubts rest for longer."""
    rest = min(LONGEST_REST, max(SHORTEST_REST, 2 * choice.rest))
    return Choice(Sharing.OFF, contest=CONCURRENT_PAYS, rest=rest)


def in_use(choice: Choice, measured: Measured) -> Choice:
    """Keep the mode, or question it. Turn off a lane that has nothing to do, which frees its cores."""
    recent, blocks = (*choice.recent, measured)[-RECENT:], choice.blocks + 1
    if len(recent) < RECENT:
        return replace(choice, recent=recent, blocks=blocks)
    if choice.mode is not Sharing.OFF and not any(waits(each) or each.lane_worked for each in recent):
        return Choice(Sharing.OFF, usual=usual_of(recent), rest=max(SHORTEST_REST, choice.rest))
    is_old = choice.mode is not Sharing.CONCURRENT and blocks >= LOOK_AGAIN
    doubts = sum(waits(each) and (is_old or is_slow(choice, each)) for each in recent)
    if doubts >= DOUBTS and blocks > choice.rest:
        return questioned(choice)
    now = usual_of(recent)
    best = now if choice.usual is None or now.batch_s < choice.usual.batch_s else choice.usual
    return replace(choice, recent=recent, blocks=blocks, usual=best)


def waits(measured: Measured) -> bool:
    return measured.wait_share >= WAITS


def is_slow(choice: Choice, measured: Measured) -> bool:
    """Whether batches come more slowly than they did; for a job that did not wait, any wait is slow."""
    if choice.usual is None or (choice.mode is Sharing.OFF and not waits(choice.usual)):
        return True
    return measured.batch_s > (1.0 + CHANGED) * choice.usual.batch_s


def blocks_of(trials: Sequence[Trial], mode: Sharing) -> list[Measured]:
    return [trial.measured for trial in trials if trial.mode is mode]


def usual_of(blocks: Sequence[Measured]) -> Measured:
    """Return medians: an evaluation mid-epoch makes one block as long as many."""
    return Measured(median(each.batch_s for each in blocks), median(each.wait_s for each in blocks))


def gained(gentle: Sequence[Measured], bold: Sequence[Measured]) -> tuple[float, float]:
    """Return the share of a batch's time that the bold mode saves, and its error."""
    (before, error), (after, other) = timed(gentle), timed(bold)
    return 1.0 - after / before, ERRORS * sqrt(error**2 + other**2) * after / before


def timed(blocks: Sequence[Measured]) -> tuple[float, float]:
    """Return the median batch time and its relative standard error."""
    times = [each.batch_s for each in blocks]
    middle = median(times)
    spread = NORMAL * median(abs(each - middle) for each in times)
    return middle, spread / sqrt(len(times)) / middle if middle > 0 else 0.0
