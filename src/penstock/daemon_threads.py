"""Make threads leave before the program ends: a thread that returns from torch's code during interpreter shutdown aborts the process (SIGABRT)."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary, finalize

LEAVING_S = 5.0
"""Time for all threads together: one may hang, in the driver or in user code."""

_tell: WeakKeyDictionary[threading.Thread, Callable[[], None]] = WeakKeyDictionary()


def leaves(thread: threading.Thread, tell: Callable[[], None]) -> None:
    """Call `tell` when the program ends, to make the thread leave. `tell` must not refer to the thread."""
    _tell[thread] = tell


finalize(leaves, lambda: None)
"""weakref runs its exit finalizers where the first was registered. With this one before `end_all`, they run after it: threads may use what they close."""


@atexit.register
def end_all() -> None:
    threads = list(_tell.items())
    for _, tell in threads:
        tell()
    until = time.monotonic() + LEAVING_S
    with contextlib.suppress(KeyboardInterrupt):  # an impatient user need not wait
        for thread, _ in threads:
            with contextlib.suppress(RuntimeError):  # an interrupt hit its start, so it never ran
                thread.join(max(0.0, until - time.monotonic()))
