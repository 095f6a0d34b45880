"""Memory of the memory tier, made ready ahead of need by a thread: the kernel clears new memory and maps its pages, which takes milliseconds a step.

Rule 1: memory is reserved before it is written (`posix_fallocate`): a touch of memory that is not there would be a SIGBUS.
Rule 2: AHEAD_BYTES are ready beyond what is in use, up to the limit. So readers, which need memory in the middle of a read, seldom wait.
Rule 3: whoever finds no hole waits for the next step, if there will be one. Others use the memory meanwhile.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock.cache.space import FreeSpace

log = logging.getLogger("penstock")

STEP_BYTES = 16 << 20
AHEAD_BYTES = 4 * STEP_BYTES


class Backing:
    """Grows `space`, the part of a memory file that can be written. Its thread starts when memory is first wanted."""

    def __init__(
        self,
        fd: int,
        memory: NDArray[np.uint8],
        space: FreeSpace,
        lock: threading.RLock,
        *,
        maps: bool = True,
    ) -> None:
        """`lock` guards `space` and all of this. `maps`: whether pages are mapped here, too, since this process writes most of the bytes."""
        self._fd, self._memory, self._space, self._lock = fd, memory, space, lock
        self._maps = maps
        self._wanted, self._grown = threading.Condition(lock), threading.Condition(lock)
        self.max_bytes = len(memory)
        """At most so much; less, once there is no more to be had."""
        self.on_less: Callable[[int], None] = lambda _: None
        """Told of a smaller limit."""
        self._waited_for = False
        """Whether somebody waits for the next step."""
        self._thread: threading.Thread | None = None
        self._closed = False

    def wait_for(self, length: int) -> bool:
        """Wait for memory that `space` has not got yet; False: there is no more to come. The lock is held, and free meanwhile."""
        if self._is_at_its_end() or length > self.max_bytes:
            return False
        before = self._space.end
        self._waited_for = True
        if not self._wake():  # there are no threads to be had
            step = self._next_step()
            self._have(*step, self._made_ready(*step))
        while self._space.end == before and not self._is_at_its_end():
            self._grown.wait()
        return self._space.end > before

    def look_ahead(self) -> None:
        """Have more memory made ready, if little is left. The lock is held."""
        if self._space.free < AHEAD_BYTES and not self._is_at_its_end():
            self._wake()

    def close(self) -> None:
        """End the thread, and let go of the memory."""
        with self._lock:
            self._closed = True
            self._wanted.notify_all()
            self._grown.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._memory = np.empty(0, np.uint8)

    def _is_at_its_end(self) -> bool:
        return self._closed or self._space.end >= self.max_bytes

    def _wake(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="penstock cache memory", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        self._wanted.notify_all()
        return True

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._is_at_its_end() and not self._is_wanted():
                    self._wanted.wait()
                if self._is_at_its_end():
                    self._grown.notify_all()
                    return
                start, more = self._next_step()
            self._have(start, more, self._made_ready(start, more))

    def _is_wanted(self) -> bool:
        # Not whether there is a hole by now: whoever waits does so for the next step.
        return self._space.free < AHEAD_BYTES or self._waited_for  # guard: waited-for

    def _next_step(self) -> tuple[int, int]:
        return self._space.end, min(STEP_BYTES, self.max_bytes - self._space.end)

    def _made_ready(self, start: int, more: int) -> OSError | None:
        """Reserve memory, without the interpreter's lock; return what was in the way."""
        try:
            os.posix_fallocate(self._fd, start, more)  # guard: cache-backed
        except OSError as exc:
            return exc
        if self._maps:
            self._memory[start : start + more : mmap.PAGESIZE] = 0
        return None

    def _have(self, start: int, more: int, trouble: OSError | None) -> None:
        with self._lock:
            self._waited_for = False
            if trouble is None:
                self._space.grow(more)
            else:
                log.warning(
                    "cache: there is no memory for %s bytes (%s): %s are used. Give a smaller memory=, or raise the limit that was met",
                    f"{self.max_bytes:,}",
                    trouble,
                    f"{start:,}",
                )
                self.max_bytes = start
                self.on_less(start)
            self._grown.notify_all()
