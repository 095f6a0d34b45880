"""When a service that ended may be started again. Pure.

Rule 1: an end soon after the start counts; any other sets the count back.
Rule 2: the first such end costs nothing. From the second on there is a pause, which doubles up to a maximum.
"""

from __future__ import annotations

SOON_S = 5.0
FIRST_S = 0.5
MOST_S = 30.0


def early_ends(before: int, *, lived_s: float) -> int:
    """Return how many times in a row it ended soon after its start, now that it has ended once more."""
    return before + 1 if lived_s < SOON_S else 0


def restart_wait_s(early: int, *, since_s: float) -> float:
    """Return the seconds until it may start again, `since_s` after it ended; 0: now."""
    if early < 2:
        return 0.0
    return max(0.0, min(MOST_S, FIRST_S * 2.0 ** min(early - 2, 32)) - since_s)
