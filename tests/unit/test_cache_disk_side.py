"""Samples between memory and disk, in threads that tell what became of them."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

from penstock.cache.disk_side import DiskSide, opened
from penstock.cache.join_facts import JoinFacts
from penstock.cache.keys import sample_key
from penstock.cache.memory import MemoryTier
from penstock.cache.read_jobs import NoRoom
from penstock.cache.readers import Outcome
from penstock.config import Cache
from tests.cache_service import SCOPE, content


class DiskUserHere:
    """A dataset, as its disk threads know it."""

    def __init__(self, memory: MemoryTier) -> None:
        self.memory = memory
        self.said: queue.Queue[Any] = queue.Queue()

    def place(self, sample: int, nbytes: int) -> memoryview | None:
        return self.memory.reserve(sample_key(SCOPE, sample), nbytes)

    def was_read(self, sample: int, outcome: Outcome) -> None:
        if isinstance(outcome, tuple):
            assert self.memory.commit(sample_key(SCOPE, sample))
        self.said.put((sample, outcome if isinstance(outcome, tuple) else type(outcome)))

    def was_spilled(self, sample: int, *, ok: bool) -> None:
        self.said.put((sample, ok))

    def heard(self) -> Any:
        return self.said.get(timeout=60)


def test_samples_go_to_disk_and_back(tmp_path: Path) -> None:
    user = DiskUserHere(MemoryTier(1 << 22))
    cache = Cache(memory="4MiB", disk="64MiB", path=tmp_path, peers="off")
    facts = JoinFacts(scope=SCOPE.hex(), samples=10, cache=cache, ring_samples=1, cwd=str(tmp_path))
    disk, ranges = DiskSide(facts, opened(facts), user.memory, user), [("a", 0, 1), ("a", 7, None)]
    disk.fetch(0, ranges)
    assert user.heard() == (0, LookupError), "it is not there"
    disk.spill(0, ranges)
    assert user.heard() == (0, False)
    view = user.place(0, len(content(0)))
    assert view is not None
    view[:] = content(0)
    assert user.memory.commit(sample_key(SCOPE, 0))
    disk.spill(0, ranges)
    assert user.heard() == (0, True)
    disk.fetch(0, ranges)
    assert user.heard() == (0, NoRoom), "its place in memory is taken"
    user.memory.evict(sample_key(SCOPE, 0))
    disk.fetch(0, ranges)
    assert user.heard() == (0, (1, len(content(0)) - 1))
    with user.memory.reading(sample_key(SCOPE, 0)) as view:
        assert view == content(0)
    user.memory.evict(sample_key(SCOPE, 0))
    disk.fetch(0, [("a", 0, 1), ("a", 7, 8)])
    assert user.heard() == (0, LookupError), "they are other ranges"
    disk.close()
    user.memory.close()
