"""When a read that failed is tried again: exponential back-off with jitter, within limits. Pure.

Rule 1: the pause doubles with each try, up to a most; half of it is drawn, so that workers that failed together do not come back together.
Rule 2: a server that says when to come back (Retry-After) is not asked before.
Rule 3: no pause begins that would end after the time limit: the read fails at once instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How often and how long a read is tried again."""

    total_s: float = 120.0
    """Seconds from the first failure on, pauses and tries together; 0: never again."""
    tries: int = 10
    """Tries after the first."""
    first_s: float = 0.5
    """The first pause, at most."""
    most_s: float = 20.0
    """Any pause that the server did not ask for, at most."""

    def __post_init__(self) -> None:
        if not (0 <= self.total_s < math.inf and self.tries >= 0 and 0 < self.first_s <= self.most_s):
            raise ConfigError(f"a retry needs finite limits that are not negative, got {self}")


def pause_s(
    limits: RetryLimits, *, failures: int, spent_s: float, draw: float, asked_s: float | None = None
) -> float | None:
    """Seconds to wait before the next try; None: give up. `draw`: from [0, 1); `asked_s`: what the server asked for."""
    if failures > limits.tries:
        return None
    longest = min(limits.most_s, limits.first_s * 2.0 ** min(failures - 1, 64))
    pause = max(longest * (0.5 + draw / 2), asked_s or 0.0)
    return pause if spent_s + pause < limits.total_s else None
