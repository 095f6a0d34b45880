"""Whose memory a delivered batch is: freed when the last thing that refers to it is gone, not before, and not by a child."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from penstock.agent.exposure import our_own_fork
from penstock.client.leases import Leases, without
from penstock.wire.arena import Arena

LIMIT = 10_000


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 20, workers=1)
    made.back(made.base, made.base + (1 << 16))
    yield made
    made.close()


@pytest.fixture
def leases(arena: Arena) -> Leases:
    return Leases(arena, LIMIT)


def batch(leases: Leases, arena: Arena, seq: int, *sizes: int, at: int = 0) -> list[torch.Tensor]:
    """Batch `seq`: tensors of so many bytes each, one after the other."""
    tenancy = leases.open(seq, sum(sizes))
    tensors = []
    for size in sizes:
        tensors.append(torch.frombuffer(leases.lease(tenancy, arena.base + at, size), dtype=torch.uint8))
        at += size
    leases.seal(tenancy)
    return tensors


def freed(leases: Leases) -> list[int]:
    leases.collect()
    leases.sweep()
    found = list(leases.freed)
    leases.freed.clear()
    return found


def test_a_batch_is_free_when_the_last_of_its_tensors_is_gone(leases: Leases, arena: Arena) -> None:
    one, two = batch(leases, arena, 7, 100, 200)
    assert leases.held_bytes == 300
    del one
    assert freed(leases) == []
    del two
    assert freed(leases) == [7]
    assert leases.held_bytes == 0


ALIASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "a slice": lambda t: t[3:5],
    "one row": lambda t: t.view(10, 10)[2],
    "another dtype": lambda t: t.view(torch.int32),
    "a NumPy array": lambda t: t.numpy(),
    "a slice of a NumPy array": lambda t: t.numpy()[::2].reshape(-1),
    "a tensor of a NumPy array": lambda t: torch.from_numpy(t.numpy()),
    "a memoryview": lambda t: memoryview(t.numpy()),
    "a storage": lambda t: t.untyped_storage(),
    "a detached tensor": lambda t: t.detach(),
    "the same, in a list in a dict": lambda t: {"kept": [t]},
    "a capsule of DLPack": torch.utils.dlpack.to_dlpack,
}


@pytest.mark.parametrize("kind", ALIASES)
def test_whatever_refers_to_the_memory_keeps_it(leases: Leases, arena: Arena, kind: str) -> None:
    (tensor,) = batch(leases, arena, 7, 100)
    alias = ALIASES[kind](tensor)
    del tensor
    gc.collect()
    assert freed(leases) == []
    del alias
    gc.collect()
    assert freed(leases) == [7]


@pytest.mark.parametrize(
    "copy", [torch.clone, lambda t: t.numpy().copy(), lambda t: t.float(), torch.Tensor.tolist]
)
def test_copies_do_not(leases: Leases, arena: Arena, copy: Callable[[torch.Tensor], Any]) -> None:
    (tensor,) = batch(leases, arena, 7, 100)
    kept = copy(tensor)
    del tensor
    assert freed(leases) == [7]
    del kept


def test_a_batch_in_a_cycle_is_free_when_the_cycle_is_collected(leases: Leases, arena: Arena) -> None:
    cycle: list[Any] = batch(leases, arena, 7, 100)
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert freed(leases) == [7]


def test_a_batch_without_tensors_is_free_at_once(leases: Leases) -> None:
    leases.seal(leases.open(3, 100))
    assert freed(leases) == [3]


def test_a_tensor_that_dies_before_the_batch_is_complete_frees_nothing(leases: Leases, arena: Arena) -> None:
    tenancy = leases.open(4, 200)
    leases.lease(tenancy, arena.base, 100)
    leases.collect()
    second = leases.lease(tenancy, arena.base + 100, 100)
    assert freed(leases) == []
    leases.seal(tenancy)
    assert freed(leases) == []
    del second
    assert freed(leases) == [4]


def test_a_batch_may_die_in_another_thread(leases: Leases, arena: Arena) -> None:
    tensors = batch(leases, arena, 5, 100)
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert freed(leases) == [5]


def test_batches_are_freed_each_by_itself(leases: Leases, arena: Arena) -> None:
    held = {seq: batch(leases, arena, seq, 50, at=100 * seq) for seq in range(5)}
    for seq in (3, 0, 4):
        del held[seq]
    assert freed(leases) == [3, 0, 4]
    assert leases.held_bytes == 100


# ---- private copies


def test_beyond_half_of_the_limit_batches_are_copied(leases: Leases, arena: Arena) -> None:
    (first,) = batch(leases, arena, 1, LIMIT // 2)
    assert leases.private_copies == 0
    arena.view[arena.base + LIMIT : arena.base + LIMIT + 3] = b"abc"
    (second,) = batch(leases, arena, 2, 3, at=LIMIT)
    assert leases.private_copies == 1
    assert freed(leases) == [2], "a batch that is all copies is free at once"
    arena.view[arena.base + LIMIT : arena.base + LIMIT + 3] = b"xyz"
    assert bytes(second.tolist()) == b"abc"
    second[0] = 0
    del first
    assert freed(leases) == [1]
    batch(leases, arena, 3, LIMIT // 2)
    assert leases.private_copies == 1, "what was let go may be lent again"


def test_a_batch_is_lent_or_copied_as_a_whole(leases: Leases, arena: Arena) -> None:
    kept = batch(leases, arena, 1, 4000, 4000)
    assert (leases.private_copies, leases.held_bytes) == (1, 0)
    assert freed(leases) == [1]
    del kept


def test_small_batches_count_with_all_the_memory_they_keep_in_use(leases: Leases, arena: Arena) -> None:
    tenancies = [leases.open(seq, LIMIT // 4) for seq in range(3)]
    kept = [leases.lease(tenancy, arena.base, 8) for tenancy in tenancies]
    assert (leases.private_copies, leases.held_bytes) == (1, LIMIT // 2)
    del kept


# ---- children


def in_child(body: Callable[[], bool]) -> bool:
    """Whether `body` is true in a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if body() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_does_not_free_its_parents_batches(leases: Leases, arena: Arena) -> None:
    held = batch(leases, arena, 7, 100)

    def drop() -> bool:
        held.clear()
        return freed(leases) == []

    assert in_child(drop)
    assert freed(leases) == []
    held.clear()
    assert freed(leases) == [7]


