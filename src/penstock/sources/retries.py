"""Retry reads after transient failures: a busy server, a lost connection.

Rule 1: the source says which failures are transient (`Fleeting`); `policy.retry` says when to retry.
Rule 2: pauses use the system's randomness, so a sample's random numbers do not depend on a busy server.
Rule 3: each process counts its retries for `stats()`, and logs them at most once a minute.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TypeVar

from penstock.policy.retry import RetryLimits, pause_s
from penstock.sources.sources import BadRead, shown

log = logging.getLogger(__name__)
T = TypeVar("T")
QUIET_S = 60.0
"""Least time between two log lines of a process."""
BEAT_S = 0.5
"""Interval of `paused` calls during a pause, since a server may ask for minutes."""


class Fleeting(BadRead):
    """A transient failure. `asked_s`: the server's Retry-After; `busy`: it asks for fewer requests."""

    asked_s: float | None = None
    busy: bool = False


@dataclass(slots=True)
class RetryTally:
    """Retry count of this process; a forked child starts from its parent's count."""

    count: int = 0
    said_s: float | None = None
    told: Callable[[], None] = lambda: None
    """Called at each retry."""
    paused: Callable[[], None] = lambda: None
    """Called repeatedly during a pause."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, at_s: float) -> bool:
        """Count one retry; return whether a log line is due."""
        with self.lock:
            self.count += 1
            self.told()
            due = self.said_s is None or at_s - self.said_s >= QUIET_S
            if due:
                self.said_s = at_s
            return due


TALLY = RetryTally()


def persistently(read: Callable[[], T], name: str, limits: RetryLimits) -> T:
    """Return `read()`, retried within the limits; finally raise its last failure."""
    failures, began_s = 0, 0.0
    while True:
        try:
            return read()
        except Fleeting as exc:
            failures += 1
            now_s = time.monotonic()
            began_s = now_s if failures == 1 else began_s
            spent_s = now_s - began_s
            draw, asked_s = random.SystemRandom().random(), exc.asked_s
            pause = pause_s(limits, failures=failures, spent_s=spent_s, draw=draw, asked_s=asked_s)
            if pause is None:
                if failures > 1:
                    exc.add_note(f"penstock: it was tried {failures} times in {spent_s:.1f} s")
                raise
            if TALLY.add(now_s):
                log.warning(
                    "a read is tried again in %.1f s: %s (try %d of %d; retries of this process so far: %d)",
                    *(pause, exc, failures + 1, limits.tries + 1, TALLY.count),
                )
            else:
                log.debug("%s is tried again in %.1f s: %s", shown(name), pause, exc)
        while pause > 0.0:
            time.sleep(min(pause, BEAT_S))
            pause -= BEAT_S
            TALLY.paused()


def retry_after_s(said: str | None, date: str | None) -> float | None:
    """Parse a Retry-After header (seconds or a date); None if it is neither. A date counts from the response's own Date: the local clock may be
    wrong."""
    text = "" if said is None else said.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    if date is None:
        return None
    try:
        return max(0.0, (parsedate_to_datetime(text) - parsedate_to_datetime(date)).total_seconds())
    except (TypeError, ValueError):
        return None
