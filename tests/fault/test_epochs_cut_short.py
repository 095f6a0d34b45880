"""An epoch left early: whatever was under way is void, and the next epoch is whole and right."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import DataLoader
from tests.fault.datasets import Drawn, Stream, expected, same
from tests.fault.programs import until

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11, "num_workers": 2}
LENGTH, BATCHES = 24, 6


@pytest.mark.parametrize("collate", [None, list], ids=["slabs", "custom collate"])
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_an_epoch_after_a_break_at_any_batch_is_right(persistent: bool, collate: Any) -> None:
    options = {**OPTIONS, "persistent_workers": persistent, "collate_fn": collate}
    whole = expected(Drawn(LENGTH), epochs=2 * BATCHES + 2, **options)
    loader = DataLoader(Drawn(LENGTH, pause_s=0.0005), **options)
    for at in range(BATCHES + 1):
        kept = list(itertools.islice(loader, at))
        assert same(kept, whole[2 * at][:at]), f"broken off after {at}"
        assert same(list(loader), whole[2 * at + 1]), f"the epoch after a break after {at}"


def test_what_has_arrived_for_an_epoch_that_was_left_is_not_taken_for_the_next() -> None:
    options = {**OPTIONS, "persistent_workers": True, "timeout": 10}
    loader = DataLoader(Drawn(LENGTH), **options)
    next(iter(loader))
    until(lambda: sum(loader.stats()["worker_busy_s"]) > 0, within_s=5, why="workers have begun")
    time.sleep(0.3)  # the batches that were asked for are in the socket by now
    assert same(list(loader), expected(Drawn(LENGTH), epochs=2, **{**options, "timeout": 0})[1])


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_an_iterable_dataset_starts_anew_after_a_break(persistent: bool) -> None:
    loader = DataLoader(
        Stream(LENGTH, pause_s=0.0005), batch_size=4, num_workers=2, persistent_workers=persistent
    )
    whole = sorted(range(LENGTH))
    for at in range(BATCHES + 1):
        for _ in itertools.islice(loader, at):
            pass
        assert sorted(int(number) for batch in loader for number in batch) == whole, f"after {at}"


def test_an_exception_in_the_loop_body_ends_the_workers_of_that_epoch() -> None:
    loader = DataLoader(Drawn(), **OPTIONS)
    pids = []
    with contextlib.suppress(ZeroDivisionError):
        for _ in loader:
            pids += [*loader.stats()["worker_pids"], loader.stats()["agent_pid"]]
            raise ZeroDivisionError
    gc.collect()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_dropping_a_loader_ends_its_workers_at_once_and_without_a_collection() -> None:
    gc.disable()
    try:
        for persistent in (False, True):
            loader = DataLoader(Drawn(pause_s=0.01), **{**OPTIONS, "persistent_workers": persistent})
            batches = iter(loader)
            next(batches)
            pids = [*loader.stats()["worker_pids"], loader.stats()["agent_pid"]]
            del batches, loader
            assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        gc.enable()


def test_many_iterators_opened_and_dropped_leave_nothing() -> None:
    loader = DataLoader(Drawn(), **OPTIONS)
    next(iter(loader))
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for number in range(25):
        batches = iter(loader)
        for _ in range(number % 3):
            next(batches)
        del batches
        assert (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))) == before


def test_many_iterators_alive_at_once_do_not_disturb_each_other() -> None:
    loader = DataLoader(Drawn(LENGTH), **OPTIONS)
    whole = expected(Drawn(LENGTH), epochs=6, **OPTIONS)
    iterators = [iter(loader) for _ in range(6)]
    got: list[list[Any]] = [[] for _ in iterators]
    for _ in range(BATCHES):
        for kept, iterator in zip(got, iterators, strict=True):
            kept.append(next(iterator))
    assert same(got, whole)


def test_a_state_taken_after_a_break_goes_on_there() -> None:
    whole = expected(Drawn(LENGTH), **OPTIONS)[0]
    for at in range(BATCHES):
        loader = DataLoader(Drawn(LENGTH), **OPTIONS)
        kept = list(itertools.islice(loader, at))
        again = DataLoader(Drawn(LENGTH), **{**OPTIONS, "num_workers": 1})
        again.load_state_dict(loader.state_dict())
        assert same(kept + list(again), whole)
