"""What our schedule of renewals makes of Theorem 1 (Revamper, section 4)."""

import statistics

from penstock.policy.diversity import Followed


def scheduled_unique(outcomes: float, final_outcomes: float, times: int, epochs: int) -> float:
    """Return E(U) for samples renewed in turn: the first round has 1 to `times` uses, all equally likely."""
    found = []
    for first in range(1, times + 1):
        full, rest = divmod(max(0, epochs - first), times)
        rounds = [min(first, epochs), *[times] * full, rest]
        found.append(Followed(outcomes, final_outcomes, rounds, 0).expected)
    return statistics.fmean(found)
