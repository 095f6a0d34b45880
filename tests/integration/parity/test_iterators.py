"""Iterators: left early, several at once, persistent, out of order, and what a worker sees of its process and dataset."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from .datasets import LeaveANote, Made, Scaled, Sharded, Streamed, keep
from .harness import SUBJECT_IS_TORCH, Loader, assert_same, attempt, drain, drain_iterator, subject

WORKERS: dict[str, dict[str, Any]] = {
    "0": {},
    "2": {"num_workers": 2},
    "2 persistent": {"num_workers": 2, "persistent_workers": True},
}
MULTI = [name for name in WORKERS if name != "0"]


@pytest.mark.skipif(SUBJECT_IS_TORCH, reason="torch's loader has no engine to name")
@pytest.mark.parametrize(("num_workers", "engine"), [(0, "inline"), (2, "workers")])
def test_the_batches_of_this_suite_are_our_engines(num_workers: int, engine: str) -> None:
    for dataset in (Scaled(6), Streamed(6)):
        loader: Any = subject()(dataset, 2, num_workers=num_workers)
        assert len(list(loader)) >= 3
        assert loader.stats()["engine"] == engine


@pytest.mark.parametrize("workers", WORKERS)
def test_an_iterator_is_its_own_iterator_has_a_length_and_stays_exhausted(workers: str) -> None:
    def case(loader_class: Loader) -> object:
        iterator: Any = iter(loader_class(Scaled(5), 2, **WORKERS[workers]))
        facts = [iter(iterator) is iterator, len(iterator), drain_iterator(iterator)]
        return [*facts, next(iterator, "still over"), next(iterator, "still over")]

    assert_same(case)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("taken", [0, 2, 5])
def test_an_epoch_left_early_leaves_the_next_one_whole(taken: int, workers: str) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(9), 2, **WORKERS[workers])
        return [list(itertools.islice(loader, taken)), drain(loader), drain(loader)]

    assert_same(case)


@pytest.mark.parametrize("workers", WORKERS)
def test_an_iterable_epoch_left_early_leaves_the_next_one_whole(workers: str) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Sharded([5, 4]), 2, **WORKERS[workers])
        return [list(itertools.islice(loader, 2)), drain(loader)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_iterators_of_one_loader_do_not_disturb_each_other(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(9), 2, num_workers=num_workers)
        first = iter(loader)
        seen = [next(first), next(first)]
        second = iter(loader)
        return [seen, next(second), next(first), drain_iterator(second), drain_iterator(first)]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_can_be_zipped_with_itself(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(5), 2, num_workers=num_workers)
        return list(zip(loader, loader, strict=True))

    assert_same(case)


@pytest.mark.parametrize("workers", WORKERS)
def test_loops_over_several_loaders_can_be_nested(workers: str) -> None:
    def case(loader_class: Loader) -> object:
        dataset = Scaled(4)
        outer, inner = (loader_class(dataset, size, **WORKERS[workers]) for size in (2, 3))
        return [[first, second] for first in outer for second in inner]

    assert_same(case)


def test_persistent_workers_have_one_iterator_that_begins_again() -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(9), 2, num_workers=2, persistent_workers=True)
        first = iter(loader)
        seen = [next(first), next(first)]
        again = iter(loader)
        return [seen, again is first, drain_iterator(again), iter(loader) is first, drain_iterator(first)]

    assert_same(case)


def test_persistent_workers_are_the_same_processes_and_others_are_not() -> None:
    def case(loader_class: Loader) -> object:
        facts = []
        for persistent in (False, True):
            dataset = Made(8, lambda k: os.getpid())
            loader = loader_class(dataset, 1, num_workers=1, persistent_workers=persistent)
            first, second = ({int(pid) for pid in loader} for _ in range(2))
            facts.append([first == second, len(first), len(second)])
        return facts

    assert_same(case)


@pytest.mark.parametrize("workers", WORKERS)
def test_workers_see_the_dataset_as_it_is_at_iter(workers: str) -> None:
    """Changed between epochs: seen by new workers, not by persistent ones. Changed after `iter()`: not seen by workers."""

    def case(loader_class: Loader) -> object:
        dataset = Scaled(6)
        loader = loader_class(dataset, 2, **WORKERS[workers])
        epochs = [drain(loader)]
        dataset.scale = 10
        epochs.append(drain(loader))
        iterator = iter(loader)
        dataset.scale = 100
        epochs.append(drain_iterator(iterator))
        return epochs

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("size", [1, 9, 24])
def test_out_of_order_gives_the_same_batches_in_some_order(size: int, num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Made(size, int), 2, num_workers=num_workers, in_order=False)
        return [sorted(batch.tolist() for batch in loader) for _ in range(2)]

    assert_same(case)


def test_a_batch_that_takes_too_long_raises_torchs_timeout() -> None:
    def slow(key: int) -> int:
        time.sleep(1.0 if key == 1 else 0)
        return key

    def case(loader_class: Loader) -> object:
        iterator = iter(loader_class(Made(4, slow), 1, num_workers=1, timeout=0.3))
        return [next(iterator), attempt(lambda: next(iterator))]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_timeout_that_does_not_expire_changes_nothing(num_workers: int) -> None:
    assert_same(lambda L: drain(L(Scaled(7), 2, num_workers=num_workers, timeout=30)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_worker_info_is_torchs_in_workers_and_absent_outside(num_workers: int) -> None:
    """Which worker prepares a map-style sample is not torch's to say; its base seed and the rest is."""

    def informed(key: int) -> Any:
        info = get_worker_info()
        if info is None:
            return None
        facts = [
            info.num_workers,
            info.seed - info.id,
            type(info.dataset).__name__,
            0 <= info.id < info.num_workers,
        ]
        return [*facts, type(info).__module__, type(info).__qualname__]

    def case(loader_class: Loader) -> object:
        loader = loader_class(Made(6, informed), 2, num_workers=num_workers, collate_fn=keep)
        return [drain(loader), get_worker_info()]

    assert_same(case)


