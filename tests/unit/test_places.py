"""Batches on the device: one while nobody knows what training needs, then as many as there is memory for, and none that nobody counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.device import Shelf
from penstock.client.mover import Mover
from penstock.client.places import FIRST_BATCHES, MARGIN, MOST, Places
from penstock.measure import card

TOTAL = 1000


class Memory:
    """Of a device with so much left."""

    def __init__(self, free: int, refuses_after: int = MOST) -> None:
        self.free, self.refuses_after = free, refuses_after
        self.taken: list[tuple[list[int], int]] = []

    def spare(self) -> tuple[int, int]:
        return self.free, TOTAL

    def take(self, sizes: Sequence[int], places: int) -> int:
        self.taken.append((list(sizes), places))
        return min(places, self.refuses_after)


def settled(memory: Memory, sizes: Sequence[Sequence[int]]) -> Places:
    places = Places(memory)
    for each in sizes:
        places.settle()
        places.on_batch(each)
    return places


def test_there_is_one_batch_while_training_is_young() -> None:
    memory = Memory(TOTAL)
    places = settled(memory, [[8, 2]] * FIRST_BATCHES)
    assert (places.most, memory.taken) == (1, [])
    places.settle()
    assert (places.most, memory.taken) == (MOST, [([8, 2], MOST)])
    for _ in range(3):
        places.on_batch([8, 2])
        places.settle()
    assert len(memory.taken) == 1  # and nothing is asked for again


@pytest.mark.parametrize(("batches", "most"), [(0, 1), (0.9, 1), (1, 2), (3.5, 4), (100, MOST)])
def test_there_are_as_many_as_there_is_memory_for(batches: float, most: int) -> None:
    memory = Memory(int(10 * batches + MARGIN * TOTAL))
    places = settled(memory, [[8, 2], [3], [3], [3]])
    assert places.most == most
    assert memory.taken == ([([8, 2], most)] if most > 1 else [])  # those of the largest


@pytest.mark.parametrize(("obtained", "most"), [(0, 1), (1, 1), (3, 3)])
def test_what_is_refused_is_no_place(obtained: int, most: int) -> None:
    assert settled(Memory(TOTAL, refuses_after=obtained), [[8, 2]] * 4).most == most


def test_without_a_gpu_nobody_waits() -> None:
    assert Places(None).most == MOST


class End:
    """When the device has done with a batch."""

    def __init__(self, log: list[int], number: int) -> None:
        self.log, self.number = log, number

    def synchronize(self) -> None:
        self.log.append(self.number)


@given(st.integers(1, MOST), st.integers(0, 1000))
def test_never_are_there_more_batches_than_places(most: int, seed: int) -> None:
    """Training takes one and lets go of it; the device has done with it at some time; the thread begins another when it may."""
    places, rng, done = Places(None), random.Random(seed), list[int]()
    places.most = most
    mover, shelf = Mover("cpu", None, None, pin=False, places=places), Shelf()
    on_shelf: Any = shelf.items
    begun = let_go = 0
    for _ in range(60):
        if rng.random() < 0.5 and on_shelf:  # training asks for the next
            mover.in_use.until(End(done, let_go))
            on_shelf.popleft()
            let_go += 1
        if mover.has_place(len(on_shelf)) or mover.in_use:
            shelf.wait_for_place(mover)
            on_shelf.append(begun)
            begun += 1
        assert len(on_shelf) + (let_go - len(done)) <= most
    assert done == sorted(done)


GIB = 1 << 30


def test_memory_that_was_given_back_for_a_moment_is_not_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"num_alloc_retries": 7, "num_ooms": 1}  # of what came before us
    monkeypatch.setattr(card, "_before", {})
    monkeypatch.setattr("torch.cuda.memory_stats", lambda _: counts)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (9 * GIB, 10 * GIB))
    device = torch.device("cuda", 0)
    first = card.Spare(device)
    assert first.has(9 * GIB)
    assert not first.has(9 * GIB + 1)
    counts["num_alloc_retries"] = 8
    assert first.free_and_total() == (0, 10 * GIB)
    assert not card.Spare(device).has(1)  # also for one that comes later: of a loader for validation, say
    counts["num_ooms"] = 2  # whoever was short of memory has given up
    assert first.has(9 * GIB)
    counts["num_alloc_retries"] = 9
    assert not first.has(1)
