"""Times without forks, for what a forked child must not have a copy of.

Rule 1: this module is imported before its importer forks or starts anything, so the hooks are there at every fork of ours. Were they added while
        another thread forks, they would free a lock in it that was never taken.
Rule 2: a child has a lock of its own. That of its parent may be held by a thread that the child does not have.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_lock = threading.RLock()


@contextlib.contextmanager
def no_forks() -> Iterator[None]:
    """Have this process's other threads wait before they fork."""
    with _lock:
        yield


def _before() -> None:
    _lock.acquire()  # guard: no-fork-while-starting


def _in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # an interrupt hit `_before`
        _lock.release()


def _in_child() -> None:
    global _lock
    _lock = threading.RLock()  # guard: fresh-fork-lock


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
