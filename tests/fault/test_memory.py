"""The memory of batches: a batch is the caller's for as long as anything refers to it, and it never starves the loader."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import ArenaFull, DataLoader
from tests.fault.datasets import Drawn, Large, expected, same
from tests.fault.programs import until

OPTIONS: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
SAMPLE = 64 << 10


def holds(batch: torch.Tensor, first: int) -> bool:
    """Whether a batch of `Large` is what it was when it was delivered."""
    return [int(row.min()) == int(row.max()) == (first + i) % 251 for i, row in enumerate(batch)] == [
        True
    ] * len(batch)


# ---- kept batches


def test_batches_kept_for_ever_stay_as_they_were_while_the_ring_is_reused() -> None:
    rng = random.Random(3)
    loader = DataLoader(Large(1200, SAMPLE), slab_bytes="8MiB", **OPTIONS)
    kept: list[tuple[int, Any, str]] = []
    for number, batch in enumerate(loader):
        form = rng.choice(["no", "no", "no", "whole", "row", "numpy", "column"])
        first = 4 * number
        match form:
            case "whole":
                kept.append((first, batch, form))
            case "row":
                kept.append((first + 2, batch[2], form))
            case "numpy":
                kept.append((first, batch.numpy(), form))
            case "column":
                kept.append((first, batch[:, 5:9], form))
        if kept and rng.random() < 0.2:
            kept.pop(rng.randrange(len(kept)))
        del batch
    assert len(kept) > 50
    for first, value, form in kept:
        rows = torch.as_tensor(value)
        assert holds(rows[None] if form == "row" else rows, first), form


def test_more_batches_than_the_ring_holds_can_be_kept() -> None:
    loader = DataLoader(Large(256, SAMPLE), slab_bytes="4MiB", **OPTIONS)
    batches = list(loader)
    assert all(holds(batch, 4 * number) for number, batch in enumerate(batches))
    assert loader.stats()["private_copies"] > 0


def test_no_more_than_half_the_ring_is_ever_lent_out() -> None:
    loader = DataLoader(Large(256, SAMPLE), slab_bytes="4MiB", **OPTIONS)
    kept = []
    for batch in loader:
        kept.append(batch)
        assert loader.stats()["held_bytes"] <= 2 << 20


def test_a_batch_outlives_its_iterator_and_its_loader() -> None:
    loader = DataLoader(Large(16, SAMPLE), **OPTIONS)
    batches = list(loader)
    views = [batch[1:3].numpy() for batch in batches]
    del loader, batches
    gc.collect()
    assert all(holds(torch.from_numpy(view), 4 * number + 1) for number, view in enumerate(views))


def test_what_the_caller_writes_into_a_batch_stays_in_it() -> None:
    loader = DataLoader(Large(64, SAMPLE), slab_bytes="4MiB", **OPTIONS)
    kept = []
    for number, batch in enumerate(loader):
        assert holds(batch, 4 * number)
        batch.fill_(255)
        kept.append(batch)
        batch[::2] += 1
    assert all(int(batch[0].max()) == 0 and int(batch[1].min()) == 255 for batch in kept)


def test_a_batch_freed_in_another_thread_goes_back_to_the_ring() -> None:
    loader = DataLoader(Large(400, SAMPLE), slab_bytes="2MiB", **OPTIONS)
    handed: list[torch.Tensor] = []
    over = threading.Event()

    def consume() -> None:
        while not over.is_set() or handed:
            with contextlib.suppress(IndexError):
                handed.pop()
            time.sleep(0.0005)

    thread = threading.Thread(target=consume)
    thread.start()
    for number, batch in enumerate(loader):
        assert holds(batch, 4 * number)
        handed.append(batch)
    over.set()
    thread.join()
    del batch
    until(lambda: loader.stats()["held_bytes"] == 0, within_s=2, why="all batches are given back")


def test_structures_and_texts_are_kept_and_given_back_as_a_whole() -> None:
    loader = DataLoader(Nested(), slab_bytes="2MiB", **OPTIONS)
    images = [batch["image"] for batch in loader]  # the rest of each batch is dropped
    assert all(holds(image, 4 * number) for number, image in enumerate(images))


class Nested(Large):
    def __init__(self) -> None:
        super().__init__(96, 32 << 10)

    def __getitem__(self, index: int) -> Any:
        return {
            "image": super().__getitem__(index),
            "name": f"n{index}",
            "box": (index, np.arange(3) + index),
        }


# ---- limits


def test_a_batch_that_can_never_fit_is_an_error_with_sizes_and_the_next_epoch_is_not_harmed() -> None:
    loader = DataLoader(Large(64, 1 << 20), slab_bytes="2MiB", **OPTIONS)
    with pytest.raises(
        ArenaFull, match=r"needs 4,194,304 bytes of shared memory, which do not fit into 2,097,152"
    ):
        next(iter(loader))
    with pytest.raises(ArenaFull):
        next(iter(loader))


def test_the_ring_stays_within_its_limit() -> None:
    loader = DataLoader(Large(256, SAMPLE), slab_bytes="1MiB", prefetch_batches=32, **OPTIONS)
    for number, batch in enumerate(loader):
        assert holds(batch, 4 * number)
        assert loader.stats()["arena_bytes"] <= 1 << 20


# ---- leaks


class Leaks(Drawn):
    """Each sample costs the worker a megabyte for good."""

    def __getitem__(self, index: int) -> torch.Tensor:
        KEPT.append(bytearray(os.urandom(1 << 10) * (1 << 10)))
        time.sleep(0.004)
        return super().__getitem__(index)


KEPT: list[bytearray] = []


def test_a_worker_that_leaks_is_drained_and_replaced_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    options = {**OPTIONS, "seed": 1, "worker_memory": own_bytes() + (60 << 20)}
    with caplog.at_level(logging.WARNING, "penstock"):
        loader = DataLoader(Leaks(900), **options)
        pids, batches = set(), []
        for batch in loader:
            pids.update(loader.stats()["worker_pids"])
            batches.append(batch.clone())
    assert same(batches, expected(Drawn(900), batch_size=4, seed=1)[0])
    assert len(pids) > 2, "no worker was replaced"
    assert "over worker_memory=" in caplog.text


def own_bytes() -> int:
    """What a worker inherits of this process and may come to own."""
    pages, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (pages - shared) * os.sysconf("SC_PAGE_SIZE")
