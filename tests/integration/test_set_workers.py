"""The number of workers changes while batches are made: the same batches, other processes, no pause and nothing left."""

from __future__ import annotations

import copy
import os
import pickle
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from penstock import ConfigError, DataLoader
from penstock.agent.record import read_record
from penstock.measure import host
from penstock.sim import replay
from tests.conftest import FULL

PATIENCE_S = 30.0


class Slow(Dataset[Any]):
    """Samples with something random in them, which take a moment."""

    def __init__(self, length: int = 240, pause_s: float = 0.002) -> None:
        self.length, self.pause_s = length, pause_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.pause_s)
        return torch.rand(3), index


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(info.id if info else 0, 24, info.num_workers if info else 1))


class Team(Dataset[Any]):
    """Says who prepared a sample, and of how many."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[int, int]:
        time.sleep(0.002)
        info = get_worker_info()
        return (info.id, info.num_workers) if info is not None else (-1, 0)


class Batched(Dataset[Any]):
    """Wants all keys of a batch at once, and draws for all of them together."""

    def __len__(self) -> int:
        return 64 * 20

    def __getitems__(self, keys: list[int]) -> list[Any]:
        time.sleep(0.02)
        drawn = torch.rand(len(keys))
        return [(key, len(keys), drawn[at]) for at, key in enumerate(keys)]


def test_batches_that_are_asked_for_at_once_are_not_cut_for_new_workers() -> None:
    found = []
    for more in (0, 2):
        loader: DataLoader[Any] = DataLoader(Batched(), 64, num_workers=2, seed=1)
        batches = []
        for number, batch in enumerate(loader):
            batches.append([each.clone() for each in batch])
            if number == 6 and more:
                loader.set_workers(2 + more)
        found.append(batches)
    for one, other in zip(*found, strict=True):
        assert other[1].tolist() == [64] * 64
        assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def as_list(samples: list[Any]) -> list[Any]:
    return [value for sample in samples for value in sample]


def flat(batches: list[Any]) -> list[Any]:
    return [[torch.as_tensor(value).tolist() for value in batch] for batch in batches]


def alone(dataset: Any = None, epochs: int = 1, **options: Any) -> list[Any]:
    """What one process alone delivers."""
    loader = DataLoader(dataset or Slow(pause_s=0.0), 8, shuffle=True, seed=5, **options)
    return flat([batch for _ in range(epochs) for batch in loader])


def settled(loader: DataLoader[Any], workers: int) -> list[int]:
    """The workers' pids, once there are so many."""
    end = time.monotonic() + PATIENCE_S
    while len(pids := loader.stats()["worker_pids"]) != workers:
        assert time.monotonic() < end, f"{pids} are not {workers}"
        time.sleep(0.02)
    return pids


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("method", "persistent"),
    [("fork", False), ("fork", True), ("spawn", True), *([("spawn", False)] if FULL else [])],
)
def test_one_three_one_in_the_middle_of_an_epoch(method: str, persistent: bool) -> None:
    loader = DataLoader(
        Slow(),
        8,
        shuffle=True,
        num_workers=1,
        seed=5,
        multiprocessing_context=method,
        persistent_workers=persistent,
    )
    taken, pids = [], dict[int, list[int]]()
    for at, batch in enumerate(loader):
        taken.append(batch)
        if at in (3, 14):
            pids[at] = loader.stats()["worker_pids"]
            loader.set_workers(3 if at == 3 else 1)
            assert loader.num_workers == loader.stats()["workers"] == (3 if at == 3 else 1)
        if at == 10 and method == "fork":
            pids[at] = settled(loader, 3)
    assert flat(taken) == alone()
    if method == "fork":
        assert len(pids[3]) == 1
        assert set(pids[3]) < set(pids[10])
    if persistent:
        (left,) = settled(loader, 1)
        assert left == pids[3][0]
        assert flat(list(loader)) == alone(epochs=2)[30:]
    assert loader.stats()["restarts"] == loader.stats()["reissued"] == 0


def test_those_who_leave_are_gone_while_the_epoch_goes_on() -> None:
    loader = DataLoader(Slow(), 8, num_workers=4, persistent_workers=True, seed=5)
    batches = iter(loader)
    next(batches)
    pids = settled(loader, 4)
    loader.set_workers(2)
    next(batches)
    assert settled(loader, 2) == pids[:2]
    assert [is_alive(pid) for pid in pids] == [True, True, False, False]
    loader.set_workers(4)
    assert settled(loader, 4)[:2] == pids[:2]
    assert len(list(batches)) == 28


