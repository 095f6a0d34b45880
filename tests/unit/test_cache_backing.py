"""Memory of the cache that a thread makes ready ahead of need."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from penstock.cache.backing import AHEAD_BYTES, STEP_BYTES, Backing
from penstock.cache.memory import MemoryTier
from penstock.cache.space import FreeSpace
from penstock.wire.arena import anonymous_file

STEPS = 12


class FreedSpace(FreeSpace):
    """Space of which much becomes free at the worst moment: when somebody has asked for more, and does not wait yet."""

    now_free: Callable[[], None] | None = None

    @property  # type: ignore[override]
    def end(self) -> int:
        if self.now_free is not None:
            act, self.now_free = self.now_free, None
            act()
        return self._end

    @end.setter
    def end(self, value: int) -> None:
        self._end = value


class MemoryHere:
    def __init__(self, steps: int) -> None:
        self.fd = anonymous_file()
        os.ftruncate(self.fd, steps * STEP_BYTES)
        self.space, self.lock = FreedSpace(), threading.RLock()
        memory = np.frombuffer(mmap.mmap(self.fd, steps * STEP_BYTES), np.uint8)
        self.backing = Backing(self.fd, memory, self.space, self.lock)

    def waits(self, length: int) -> bool | None:
        """Wait for an extent; None: still waiting after some time."""
        found: list[bool] = []

        def wait() -> None:
            with self.lock:
                found.append(self.backing.wait_for(length))

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join(20.0)
        return found[0] if found else None

    def taken(self, length: int) -> int | None:
        with self.lock:
            return self.space.take(length)

    def close(self) -> None:
        self.backing.close()
        os.close(self.fd)


@pytest.fixture
def memory() -> Iterator[MemoryHere]:
    made = MemoryHere(steps=STEPS)
    yield made
    made.close()


def test_memory_comes_step_by_step_ahead_of_need_until_its_end(memory: MemoryHere) -> None:
    assert memory.waits(100)
    while memory.space.end < AHEAD_BYTES:
        assert memory.waits(100)
    taken = [memory.taken(STEP_BYTES) for _ in range(4)]
    assert sorted(at for at in taken if at is not None) == [step * STEP_BYTES for step in range(4)]
    while memory.waits(100):
        pass
    assert memory.space.end == STEPS * STEP_BYTES


def test_what_is_larger_than_all_memory_takes_none(memory: MemoryHere) -> None:
    assert memory.waits((STEPS + 1) * STEP_BYTES) is False
    assert memory.space.end == 0


def test_who_waits_for_a_step_gets_it_whatever_becomes_free_meanwhile(memory: MemoryHere) -> None:
    while memory.space.end < AHEAD_BYTES:
        assert memory.waits(100)
    for _ in range(AHEAD_BYTES // STEP_BYTES):
        assert memory.taken(STEP_BYTES) is not None
    while memory.waits(100) and memory.space.free < AHEAD_BYTES:
        pass
    assert memory.taken(STEP_BYTES // 2) is not None
    memory.space.now_free = lambda: memory.space.give(0, AHEAD_BYTES)
    assert memory.waits(STEP_BYTES) is not None


def mapped() -> set[str]:
    """Mappings of memory files of ours; tests before this one may have left some."""
    return {line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:penstock" in line}


def test_memory_ends_with_its_tier_even_if_somebody_keeps_that() -> None:
    before = mapped()
    tier = MemoryTier(1 << 20)
    assert tier.reserve(bytes(16), 100) is not None
    assert mapped() - before
    tier.leave(None)
    tier.close()
    assert not mapped() - before
    assert tier.fd == -1


def test_memory_is_had_where_no_thread_can_be_started(
    memory: MemoryHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with memory.lock:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert memory.backing.wait_for(100)
        monkeypatch.undo()
    assert memory.space.end == STEP_BYTES
