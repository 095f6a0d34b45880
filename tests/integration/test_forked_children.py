"""A batch that a forked child can see stays as it was, however long the child lives and whatever the parent does."""

from __future__ import annotations

import gc
import os
from typing import Any

import torch
from torch.utils.data import Dataset

from penstock import DataLoader
from penstock.wire.extents import aligned


class Counting(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4096,), float(index))


def test_a_forked_child_keeps_the_batch_it_saw_while_the_parent_goes_on() -> None:
    iterator = iter(DataLoader(Counting(), batch_size=2, num_workers=2, prefetch_batches=2))
    batch = next(iterator)
    go_read, go_write = os.pipe()
    answer_read, answer_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go_read, 1)
        os.write(answer_write, b"1" if batch.unique().tolist() == [0.0, 1.0] else b"0")
        os._exit(0)
    del batch
    gc.collect()
    for _ in range(20):
        next(iterator)
    os.write(go_write, b"x")
    assert os.read(answer_read, 1) == b"1"
    os.waitpid(child, 0)
    assert len(list(iterator)) == 11
    for fd in (go_read, go_write, answer_read, answer_write):
        os.close(fd)


def test_memory_seen_by_children_comes_back_when_they_have_ended() -> None:
    loader = DataLoader(Counting(), batch_size=2, num_workers=1, prefetch_batches=1, persistent_workers=True)
    slab = aligned(2 * 4096 * 4)
    for _ in range(4):
        for batch in loader:
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            del batch
        assert loader.stats()["arena_bytes"] <= 8 * slab  # 32 batches were seen by children in every epoch
