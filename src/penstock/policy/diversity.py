"""How many different samples training sees where partly prepared ones are used several times (Revamper, section 4). Pure.

Rule 1: an augmentation of |A| outcomes, all equally likely, is done in two parts. The result of the first is kept and used `times`
        times; the second, of |A_F| outcomes, is drawn anew for each use. Different draws count as different samples.
Rule 2: Theorem 1 gives the expected number of different samples for uses in full rounds. Our own schedule (`plan.renewal`) renews
        in turn, so that a sample's first round may be shorter: `scheduled_unique` is the same expectation for that.
Rule 3: what is computed is the logarithm of the chance that an outcome is missed, by log1p and expm1: |A| may be 2, 1e12 or infinite.
Rule 4: the meter counts draws, not pixels. It follows the samples whose numbers have the smallest hashes, so that several processes
        follow the same ones without a word, and of each it keeps the smallest hashes of its draws: exact while they are few, an estimate
        beyond. Its memory has a bound that it is told.
"""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConfigError
from penstock.plan.seeds import MASK64, mix64

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


@dataclass(slots=True)
class Followed:
    """The draws of one sample: the smallest hashes of them, largest first in a heap of their negatives."""

    uses: int = 0
    hashes: set[int] = field(default_factory=set)
    heap: list[int] = field(default_factory=list)
    is_full: bool = False

    def add(self, number: int, most: int) -> None:
        if number in self.hashes or (self.is_full and number > -self.heap[0]):
            return
        self.hashes.add(number)
        heapq.heappush(self.heap, -number)
        if len(self.hashes) > most:
            self.hashes.remove(-heapq.heappop(self.heap))
            self.is_full = True

    def unique(self) -> float:
        """Different draws. Of more than are kept, those kept lie as densely as all do."""
        if not self.is_full:
            return float(len(self.hashes))
        return (len(self.hashes) - 1) * (MASK64 + 1) / -self.heap[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diversity:
    """What a meter has found, beside what was expected."""

    samples: int
    """Samples that were followed."""
    uses: float
    """Uses of each, on average."""
    measured: float
    """Different draws of each, on average."""
    expected: float
    error: float
    """Standard error of what was measured, over the samples."""

    @property
    def share(self) -> float:
        return self.measured / self.expected if self.expected else 1.0


class DiversityMeter:
    """Counts different (partial draw, final draw) per sample. Draws are numbers that are equal for equal draws."""

    def __init__(self, *, samples: int = 256, draws: int = 512) -> None:
        if samples < 1 or draws < 2:
            raise ConfigError(
                f"a meter follows at least 1 sample and 2 draws of it, got {samples} and {draws}"
            )
        self.samples, self.draws = samples, draws
        self._followed: dict[int, Followed] = {}
        self._heap: list[tuple[int, int]] = []
        """(-hash, number) of the samples that are followed: the first is the next to be let go."""

    def add(self, sample: int, partial: int, final: int) -> None:
        """One use of a sample: of what is kept of it, drawn as `partial`, finished as `final`."""
        followed = self._of(sample)
        if followed is not None:
            followed.uses += 1
            # The sample has a part in it, so that the same draw of two samples is not misjudged in the same way.
            number = mix64(mix64(mix64(sample & MASK64) ^ (partial & MASK64)) ^ (final & MASK64))
            followed.add(number, self.draws)

    def _of(self, sample: int) -> Followed | None:
        """Where its draws are noted, if they are."""
        if (found := self._followed.get(sample)) is not None:
            return found
        place = -mix64(sample & MASK64)
        if len(self._heap) == self.samples:
            if place < self._heap[0][0]:
                return None
            _, gone = heapq.heapreplace(self._heap, (place, sample))
            del self._followed[gone]
        else:
            heapq.heappush(self._heap, (place, sample))
        self._followed[sample] = Followed()
        return self._followed[sample]

    def state(self) -> dict[str, Any]:
        """Plain numbers, to be sent to another process."""
        return {
            "followed": [
                [sample, found.uses, found.is_full, sorted(found.hashes)]
                for sample, found in self._followed.items()
            ]
        }

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what another meter of the same limits has seen. What is followed in the end was followed by every meter that met it."""
        for sample, uses, is_full, hashes in state["followed"]:
            followed = self._of(sample)
            if followed is not None:
                followed.uses += uses
                for number in hashes:
                    followed.add(number, self.draws)
                followed.is_full = followed.is_full or is_full

    def report(
        self, outcomes: float, final_outcomes: float, times: int, *, kept: float = 1.0
    ) -> Diversity | None:
        """Beside what is expected of a chain with so many outcomes, of which a share `kept` is kept; None before the first sample."""
        if not self._followed:
            return None
        found = list(self._followed.values())
        expected = {
            uses: kept * scheduled_unique(outcomes, final_outcomes, times, uses)
            + (1 - kept) * expected_unique(outcomes, outcomes, 1, uses)
            for uses in {one.uses for one in found}
        }
        measured = [one.unique() for one in found]
        spread = statistics.stdev(measured) if len(measured) > 1 else 0.0
        return Diversity(
            samples=len(found),
            uses=statistics.fmean(one.uses for one in found),
            measured=statistics.fmean(measured),
            expected=statistics.fmean(expected[one.uses] for one in found),
            error=spread / math.sqrt(len(measured)),
        )