def test_worker_info_cannot_be_changed_as_in_torch() -> None:
    def change(key: int) -> str:
        info: Any = get_worker_info()
        try:
            info.id = 9
        except Exception as exc:
            return type(exc).__name__
        return "changed"

    assert_same(lambda L: drain(L(Made(2, change), 1, num_workers=1)))


def test_a_worker_is_a_daemonic_child_with_one_thread_for_torch() -> None:
    def surroundings(key: int) -> Any:
        process = multiprocessing.current_process()
        has_parent = multiprocessing.parent_process() is not None
        return [process.daemon, has_parent, torch.get_num_threads(), os.getpid() != here]

    here = os.getpid()
    assert_same(lambda L: drain(L(Made(4, surroundings), 1, num_workers=2, collate_fn=keep)))


class Patient(Scaled):
    """Prepares nothing before every worker has left its note, so that no worker can be too late for a short epoch."""

    def __init__(self, size: int, folder: Path) -> None:
        super().__init__(size)
        self.folder, self.starts = folder, 0

    def __getitem__(self, key: int) -> torch.Tensor:
        info = get_worker_info()
        notes = [self.folder / f"worker-{number}" for number in range(info.num_workers if info else 0)]
        deadline = time.monotonic() + 20
        while not all(note.exists() and note.read_text().count("\n") >= self.starts for note in notes):
            assert time.monotonic() < deadline, "a worker was never started"
            time.sleep(0.002)
        return super().__getitem__(key)


@pytest.mark.parametrize("workers", WORKERS)
def test_worker_init_fn_runs_once_in_every_worker_with_its_number(workers: str, tmp_path: Path) -> None:
    def case(loader_class: Loader) -> object:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        dataset = Patient(12, folder)
        loader = loader_class(dataset, 2, **WORKERS[workers], worker_init_fn=LeaveANote(folder))
        for _ in range(2):
            dataset.starts += 1
            drain(loader)
        return {note.name: note.read_text() for note in sorted(folder.iterdir())}

    assert_same(case)


def test_worker_init_fn_can_change_the_workers_dataset() -> None:
    def rescale(worker_id: int) -> None:
        info: Any = get_worker_info()
        info.dataset.scale = 50

    assert_same(lambda L: drain(L(Scaled(6), 2, num_workers=2, worker_init_fn=rescale)))


@pytest.mark.parametrize("workers", MULTI)
def test_global_state_that_worker_init_fn_sets_is_there_for_the_dataset(workers: str) -> None:
    shared: dict[str, int] = {}

    def set_up(worker_id: int) -> None:
        shared["ready"] = 1

    assert_same(
        lambda L: drain(
            L(Made(6, lambda k: k + shared["ready"]), 2, **WORKERS[workers], worker_init_fn=set_up)
        )
    )


class LoaderInside(Made):
    """Each sample is an epoch of another loader."""

    def __init__(self, loader_class: Loader, inner_workers: int) -> None:
        super().__init__(3, self.epoch)
        self.loader_class, self.inner_workers = loader_class, inner_workers

    def epoch(self, key: int) -> Any:
        inner: DataLoader[Any] = self.loader_class(Scaled(3, key), 2, num_workers=self.inner_workers)
        return torch.cat(list(inner))


# What a dataset draws does not move the training process's generators, as it does in torch without workers: the inner
# loader's base seeds are such draws.
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_can_iterate_a_loader_without_workers_of_its_own(num_workers: int) -> None:
    assert_same(lambda L: drain(L(LoaderInside(L, 0), 2, num_workers=num_workers)), draws=num_workers > 0)


def test_without_workers_a_dataset_can_iterate_a_loader_with_workers() -> None:
    assert_same(lambda L: drain(L(LoaderInside(L, 1), 2)), draws=False)


def test_workers_inside_workers_are_refused_as_in_torch() -> None:
    assert_same(lambda L: drain(L(LoaderInside(L, 1), 3, num_workers=1)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_in_a_daemonic_process_does_what_torchs_does(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        context = multiprocessing.get_context("fork")
        receiver, sender = context.Pipe(duplex=False)

        def work() -> None:
            outcome = attempt(
                lambda: [b.tolist() for b in loader_class(Scaled(4), 2, num_workers=num_workers)]
            )
            sender.send(outcome)

        process = context.Process(target=work, daemon=True)
        process.start()
        outcome = receiver.recv() if receiver.poll(30) else "no answer"
        process.join(10)
        receiver.close()
        sender.close()
        return [outcome, process.exitcode]

    assert_same(case)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_training_process_keeps_its_own_generators_while_it_loads(num_workers: int) -> None:
    def case(loader_class: Loader) -> object:
        loader = loader_class(Scaled(6), 2, num_workers=num_workers)
        return [[float(torch.rand(())), random.random(), float(np.random.rand())] for _ in loader]

    assert_same(case)
