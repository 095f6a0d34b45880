"""A worker that dies costs time, never a sample: it is replaced, and what it had is prepared again by someone else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import DataLoader, WorkerDied
from tests.deaths import kill_all
from tests.fault.datasets import Drawn, Harmful, Stream, counted, expected, same
from tests.fault.programs import fair, is_alive, until

OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11, "num_workers": 2}
DEATHS = ("SIGKILL", "SIGTERM", "segfault", "abort", "_exit", "exit")


@pytest.mark.parametrize("harm", DEATHS)
def test_a_death_while_a_sample_is_prepared_leaves_no_trace_in_the_batches(harm: str, tmp_path: Path) -> None:
    loader = DataLoader(Harmful(harm, 17, tmp_path), **OPTIONS)
    assert same(list(loader), expected(Drawn(), **OPTIONS)[0])
    assert loader.stats()["restarts"] == 1
    assert counted(tmp_path, "sample-17") == 2


@pytest.mark.parametrize("collate", [None, list], ids=["slabs", "custom collate"])
def test_all_workers_killed_at_random_times_leave_no_trace_in_the_batches(collate: Any) -> None:
    options = {**OPTIONS, "collate_fn": collate}
    loader = DataLoader(Drawn(96, pause_s=0.001), **options)
    batches, killed = [], 0
    for number, batch in enumerate(loader):
        batches.append(batch)
        if number % 5 == 2:
            killed += kill_all(loader.stats()["worker_pids"])
    assert killed >= 2
    assert same(batches, expected(Drawn(96), **options)[0])


def test_a_death_is_noticed_at_once_and_the_next_batch_comes_soon() -> None:
    loader = DataLoader(Drawn(64, pause_s=0.01), **OPTIONS)
    batches = iter(loader)
    next(batches)
    assert kill_all(loader.stats()["worker_pids"])
    before = time.monotonic()
    for _ in range(5):  # beyond what was prepared before the kill
        next(batches)
    assert time.monotonic() - before < fair(2.0)


def test_workers_killed_between_two_epochs_are_there_again_in_the_next() -> None:
    options = {**OPTIONS, "persistent_workers": True}
    loader = DataLoader(Drawn(), **options)
    first = list(loader)
    assert kill_all(loader.stats()["worker_pids"])
    assert same([first, list(loader)], expected(Drawn(), epochs=2, **options))


def test_under_spawn_a_dead_worker_is_replaced_by_the_training_process(tmp_path: Path) -> None:
    options = {**OPTIONS, "num_workers": 1, "multiprocessing_context": "spawn"}
    loader = DataLoader(Harmful("SIGKILL", 17, tmp_path), **options)
    assert same(list(loader), expected(Drawn(), **options)[0])
    assert loader.stats()["restarts"] == 1


def test_a_sample_that_takes_three_workers_down_is_quarantined_and_the_rest_of_the_epoch_follows(
    tmp_path: Path,
) -> None:
    options = {**OPTIONS, "shuffle": False}
    loader = DataLoader(Harmful("SIGKILL", 17, tmp_path, times=99), **options)
    batches, errors = drained(loader)
    assert [
        str(error).startswith("DataLoader worker exited unexpectedly: sample 17 ") for error in errors
    ] == [True]
    assert isinstance(errors[0], WorkerDied)
    assert same(batches, expected(Drawn(), **options)[0][:4] + expected(Drawn(), **options)[0][5:])
    assert counted(tmp_path, "sample-17") == 3


def test_the_stack_of_a_segfault_reaches_the_parent(tmp_path: Path) -> None:
    loader = DataLoader(Harmful("segfault", 3, tmp_path, times=99), **{**OPTIONS, "shuffle": False})
    _, (error,) = drained(loader)
    assert "was killed by SIGSEGV" in str(error)
    assert "Fatal Python error: Segmentation fault" in str(error)
    assert "string_at" in str(error)
    assert f'File "{__file__.replace("test_worker_death", "datasets")}"' in str(error)


def test_workers_that_cannot_even_start_are_an_error_not_an_endless_loop() -> None:
    loader = DataLoader(Drawn(), worker_init_fn=die, **OPTIONS)
    with pytest.raises(WorkerDied, match="lost 4 times in a row, with nothing done"):
        next(iter(loader))


def die(worker: int) -> None:
    os._exit(9)


def test_a_dead_worker_of_an_iterable_dataset_is_said_in_the_place_of_its_next_batch() -> None:
    loader = DataLoader(Stream(40, pause_s=0.01), batch_size=2, num_workers=2)
    batches = iter(loader)
    next(batches)
    os.kill(loader.stats()["worker_pids"][1], signal.SIGKILL)
    kept, errors = drained(batches)
    assert [type(error) for error in errors] == [WorkerDied]
    numbers = torch.cat(kept).flatten().tolist()
    assert {number for number in numbers if number % 2 == 0} == set(range(0, 40, 2)) - {0, 2}
    assert len(numbers) == len(set(numbers))


def test_a_killed_worker_leaves_no_zombie() -> None:
    loader = DataLoader(Drawn(pause_s=0.002), **OPTIONS)
    batches = iter(loader)
    next(batches)
    pid = loader.stats()["worker_pids"][0]
    os.kill(pid, signal.SIGKILL)
    until(
        lambda: not is_alive(pid) and not os.path.exists(f"/proc/{pid}"),
        within_s=2,
        why="the dead worker is reaped",
    )
    list(batches)


def drained(loader: Any) -> tuple[list[Any], list[Exception]]:
    """All batches and all errors of an epoch, as a caller sees them who goes on after errors."""
    batches, errors, iterator = [], [], iter(loader)
    while True:
        try:
            batches.append(next(iterator))
        except StopIteration:
            return batches, errors
        except Exception as exc:
            errors.append(exc)