@contextmanager
def a_child() -> Iterator[None]:
    """A forked child that lives as long as the block."""
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    try:
        yield
    finally:
        os.close(go)
        os.waitpid(pid, 0)


def test_a_batch_that_a_child_can_see_is_free_only_when_the_child_has_ended(
    leases: Leases, arena: Arena
) -> None:
    held = batch(leases, arena, 7, 100)
    with a_child():
        held.clear()
        later = batch(leases, arena, 8, 100, at=200)
        del later
        assert freed(leases) == [8], "batches that came after the fork are not the child's"
    assert freed(leases) == [7]


def test_an_agent_of_our_own_does_not_keep_batches(leases: Leases, arena: Arena) -> None:
    held = batch(leases, arena, 7, 100)
    with our_own_fork(), a_child():
        held.clear()
        assert freed(leases) == [7]


# ---- rows that on_error left out


def test_rows_are_left_out_of_every_part_of_a_batch() -> None:
    class Pair(tuple[Any, ...]):
        def __new__(cls, *items: Any) -> Any:
            return super().__new__(cls, items)

    tensor = torch.arange(4)
    whole = {
        "a": tensor,
        "b": [["x", "y", "z", "w"], Pair(tensor * 2, np.arange(4))],
        "c": (b"1", b"2", b"3", b"4"),
    }
    kept = without(whole, [0, 3])
    assert kept["a"].tolist() == [0, 3]
    assert kept["b"][0] == ["x", "w"]
    assert [part.tolist() for part in kept["b"][1]] == [[0, 6], [0, 3]]
    assert type(kept["b"][1]) is Pair
    assert kept["c"] == (b"1", b"4")
