"""When to retry a failed read: exponential back-off with jitter, within limits. Pure.

Rule 1: the pause doubles with each try, up to a maximum. Half of it is random, so that workers that failed together spread out.
Rule 2: a server's Retry-After is respected.
Rule 3: a pause that would end after the time limit does not begin: the read fails at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How often and how long to retry a read."""

    total_s: float = 120.0
    """Seconds from the first failure, pauses and tries together; 0: never retry."""
    tries: int = 10
    """Retries, not counting the first try."""
    first_s: float = 0.5
    """Maximum of the first pause."""
    most_s: float = 20.0
    """Maximum of any pause, unless the server asks for more."""

    def __post_init__(self) -> None:
        if not (0 <= self.total_s < math.inf and self.tries >= 0 and 0 < self.first_s <= self.most_s):
            raise ConfigError(f"a retry needs finite limits that are not negative, got {self}")


def pause_s(
    limits: RetryLimits, *, failures: int, spent_s: float, draw: float, asked_s: float | None = None
) -> float | None:
    """Return the seconds before the next try; None: give up. `draw` is from [0, 1); `asked_s` is the server's wish."""
    if failures > limits.tries:
        return None
    longest = min(limits.most_s, limits.first_s * 2.0 ** min(failures - 1, 64))
    pause = max(longest * (0.5 + draw / 2), asked_s or 0.0)
    return pause if spent_s + pause < limits.total_s else None
