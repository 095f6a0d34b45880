"""Threads that leave before the program ends: one that comes out of torch's code while the interpreter goes takes the whole process with it (SIGABRT)."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary, finalize

LEAVING_S = 5.0
"""For all of them together: one may hang, in the driver or in code of the user's."""

_tell: WeakKeyDictionary[threading.Thread, Callable[[], None]] = WeakKeyDictionary()


def leaves(thread: threading.Thread, tell: Callable[[], None]) -> None:
    """`tell` is called when the program ends, and makes the thread leave. It may not refer to the thread."""
    _tell[thread] = tell


finalize(leaves, lambda: None)
"""The last finalizers of a program are called where the first one was registered: with this, after `end_all`. What they close, threads may use."""


@atexit.register
def end_all() -> None:
    threads = list(_tell.items())
    for _, tell in threads:
        tell()
    until = time.monotonic() + LEAVING_S
    with contextlib.suppress(KeyboardInterrupt):  # whoever is that impatient need not wait
        for thread, _ in threads:
            with contextlib.suppress(RuntimeError):  # an interrupt fell into its start, and it never came
                thread.join(max(0.0, until - time.monotonic()))
