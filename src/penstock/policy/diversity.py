"""How many different samples training sees where partly prepared ones are used several times (Revamper, section 4). Pure.

Rule 1: an augmentation of |A| outcomes, all equally likely, is done in two parts. The result of the first is kept and used `times`
        times; the second, of |A_F| outcomes, is drawn anew for each use. Different draws count as different samples.
Rule 2: Theorem 1 gives the expected number of different samples for uses in full rounds. Our own schedule (`plan.renewal`) renews
        in turn, so that a sample's first round may be shorter: `scheduled_unique` is the same expectation for that.
Rule 3: what is computed is the logarithm of the chance that an outcome is missed, by log1p and expm1: |A| may be 2, 1e12 or infinite.
Rule 4: what is measured is draws, not pixels, of some samples that are followed (`store.draw_tally`). What is expected of them is computed for the uses
        that were seen, so that it does not matter when counting began, nor how many ranks share the uses of a sample.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import ConfigError

EPOCHS = 90
"""Epochs of the usual training on ImageNet, which the paper assumes too."""
LARGE = 1e300
"""Numbers of outcomes beyond this are taken for this."""


def expected_unique(
    outcomes: float, final_outcomes: float, times: float = 1, epochs: float = EPOCHS
) -> float:
    """E(U) of Theorem 1: different samples that come of one image in so many epochs."""
    size, final = checked(outcomes, final_outcomes, times, epochs)
    times = min(times, epochs)  # none is used oftener than there are epochs
    return unique(size, epochs / times * log_missed(size, final, times))


def scheduled_unique(outcomes: float, final_outcomes: float, times: int, epochs: int) -> float:
    """The same for samples that are renewed in turn: the first round of each has 1 to `times` uses, one as likely as the other."""
    size, final = checked(outcomes, final_outcomes, times, epochs)
    found = []
    for first in range(1, times + 1):
        full, rest = divmod(max(0, epochs - first), times)
        rounds = ((1, min(first, epochs)), (full, times), (1, rest))
        found.append(
            unique(size, sum(count * log_missed(size, final, uses) for count, uses in rounds if count))
        )
    return statistics.fmean(found)


def diversity(outcomes: float, final_outcomes: float, times: float, epochs: float = EPOCHS) -> float:
    """E(U) as a share of what standard augmentation has, where nothing is used twice."""
    return expected_unique(outcomes, final_outcomes, times, epochs) / expected_unique(
        outcomes, outcomes, 1, epochs
    )


def log_ratio(outcomes: float, final_outcomes: float) -> float:
    """log|A_F| / log|A|: the share that the final part has in the augmentation; all of it where there is none."""
    size, final = checked(outcomes, final_outcomes, 1, 1)
    return 1.0 if size == final else math.log(final) / math.log(size)


def checked(outcomes: float, final_outcomes: float, times: float, epochs: float) -> tuple[float, float]:
    """Both numbers of outcomes as floats."""
    if not 1 <= final_outcomes <= outcomes:
        raise ConfigError(
            f"of {outcomes} outcomes the final part must have at least 1 and at most all, got {final_outcomes}"
        )
    if not times >= 1 or not epochs >= 1:
        raise ConfigError(f"times and epochs must be at least 1, got {times} and {epochs}")
    return float(min(outcomes, LARGE)), float(min(final_outcomes, LARGE))


def log_missed(outcomes: float, final: float, uses: float) -> float:
    """Logarithm of the chance that one kept sample, used so often, does not become a given outcome."""
    if uses == 0:
        return 0.0
    if final >= outcomes:  # each use draws among all; the general form would subtract nearly equal numbers
        return uses * math.log1p(-1 / outcomes) if outcomes > 1 else -math.inf
    made = -final * math.expm1(uses * math.log1p(-1 / final)) if final > 1 else 1.0
    return math.log1p(-made / outcomes)


def unique(outcomes: float, log_missed: float) -> float:
    return -outcomes * math.expm1(log_missed)


# ---- measured


class Followed(NamedTuple):
    """What was seen of one sample."""

    outcomes: float
    """Of the whole augmentation, for this sample."""
    final_outcomes: float
    rounds: Sequence[int]
    """Uses of each of its kept results."""
    unique: int
    """Different draws among them."""

    @property
    def uses(self) -> int:
        return sum(self.rounds)

    @property
    def expected(self) -> float:
        """As Theorem 1, for rounds that need not be full."""
        size, final = checked(self.outcomes, self.final_outcomes, 1, 1)
        return unique(size, math.fsum(log_missed(size, final, uses) for uses in self.rounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversity:
    """What a meter has found, beside what was expected: averages over the samples that were followed."""

    samples: int
    uses: float
    measured: float
    """Different draws."""
    expected: float
    """Of a schedule as it was, by Theorem 1."""
    standard: float
    """That would have been expected without reuse."""
    error: float
    """Standard error of `measured`, as far as it differs from what was expected."""


def measured(found: Sequence[Followed]) -> Diversity | None:
    """None before the first use."""
    found = [one for one in found if one.rounds]
    if not found:
        return None
    expected = [one.expected for one in found]
    off = [one.unique - wanted for one, wanted in zip(found, expected, strict=True)]
    return Diversity(
        samples=len(found),
        uses=statistics.fmean(one.uses for one in found),
        measured=statistics.fmean(one.unique for one in found),
        expected=statistics.fmean(expected),
        standard=statistics.fmean(expected_unique(one.outcomes, one.outcomes, 1, one.uses) for one in found),
        error=statistics.stdev(off) / math.sqrt(len(off)) if len(off) > 1 else 0.0,
    )
