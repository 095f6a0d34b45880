"""A dataset in the cache, and the memory of reads that do not end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.cache.holding import CachedDataset
from penstock.cache.join_facts import JoinFacts
from penstock.cache.keys import sample_key
from penstock.cache.memory import MemoryTier
from penstock.cache.parts import DatasetParts
from penstock.cache.readers import StuckRead
from penstock.config import Cache
from tests.cache_service import SCOPE


@pytest.fixture
def posted() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def dataset(posted: list[Callable[[], None]]) -> Iterator[CachedDataset]:
    cache = Cache(memory="4MiB", peers="off")
    facts = JoinFacts(scope=SCOPE.hex(), samples=10, cache=cache, ring_samples=1, cwd="/")
    made = CachedDataset(facts, DatasetParts(1000, MemoryTier(4 << 20), None, None), posted.append)
    yield made
    made.close()


def test_memory_of_a_read_that_hangs_is_nobody_elses_until_it_has_ended(
    dataset: CachedDataset, posted: list[Callable[[], None]]
) -> None:
    view = dataset.place(3, 1000)
    assert view is not None
    dataset.was_read(3, StuckRead("no answer"))
    assert len(posted) == 1, "whoever waits for it is told at once"
    assert dataset.place(3, 1000) is None
    view[:] = bytes(1000)  # it may go on at any time
    dataset.released(3)
    del view
    again = dataset.place(3, 1000)
    assert again is not None
    again[:] = bytes(1000)
    del again
    assert dataset.tier.commit(sample_key(SCOPE, 3))
