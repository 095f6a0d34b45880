"""Where to cut a chain of ops, so that the results of the first are kept and the rest is drawn anew for each use (Revamper, 4 and 7.2). Pure.

Rule 1: split i keeps what the ops before number i have made, from the file on; ops from i on are done anew each time. Split 0 keeps
        the decoded image.
Rule 2: a split is admissible where what is drawn anew gives enough diversity by Theorem 1, has more than `min_log_ratio` of the
        logarithm of all outcomes (below that, diversity falls steeply as `times` grows), and where no op that must be done anew is kept.
Rule 3: of those, the one that costs the least per sample is taken, and the later one of two that cost the same. Where costs add up that is
        the one with the cheapest final part. None is taken that would not be faster than to keep nothing.
Rule 4: ops are exchanged in thought only, and only where pixels stay the same for the same draws, bit for bit.
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
"""The paper's: above it, diversity hardly depends on how often samples are used."""
FASTER = 1 + 1e-9
"""Speed-up below this is rounding."""
WORTH_IT = 1.02
"""Speed-up over the plan as it is from which on another order of ops is offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One op of a chain."""

    name: str
    outcomes: int
    """Different results that it can have for one image."""
    cost_s: float = 0.0
    """Seconds per sample."""
    anew: str = ""
    """Why its result may not be kept: draws that a batch shares, code of the user's. Nothing where it may."""
    kinds: frozenset[str] = frozenset({"other"})
    """What it may do to pixels; see `INTERCHANGEABLE`."""

    def __post_init__(self) -> None:
        if self.outcomes < 1 or not self.cost_s >= 0:
            raise ConfigError(
                f"{self.name} must have at least 1 outcome and no negative cost, got {self.outcomes} and {self.cost_s}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is wanted of a split."""

    times: int
    """Uses of each kept sample."""
    min_diversity: float = MIN_DIVERSITY
    """Of the different samples that standard augmentation gives, the share that must be left."""
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
    """Seconds per sample, for each split. They need not add up: of an image that need not be kept, less may have to be decoded."""

    whole_s: float
    """From the file to the sample, where nothing is kept."""
    partial_s: tuple[float, ...]
    """From the file to what is kept."""
    final_s: tuple[float, ...]
    """From what is kept to the sample."""
    read_s: tuple[float, ...]
    """To get at what is kept."""

    def __post_init__(self) -> None:
        if not len(self.partial_s) == len(self.final_s) == len(self.read_s):
            raise ConfigError("costs must be given for the same splits")

    @classmethod
    def added(cls, parts: Sequence[Part], *, before_s: float = 0.0, read_s: float = 0.0) -> Costs:
        """Of ops that cost the same wherever the chain is cut; `before_s`: to read and decode."""
        sums = tuple(accumulate((part.cost_s for part in parts), initial=before_s))
        left = tuple(math.fsum(part.cost_s for part in parts[at:]) for at in range(len(sums)))
        return cls(whole_s=before_s + left[0], partial_s=sums, final_s=left, read_s=(read_s,) * len(sums))


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One line of the table."""

    at: int
    behind: str
    """The last op whose result is kept."""
    partial_s: float
    final_s: float
    cost_s: float
    """Per sample, with each kept sample used `times` times."""
    saved_s: float
    """Of what a sample costs where nothing is kept: what a use of a kept one does not cost."""
    speed_up: float
    log_ratio: float
    diversity: float
    refused: str
    """Why it is not admissible; nothing where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    split: Split | None
    """None: nothing should be kept."""
    why: str


def splits(parts: Sequence[Part], costs: Costs, terms: Terms) -> list[Split]:
    """Every split that has a cost, from the file to the end of the chain."""
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
                speed_up=times_faster(costs.whole_s, cost_s),
                log_ratio=ratio,
                diversity=left,
                refused=refusal(parts[:at], left, ratio, terms),
            )
        )
    return found


def times_faster(before_s: float, now_s: float) -> float:
    return before_s / now_s if now_s else math.inf if before_s else 1.0


def refusal(kept: Sequence[Part], left: float, ratio: float, terms: Terms) -> str:
    for part in kept:
        if part.anew:
            return f"{part.name} must be done anew: {part.anew}"
    if left < terms.min_diversity:
        return f"diversity {left:.3f} is below {terms.min_diversity:g}"
    if ratio <= terms.min_log_ratio:
        return f"what is drawn anew has {ratio:.2f} of log|A|, not above {terms.min_log_ratio:g}"
    return ""


def latest(parts: Sequence[Part], terms: Terms) -> int:
    """The latest admissible split, whatever ops cost, so that whoever asks finds the same; 0 where only decoding can be kept."""
    every = math.prod(part.outcomes for part in parts)
    for at in range(len(parts), 0, -1):
        final = math.prod(part.outcomes for part in parts[at:])
        left = diversity(every, final, terms.times, terms.epochs)
        if not refusal(parts[:at], left, log_ratio(every, final), terms):
            return at
    return 0


def choose(parts: Sequence[Part], costs: Costs, terms: Terms) -> Choice:
    """The split to take, if any."""
    if terms.times == 1:
        return Choice(split=None, why="each sample is used once, so that nothing is gained by keeping it")
    faster = [split for split in splits(parts, costs, terms) if split.speed_up > FASTER]
    admissible = [split for split in faster if not split.refused]
    if admissible:
        best = min(admissible, key=order)
        what = (
            "the only admissible split" if len(admissible) == 1 else "of the admissible splits the cheapest"
        )
        return Choice(split=best, why=what + beaten(best, faster))
    if faster:
        best = min(faster, key=order)
        return Choice(
            split=None, why=f"the best split, behind {best.behind}, is not admissible: {best.refused}"
        )
    return Choice(split=None, why="no split is faster than to prepare every sample anew")


def order(split: Split) -> tuple[float, int]:
    return split.cost_s, -split.at


def beaten(best: Split, faster: Sequence[Split]) -> str:
    """What stands against a split that would be cheaper still."""
    cheapest = min(faster, key=order)
    return "" if cheapest.at == best.at else f" (behind {cheapest.behind} {cheapest.refused})"


# ---- another order of the ops


INTERCHANGEABLE = frozenset({frozenset({"flip"}), frozenset({"flip", "pixel"}), frozenset({"crop", "pixel"})})
"""Kinds of which two may change places: flips with each other; what changes each pixel by itself with flips and with crops that leave a
part as it is. Not flips with crops (the place would be another), nor anything with statistics of the image, a resizing, a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reordering:
    """Two neighbours that would better change places."""

    at: int
    """Number of the first of them."""
    first: str
    second: str
    choice: Choice
    """What would then be taken."""
    gain: float
    """How many times faster than what is taken now."""


def interchangeable(first: Part, second: Part) -> bool:
    """Whether all that the one may do can change places with all that the other may do."""
    return all(frozenset({one, other}) in INTERCHANGEABLE for one in first.kinds for other in second.kinds)


def reorderings(
    parts: Sequence[Part], terms: Terms, *, before_s: float = 0.0, read_s: float = 0.0
) -> list[Reordering]:
    """Neighbours whose exchange would make the plan clearly better, best first. Each op is taken to cost the same in both places."""

    def planned(ops: Sequence[Part]) -> tuple[Choice, float]:
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
