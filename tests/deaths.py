"""Workers that are killed by a test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable


def kill_all(pids: Iterable[int]) -> int:
    """How many were killed: one that a test killed before may be gone by now, and not yet replaced."""
    killed = 0
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed += 1
    return killed
