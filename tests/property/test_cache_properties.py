"""The memory of the cache under any order of writing, reading, evicting and leaving."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.cache.memory import LEAST_BYTES, MemoryTier, Place
from penstock.cache.space import LINE, STEPS, FreeSpace, rounded
from tests.conftest import FULL

SIZES = st.one_of(st.integers(0, 5_000), st.integers(0, 200_000))


@given(st.integers(0, 1 << 40))
def test_an_extent_is_at_most_a_sixty_fourth_longer_than_its_bytes(nbytes: int) -> None:
    length = rounded(nbytes)
    assert nbytes <= length <= max(LINE, nbytes + nbytes // STEPS + LINE - 1)
    assert length % LINE == 0
    assert length > 0
    assert rounded(length) == length


@given(st.lists(st.one_of(st.tuples(st.just(True), SIZES), st.tuples(st.just(False), st.integers(0, 99)))))
def test_extents_never_overlap_and_always_add_up(steps: list[tuple[bool, int]]) -> None:
    space, held = FreeSpace(), list[tuple[int, int]]()
    for takes, value in steps:
        if takes:
            length = rounded(value)
            start = space.take(length)
            if start is None:
                assert length > space.largest
                space.grow(length)
                start = space.take(length)
            assert start is not None
            held.append((start, length))
        elif held:
            space.give(*held.pop(value % len(held)))
        ends = 0
        for start, length in sorted(held):
            assert start >= ends
            ends = start + length
        assert ends <= space.end
        assert space.free + sum(length for _, length in held) == space.end
        assert space.largest <= space.free
    for extent in held:
        space.give(*extent)
    assert space.largest == space.free == space.end


class MemoryMachine(RuleBasedStateMachine):
    """A tier beside a model of it. Bytes say whose they are, so that any overlap shows."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = MemoryTier(LEAST_BYTES)
        self.written: dict[bytes, bytes] = {}
        self.reserved: dict[bytes, tuple[memoryview, bytes]] = {}
        self.leases: dict[str, list[tuple[Place, bytes]]] = {}
        self.count = 0

    @rule(size=st.integers(0, 300_000), writer=st.sampled_from(["a", "b"]))
    def reserve(self, size: int, writer: str) -> None:
        self.count += 1
        key = self.count.to_bytes(16, "big")
        view = self.tier.reserve(key, size, writer)
        if view is None:
            assert self.tier.stats()["largest_hole"] < rounded(size)
            return
        data = np.random.default_rng(self.count).bytes(size)
        view[:] = data
        self.reserved[key] = view, data

    @precondition(lambda self: self.reserved)
    @rule(good=st.booleans(), at=st.integers(0, 99))
    def commit(self, good: bool, at: int) -> None:
        key = list(self.reserved)[at % len(self.reserved)]
        _, data = self.reserved.pop(key)
        if good:
            assert self.tier.commit(key)
            self.written[key] = data
        else:
            self.tier.abandon(key)

    @precondition(lambda self: self.written)
    @rule(reader=st.sampled_from(["x", "y"]), at=st.lists(st.integers(0, 99), max_size=5))
    def lookup(self, reader: str, at: list[int]) -> None:
        keys = [list(self.written)[each % len(self.written)] for each in at]
        places = self.tier.lookup([*keys, b"none of them ..."], reader)
        assert places.pop() is None
        for key, place in zip(keys, places, strict=True):
            assert place is not None
            self.leases.setdefault(reader, []).append((place, self.written[key]))

    @rule(owner=st.sampled_from(["x", "y"]))
    def leave(self, owner: str) -> None:
        self.leases.pop(owner, None)
        self.tier.leave(owner)

    @precondition(lambda self: self.written)
    @rule(at=st.integers(0, 99))
    def evict(self, at: int) -> None:
        key = list(self.written)[at % len(self.written)]
        del self.written[key]
        assert self.tier.evict(key)

    @invariant()
    def all_bytes_are_right(self) -> None:
        for key, data in self.written.items():
            with self.tier.reading(key) as view:
                assert view == data
        for leases in self.leases.values():
            for place, data in leases:
                assert os.pread(self.tier.fd, place.size, place.offset) == data

    @invariant()
    def memory_adds_up(self) -> None:
        extents = {place for leases in self.leases.values() for place, _ in leases}
        stats = self.tier.stats()
        assert stats["entries"] == len(self.written)
        assert stats["bytes"] == sum(map(len, self.written.values()))
        assert stats["leased"] == len({place.offset for place in extents})
        assert stats["held_bytes"] <= self.tier.max_bytes
        sizes = [rounded(len(data)) for data in self.written.values()]
        sizes += [rounded(len(data)) for _, data in self.reserved.values()]
        evicted = stats["held_bytes"] - stats["free_bytes"] - sum(sizes)
        assert 0 <= evicted <= sum(rounded(place.size) for place in extents)

    def teardown(self) -> None:
        for owner in ("a", "b", "x", "y"):
            self.leave(owner)
        for key in list(self.written):
            self.tier.evict(key)
        self.reserved.clear()
        stats = self.tier.stats()
        assert stats["free_bytes"] == stats["held_bytes"] == stats["largest_hole"]
        self.tier.close()


MemoryMachine.TestCase.settings = settings(
    max_examples=1000 if FULL else 25, stateful_step_count=40, deadline=None
)
test_memory_is_never_shared_by_two_and_never_lost = MemoryMachine.TestCase
