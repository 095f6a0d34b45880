"""Other processes' ends: notice them, and say how they came about."""

from __future__ import annotations

import contextlib
import os
import select
import signal


def open_pidfd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends; -1 if the kernel or a sandbox denies it."""
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return -1


def wait_readable(fd: int, timeout_s: float) -> bool:
    """Whether `fd` becomes readable in time. Uses poll: select refuses descriptors above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def exit_text(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "ended for an unknown reason"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"