def step_times() -> tuple[float, float, float, float]:
    """Mean seconds from batch to batch with one worker, with four, with one again; and the longest of all."""
    loader = DataLoader(Slow(1600, 0.003), 16, num_workers=1, seed=5, prefetch_batches=2)
    at_s = []
    for at, _ in enumerate(loader):
        at_s.append(time.monotonic())
        if at == 20:
            loader.set_workers(4)
        if at == 70:
            loader.set_workers(1)
    steps = [after - before for before, after in pairwise(at_s)]
    one, four, again = (sum(steps[a:b]) / (b - a) for a, b in ((5, 20), (40, 70), (80, 98)))
    return one, four, again, max(steps)


def test_throughput_follows_without_a_pause() -> None:
    for _ in range(3):  # the machine has other work
        one, four, again, longest = step_times()
        if four < 0.6 * one and again > 1.5 * four and longest < 3 * one:
            return
    pytest.fail(f"{one=} {four=} {again=} {longest=}")


@pytest.mark.parametrize("collate", [None, as_list])
def test_the_window_follows_the_number_of_workers(collate: Any) -> None:
    loader = DataLoader(
        Slow(400), 4, shuffle=True, num_workers=1, seed=5, prefetch_factor=2, collate_fn=collate
    )
    batches: Any = iter(loader)
    next(batches)
    loader.set_workers(4)
    next(batches)
    assert len(batches._open) == 1 + 8
    loader.set_workers(1)
    for _ in range(12):
        next(batches)
    assert len(batches._open) == 1 + 2
    assert len(list(batches)) == 100 - 14


def test_before_the_first_epoch_and_between_epochs() -> None:
    for persistent in (False, True):
        loader = DataLoader(
            Slow(pause_s=0.0), 8, shuffle=True, num_workers=1, seed=5, persistent_workers=persistent
        )
        loader.set_workers(3)
        taken = list(loader)
        loader.set_workers(2)
        taken += list(loader)
        assert flat(taken) == alone(epochs=2)
        assert loader.num_workers == 2


def test_a_resumed_run_does_not_care() -> None:
    loader = DataLoader(Slow(pause_s=0.0), 8, shuffle=True, num_workers=2, seed=5)
    batches = iter(loader)
    taken = [next(batches) for _ in range(7)]
    loader.set_workers(4)
    taken += [next(batches) for _ in range(4)]
    state = loader.state_dict()
    del batches
    again = DataLoader(Slow(pause_s=0.0), 8, shuffle=True, num_workers=3, seed=5)
    again.load_state_dict(state)
    again.set_workers(1)
    assert flat(taken + list(again)) == alone()


def test_a_batch_on_a_device_is_copied_by_another_thread_meanwhile() -> None:
    loader = DataLoader(Slow(), 8, shuffle=True, num_workers=1, seed=5, device="cpu")
    taken = []
    for at, batch in enumerate(loader):
        taken.append(batch)
        if at in (4, 9, 14, 19):
            loader.set_workers(1 + at % 4)
    assert flat(taken) == alone()


def test_new_workers_are_told_how_many_there_are_to_be() -> None:
    loader = DataLoader(Team(), 8, num_workers=1)
    seen: set[tuple[int, int]] = set()
    for at, (ids, numbers) in enumerate(loader):
        seen |= set(zip(ids.tolist(), numbers.tolist(), strict=True))
        if at == 2:
            loader.set_workers(3)
    assert seen == {(0, 1), (1, 3), (2, 3)}


def test_a_recorded_run_with_changes_leads_to_the_same_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_RECORD", str(tmp_path / "run.jsonl"))
    loader = DataLoader(Slow(), 8, num_workers=2)
    for at, _ in enumerate(loader):
        if at in (3, 12):
            loader.set_workers(4 if at == 3 else 1)
    ((config, steps),) = read_record(tmp_path / "run.jsonl")
    assert replay(config, steps) is None
    assert [event.workers for event, _ in steps if type(event).__name__ == "ResizePool"] == [4, 1]


