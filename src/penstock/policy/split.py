"""Where to split a chain of ops: the first part's results are kept, the rest is drawn anew for each use (Revamper, 4 and 7.2). Pure.

Rule 1: split i keeps the result of the ops before number i; ops from i on run anew each time. Split 0 keeps the decoded image.
Rule 2: a split is admissible if its final part gives enough diversity by Theorem 1, has more than `min_log_ratio` of the log of
        all outcomes (below that, diversity falls steeply as `times` grows), and no kept op must run anew.
Rule 3: the admissible split with the lowest cost per sample wins; of equals, the later one. Where costs add up, that is the one
        with the cheapest final part. A split that is not faster than keeping nothing is never taken.
Rule 4: reordering ops is only advice, and only where pixels stay the same for the same draws, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from penstock.errors import ConfigError
from penstock.policy.diversity import EPOCHS, diversity, log_ratio

MIN_DIVERSITY = 0.95
MIN_LOG_RATIO = 0.4
"""From the paper: above it, diversity hardly depends on how often samples are reused."""
FASTER = 1 + 1e-9
"""Smaller speed-ups are rounding errors."""
WORTH_IT = 1.02
"""Speed-up over the present plan from which another order of ops is offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOp:
    """One op of a chain."""

    name: str
    outcomes: int
    """Different results it can have for one image."""
    cost_s: float = 0.0
    """Seconds per sample."""
    anew: str = ""
    """Why its result may not be kept (draws shared by a batch, user code); empty if it may."""
    kinds: frozenset[str] = frozenset({"other"})
    """What it may do to pixels; see `INTERCHANGEABLE`."""

    def __post_init__(self) -> None:
        if self.outcomes < 1 or not self.cost_s >= 0:
            raise ConfigError(
                f"{self.name} must have at least 1 outcome and no negative cost, got {self.outcomes} and {self.cost_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Requirements on a split."""

    times: int
    """Uses of each kept sample."""
    min_diversity: float = MIN_DIVERSITY
    """Share of standard augmentation's different samples that must remain."""
    epochs: int = EPOCHS
    min_log_ratio: float = MIN_LOG_RATIO

    def __post_init__(self) -> None:
        if self.times < 1 or self.epochs < 1:
            raise ConfigError(f"times and epochs must be at least 1, got {self.times} and {self.epochs}")
        for name in ("min_diversity", "min_log_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be between 0 and 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds per sample, for each split. They need not add up: decoding may skip parts of an image that is not kept."""

    whole_s: float
    """From file to sample, keeping nothing."""
    partial_s: tuple[float, ...]
    """From file to kept result."""
    final_s: tuple[float, ...]
    """From kept result to sample."""
    read_s: tuple[float, ...]
    """To read a kept result."""

    def __post_init__(self) -> None:
        if not len(self.partial_s) == len(self.final_s) == len(self.read_s):
            raise ConfigError("costs must be given for the same splits")

    @classmethod
    def added(cls, parts: Sequence[ChainOp], *, before_s: float = 0.0, read_s: float = 0.0) -> Costs:
        """Build costs of ops that cost the same wherever the chain is split; `before_s`: to read and decode."""
        sums = tuple(accumulate((part.cost_s for part in parts), initial=before_s))
        left = tuple(math.fsum(part.cost_s for part in parts[at:]) for at in range(len(sums)))
        return cls(whole_s=before_s + left[0], partial_s=sums, final_s=left, read_s=(read_s,) * len(sums))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A line of the table."""

    at: int
    behind: str
    """The last op whose result is kept."""
    partial_s: float
    final_s: float
    cost_s: float
    """Per sample, each kept result being used `times` times."""
    saved_s: float
    """What a use of a kept result saves of the cost of a sample prepared from its file."""
    speed_up: float
    log_ratio: float
    diversity: float
    refused: str
    """Why it is not admissible; empty if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitChoice:
    split: Split | None
    """None: keep nothing."""
    why: str


def splits(parts: Sequence[ChainOp], costs: Costs, terms: Terms) -> list[Split]:
    """Return every split that has a cost, from the file to the end of the chain."""
    if not 0 < len(costs.final_s) <= len(parts) + 1:
        raise ConfigError(f"{len(parts)} ops have {len(parts) + 1} splits, got costs of {len(costs.final_s)}")
    every = math.prod(part.outcomes for part in parts)
    found = []
    for at, (partial_s, final_s, read_s) in enumerate(
        zip(costs.partial_s, costs.final_s, costs.read_s, strict=True)
    ):
        final = math.prod(part.outcomes for part in parts[at:])
        cost_s = final_s + partial_s / terms.times + read_s
        left, ratio = diversity(every, final, terms.times, terms.epochs), log_ratio(every, final)
        found.append(
            Split(
                at=at,
                behind=parts[at - 1].name if at else "decode",
                partial_s=partial_s,
                final_s=final_s,
                cost_s=cost_s,
                saved_s=costs.whole_s - final_s - read_s,
                speed_up=costs.whole_s / cost_s if cost_s else math.inf if costs.whole_s else 1.0,
                log_ratio=ratio,
                diversity=left,
                refused=refusal(parts[:at], left, ratio, terms),
            )
        )
    return found


def refusal(kept: Sequence[ChainOp], left: float, ratio: float, terms: Terms) -> str:
    for part in kept:
        if part.anew:
            return f"{part.name} must be done anew: {part.anew}"
    if left < terms.min_diversity:
        return f"diversity {left:.3f} is below {terms.min_diversity:g}"
    if ratio <= terms.min_log_ratio:
        return f"what is drawn anew has {ratio:.2f} of log|A|, not above {terms.min_log_ratio:g}"
    return ""


def latest(parts: Sequence[ChainOp], terms: Terms) -> int:
    """Return the latest admissible split, ignoring costs, so that every caller finds the same; 0 if only decoding can be kept."""
    every = math.prod(part.outcomes for part in parts)
    for at in range(len(parts), 0, -1):
        final = math.prod(part.outcomes for part in parts[at:])
        left = diversity(every, final, terms.times, terms.epochs)
        if not refusal(parts[:at], left, log_ratio(every, final), terms):
            return at
    return 0


def choose(parts: Sequence[ChainOp], costs: Costs, terms: Terms) -> SplitChoice:
    """Return the split to take, if any."""
    if terms.times == 1:
        return SplitChoice(
            split=None, why="each sample is used once, so that nothing is gained by keeping it"
        )
    faster = [split for split in splits(parts, costs, terms) if split.speed_up > FASTER]
    admissible = [split for split in faster if not split.refused]
    if admissible:
        best = min(admissible, key=order)
        what = (
            "the only admissible split" if len(admissible) == 1 else "of the admissible splits the cheapest"
        )
        return SplitChoice(split=best, why=what + beaten(best, faster))
    if faster:
        best = min(faster, key=order)
        return SplitChoice(
            split=None, why=f"the best split, behind {best.behind}, is not admissible: {best.refused}"
        )
    return SplitChoice(split=None, why="no split is faster than to prepare every sample anew")


def order(split: Split) -> tuple[float, int]:
    return split.cost_s, -split.at


def beaten(best: Split, faster: Sequence[Split]) -> str:
    """Say why a still cheaper split was not taken."""
    cheapest = min(faster, key=order)
    return "" if cheapest.at == best.at else f" (behind {cheapest.behind} {cheapest.refused})"


# ---- another order of the ops


INTERCHANGEABLE = frozenset({frozenset({"flip"}), frozenset({"flip", "pixel"}), frozenset({"crop", "pixel"})})
"""Kinds that commute: flips with each other; per-pixel changes with flips and with crops that leave their part as it is. Not flips
with crops (the place would differ), nor anything with image statistics, resizing or policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reordering:
    """Two neighbours that should change places."""

    at: int
    """Index of the first."""
    first: str
    second: str
    choice: SplitChoice
    """The split then taken."""
    gain: float
    """Speed-up over the present order."""


def interchangeable(first: ChainOp, second: ChainOp) -> bool:
    """Whether everything one op may do commutes with everything the other may do."""
    return all(frozenset({one, other}) in INTERCHANGEABLE for one in first.kinds for other in second.kinds)


def reorderings(
    parts: Sequence[ChainOp], terms: Terms, *, before_s: float = 0.0, read_s: float = 0.0
) -> list[Reordering]:
    """Return exchanges of neighbours that clearly improve the plan, best first. Assumes an op costs the same in both places."""

    def planned(ops: Sequence[ChainOp]) -> tuple[SplitChoice, float]:
        choice = choose(ops, Costs.added(ops, before_s=before_s, read_s=read_s), terms)
        return choice, choice.split.speed_up if choice.split is not None else 1.0

    _, now = planned(parts)
    found = []
    for at in range(len(parts) - 1):
        first, second = parts[at : at + 2]
        if not interchangeable(first, second):
            continue
        choice, then = planned([*parts[:at], second, first, *parts[at + 2 :]])
        if then >= WORTH_IT * now:
            found.append(
                Reordering(at=at, first=first.name, second=second.name, choice=choice, gain=then / now)
            )
    return sorted(found, key=lambda one: (-one.gain, one.at))
