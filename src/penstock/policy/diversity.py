"""How many different samples training sees if partly prepared ones are reused (Revamper, section 4). Pure.

Rule 1: an augmentation with |A| equally likely outcomes has two parts. The first part's result is kept and used `times`
        times; the second, with |A_F| outcomes, is drawn anew for each use. Different draws count as different samples.
Rule 2: Theorem 1 gives the expected number of different samples for full rounds of uses. Our schedule (`plan.renewal`) renews
        in turn, so a sample's first round may be shorter (`Followed.expected`).
Rule 3: compute with the log of the chance that an outcome is missed (log1p, expm1): |A| may be 2, 1e12 or infinite.
Rule 4: measure draws, not pixels, of some tracked samples (`reuse.draw_tally`). The expectation uses the rounds actually seen, so
        it does not matter when counting began or how many ranks share a sample's uses.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import ConfigError

EPOCHS = 90
"""Usual training length on ImageNet, which the paper assumes too."""
LARGE = 1e300
"""Larger numbers of outcomes are capped to this."""


def expected_unique(
    outcomes: float, final_outcomes: float, times: float = 1, epochs: float = EPOCHS
) -> float:
    """Return E(U) of Theorem 1: the different samples expected of one image in `epochs`."""
    size, final = checked(outcomes, final_outcomes, times, epochs)
    times = min(times, epochs)  # no sample is used more often than once per epoch
    return unique(size, epochs / times * log_missed(size, final, times))


def diversity(outcomes: float, final_outcomes: float, times: float, epochs: float = EPOCHS) -> float:
    """Return E(U) relative to standard augmentation, which reuses nothing."""
    return expected_unique(outcomes, final_outcomes, times, epochs) / expected_unique(
        outcomes, outcomes, 1, epochs
    )


def log_ratio(outcomes: float, final_outcomes: float) -> float:
    """Return log|A_F| / log|A|, the final part's share of the augmentation; 1 if the final part is all of it."""
    size, final = checked(outcomes, final_outcomes, 1, 1)
    return 1.0 if size == final else math.log(final) / math.log(size)


def checked(outcomes: float, final_outcomes: float, times: float, epochs: float) -> tuple[float, float]:
    """Validate the arguments and return both outcome counts as floats."""
    if not 1 <= final_outcomes <= outcomes:
        raise ConfigError(
            f"of {outcomes} outcomes the final part must have at least 1 and at most all, got {final_outcomes}"
        )
    if not times >= 1 or not epochs >= 1:
        raise ConfigError(f"times and epochs must be at least 1, got {times} and {epochs}")
    return float(min(outcomes, LARGE)), float(min(final_outcomes, LARGE))


def log_missed(outcomes: float, final: float, uses: float) -> float:
    """Return the log of the chance that a kept sample never becomes a given outcome in `uses` uses."""
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
    """Observations of one tracked sample."""

    outcomes: float
    """Outcomes of the whole augmentation for this sample."""
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
        """E(U) by Theorem 1, for rounds that need not be full."""
        size, final = checked(self.outcomes, self.final_outcomes, 1, 1)
        return unique(size, math.fsum(log_missed(size, final, uses) for uses in self.rounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversity:
    """Measured and expected diversity, averaged over the tracked samples."""

    samples: int
    uses: float
    measured: float
    """Different draws."""
    expected: float
    """By Theorem 1, for the rounds seen."""
    standard: float
    """Expected without reuse."""
    error: float
    """Standard error of `measured` against `expected`."""


def measured(found: Sequence[Followed]) -> Diversity | None:
    """Average over tracked samples; None before the first use."""
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