def test_those_that_are_there_go_on_while_others_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To start one takes a while: results that come meanwhile are looked at before the next is started."""
    monkeypatch.setenv("PENSTOCK_RECORD", str(tmp_path / "run.jsonl"))
    loader = DataLoader(Slow(600, 0.0005), 8, num_workers=2)
    for at, _ in enumerate(loader):
        if at == 3:
            loader.set_workers(10)
    ((_, steps),) = read_record(tmp_path / "run.jsonl")
    names = [type(event).__name__ for event, _ in steps]
    grown = names[names.index("ResizePool") :]
    starts = [at for at, name in enumerate(grown) if name == "WorkerStarted"]
    assert "Done" in grown[starts[0] : starts[-1]]


# ---- by itself


def test_auto_follows_the_affinity_of_the_training_process() -> None:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("needs two cores")
    loader = DataLoader(Slow(100_000), 8, num_workers="auto", persistent_workers=True)
    assert loader.num_workers >= 2
    batches, most = iter(loader), loader.num_workers
    next(batches)
    try:
        for cores in ({min(before)}, before):
            os.sched_setaffinity(0, cores)
            end = time.monotonic() + PATIENCE_S
            while loader.num_workers != (1 if len(cores) == 1 else most):
                assert time.monotonic() < end
                next(batches)
            pids = settled(loader, loader.num_workers)
            assert all(os.sched_getaffinity(pid) == cores for pid in pids)
    finally:
        os.sched_setaffinity(0, before)


def test_auto_follows_the_quota_of_the_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CGROUP", tmp_path)
    monkeypatch.setattr(host, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    loader = DataLoader(Slow(100_000), 8, num_workers="auto", multiprocessing_context="fork")
    batches, most = iter(loader), loader.num_workers
    next(batches)
    for quota, wanted in ((100_000, 1), (100_000 * most, most)):
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
        end = time.monotonic() + PATIENCE_S
        while loader.num_workers != wanted:
            assert time.monotonic() < end
            next(batches)
        assert len(settled(loader, wanted)) == wanted


def test_a_number_of_ones_own_ends_auto_and_auto_can_be_asked_for_again() -> None:
    loader = DataLoader(Slow(), 8, num_workers="auto")
    most = loader.num_workers
    loader.set_workers(most + 1)
    for at, _ in enumerate(loader):
        if at == 20:
            assert loader.num_workers == most + 1
            loader.set_workers("auto")
    assert loader.num_workers == most


# ---- what cannot be


@pytest.mark.parametrize("number", [0, -1])
def test_there_is_at_least_one_worker(number: int) -> None:
    with pytest.raises(ConfigError, match="at least 1 worker"):
        DataLoader(Slow(), num_workers=2).set_workers(number)


@pytest.mark.parametrize("number", ["many", 1.5, None])
def test_a_number_is_a_whole_one_or_auto(number: Any) -> None:
    with pytest.raises(ConfigError, match="whole number or 'auto'"):
        DataLoader(Slow(), num_workers=2).set_workers(number)


def test_there_is_a_limit() -> None:
    with pytest.raises(ConfigError, match="at most 1024"):
        DataLoader(Slow(), num_workers=2).set_workers(1025)


def test_a_loader_without_workers_gets_none() -> None:
    with pytest.raises(ConfigError, match="num_workers=0"):
        DataLoader(Slow()).set_workers(2)


@pytest.mark.parametrize("persistent", [False, True])
def test_an_iterable_datasets_shares_change_between_epochs_only(persistent: bool) -> None:
    loader = DataLoader(Numbers(), 4, num_workers=2, persistent_workers=persistent)
    loader.set_workers(3)
    batches = iter(loader)
    taken = [next(batches)]
    with pytest.raises(ConfigError, match="within an epoch of an iterable dataset"):
        loader.set_workers(2)
    assert loader.num_workers == 3
    taken += batches
    assert sorted(torch.cat(taken).tolist()) == list(range(24))
    loader.set_workers(2)
    assert sorted(torch.cat(list(loader)).tolist()) == list(range(24))
    assert loader.stats()["workers"] == 2


def test_a_loader_can_be_copied_and_pickled_as_before() -> None:
    loader = DataLoader(Slow(pause_s=0.0), 8, shuffle=True, num_workers="auto", seed=5)
    again: DataLoader[Any]
    for again in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        again.set_workers(2)
        assert flat(list(again)) == alone()
