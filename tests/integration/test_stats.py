"""Looking in: stats, diagnosis, trace, process names, and one sample under a debugger."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import TensorDataset

from penstock import ConfigError, DataLoader
from tests.integration.noisy import SIZE, Captioned, Noisy, Ragged, Stream, draws, epoch, frozen

KEYS = {
    "engine", "epoch", "batches", "samples", "elapsed_s", "wait_s", "wait_share", "workers", "worker_pids", "agent_pid", "worker_s",
    "worker_busy_s", "stages_s", "tasks", "task_size", "ready_depth", "arena_bytes", "arena_limit_bytes", "held_bytes",
    "private_copies", "restarts", "reissued", "agent_restarts", "skipped", "source_retries", "cache", "gpu", "reuse", "remote", "sample_bytes",
    "worker_cpu_s", "worker_delayed_s", "recent", "node",
}  # fmt: skip
WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Slow(Noisy):
    """Samples of some milliseconds."""

    def __init__(self, size: int, sample_s: float) -> None:
        super().__init__(size)
        self.sample_s = sample_s

    def __getitem__(self, key: int) -> Any:
        time.sleep(self.sample_s)
        return super().__getitem__(key)


# ---- stats


@WORKERS
def test_stats_have_the_same_keys_before_during_and_after(workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4, num_workers=workers)
    assert set(loader.stats()) == KEYS
    for _ in loader:
        assert set(loader.stats()) == KEYS
    assert set(loader.stats()) == KEYS
    json.dumps(loader.stats())


@pytest.mark.parametrize("persistent", [False, True])
def test_stats_of_a_run_with_workers_add_up(persistent: bool) -> None:
    loader: DataLoader[Any] = DataLoader(
        Slow(SIZE, 0.002), 4, num_workers=2, persistent_workers=persistent, seed=1
    )
    began = time.monotonic()
    for _ in range(2):
        for _ in loader:
            pass
    took = time.monotonic() - began
    stats = loader.stats()
    assert (stats["engine"], stats["workers"], stats["epoch"]) == ("workers", 2, 1)
    assert (stats["batches"], stats["samples"]) == (2 * len(loader), 2 * SIZE)
    assert 0 < stats["wait_s"] <= stats["elapsed_s"] <= took
    assert 0 < stats["wait_share"] <= 1
    assert len(stats["worker_busy_s"]) == 2
    assert sum(stats["worker_busy_s"]) == pytest.approx(sum(stats["stages_s"].values()))
    assert stats["stages_s"]["prepare"] >= 2 * SIZE * 0.002
    assert stats["stages_s"]["write"] > 0
    assert stats["stages_s"]["collate"] == 0
    assert stats["tasks"] >= 2 * len(loader)
    assert stats["task_size"] >= 1
    assert (stats["restarts"], stats["agent_restarts"], stats["skipped"]) == (0, 0, 0)


def test_an_ended_epoch_has_no_processes_left_in_the_stats_unless_they_persist() -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4, num_workers=2)
    batches = iter(loader)
    next(batches)
    running = loader.stats()
    assert len(running["worker_pids"]) == 2
    assert running["agent_pid"] not in (0, os.getpid(), *running["worker_pids"])
    list(batches)
    ended = loader.stats()
    assert (ended["worker_pids"], ended["agent_pid"], ended["arena_bytes"]) == ([], 0, 0)

    kept: DataLoader[Any] = DataLoader(Noisy(), 4, num_workers=2, persistent_workers=True)
    list(kept)
    pids = kept.stats()["worker_pids"]
    list(kept)
    assert len(pids) == 2
    assert kept.stats()["worker_pids"] == pids


def test_stats_without_workers_count_and_wait() -> None:
    loader: DataLoader[Any] = DataLoader(Slow(8, 0.003), 4)
    list(loader)
    stats = loader.stats()
    assert (stats["engine"], stats["workers"], stats["batches"], stats["samples"]) == ("inline", 0, 2, 8)
    assert 8 * 0.003 <= stats["wait_s"] <= stats["elapsed_s"]


def test_time_in_a_custom_collate_is_told_apart() -> None:
    def collate(samples: list[Any]) -> int:
        time.sleep(0.005)
        return len(samples)

    loader: DataLoader[Any] = DataLoader(Ragged(), 4, num_workers=2, collate_fn=collate)
    assert sum(loader) == SIZE
    assert loader.stats()["stages_s"]["collate"] >= len(loader) * 0.005


def test_bytes_that_the_user_holds_are_shown_until_they_are_let_go() -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    batch = next(batches)
    stats = loader.stats()
    assert batch.nbytes <= stats["held_bytes"] <= stats["arena_bytes"] <= stats["arena_limit_bytes"]
    column = batch[:, 0].numpy()
    del batch
    assert loader.stats()["held_bytes"] > 0, "a NumPy view of a view is a view"
    del column
    assert loader.stats()["held_bytes"] == 0


def test_batches_beyond_half_of_the_memory_are_private_copies() -> None:
    class Large(Noisy):
        def __getitem__(self, key: int) -> Any:
            return torch.full((1000,), float(key))

    loader: DataLoader[Any] = DataLoader(Large(40), 4, num_workers=2, slab_bytes=100_000)
    batches = list(loader)
    assert [int(row[-1]) for batch in batches for row in batch] == list(range(40))
    stats = loader.stats()
    assert stats["private_copies"] > 0
    assert stats["arena_limit_bytes"] == 100_000


@pytest.mark.parametrize("settings", [{}, {"collate_fn": list}])
def test_small_batches_that_are_kept_do_not_fill_the_memory_either(settings: dict[str, Any]) -> None:
    """A batch occupies whole pages, however little it holds."""
    loader: DataLoader[Any] = DataLoader(Noisy(400), 4, num_workers=2, slab_bytes=100_000, **settings)
    assert len(list(loader)) == 100


# ---- diagnosis


def test_a_diagnosis_needs_some_batches() -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4)
    list(loader)
    assert loader.diagnose() == "only 6 batches so far; a diagnosis needs 10."


@WORKERS
def test_a_diagnosis_names_what_training_waits_for(workers: int) -> None:
    loader: DataLoader[Any] = DataLoader(Slow(SIZE, 0.003), 2, num_workers=workers)
    list(loader)
    sentence = loader.diagnose()
    assert sentence.startswith("training waits ")
    assert (f"{workers} workers on" if workers else "num_workers='auto' would use") in sentence


# ---- trace


@pytest.mark.parametrize("persistent", [False, True])
def test_a_trace_has_a_row_for_training_and_one_per_worker(tmp_path: Path, persistent: bool) -> None:
    path = tmp_path / "run.json"
    loader: DataLoader[Any] = DataLoader(
        Slow(SIZE, 0.02), 4, num_workers=2, trace=path, persistent_workers=persistent
    )
    list(loader)
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {0: "training", 1: "worker 0", 2: "worker 1"}
    tasks = [event for event in events if event.get("cat") == "task" and event["args"]["epoch"] == 0]
    assert {task["tid"] for task in tasks} == {1, 2}
    assert sum(task["args"]["samples"] for task in tasks) == SIZE
    assert {task["args"]["batch"] for task in tasks} == set(range(len(loader)))
    assert len([event for event in events if event.get("cat") == "wait"]) == len(loader)
    list(loader)
    assert {
        e["args"]["epoch"] for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "task"
    } >= {0, 1}


def test_a_trace_holds_the_loaders_numbers_also_of_an_epoch_that_is_broken_off(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    loader: DataLoader[Any] = DataLoader(Slow(SIZE, 0.02), 2, num_workers=2, trace=path)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    del batches
    about = json.loads(path.read_text())["penstock"]
    assert (about["stats"]["batches"], about["stats"]["workers"]) == (3, 2)
    assert about["diagnosis"] == loader.diagnose()
    assert about["environment"]["torch"].startswith(torch.__version__.partition("+")[0])


# ---- processes


def test_processes_have_readable_names() -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4, num_workers=2)
    batches = iter(loader)
    next(batches)
    stats = loader.stats()

    def names() -> list[str]:
        return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in stats["worker_pids"]]

    deadline = time.monotonic() + 10  # the second may be starting still
    while names() != ["penstock w0", "penstock w1"]:
        assert time.monotonic() < deadline, names()
        time.sleep(0.01)
    assert Path(f"/proc/{stats['agent_pid']}/comm").read_text().strip() == "penstock agent"


@WORKERS
def test_the_environment_can_ask_for_torchs_own_loader(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    def run(loader_class: Any) -> Any:
        torch.manual_seed(4)
        loader = loader_class(Noisy(), 4, shuffle=True, num_workers=workers)
        return loader, epoch(loader)

    monkeypatch.setenv("PENSTOCK_DISABLE", "1")
    loader, batches = run(DataLoader)
    assert loader.stats()["engine"] == "torch"
    assert "nothing is measured" in loader.diagnose()
    assert type(iter(loader)).__module__.startswith("torch.")
    if workers:
        assert batches == run(TorchDataLoader)[1]
    monkeypatch.setenv("PENSTOCK_DISABLE", "0")
    assert loader.stats()["engine"] == ("workers" if workers else "inline")


# ---- one sample


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("shard", [None, (1, 2)])
def test_debug_gives_the_sample_as_it_is_in_that_epochs_batch(shuffle: bool, shard: Any) -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4, shuffle=shuffle, num_workers=2, seed=1, shard=shard)
    for number in range(2):
        for row in torch.cat(list(loader))[:-1]:  # the last may be padding
            assert frozen(loader.debug(int(row[0]), number)) == frozen(row)


def test_debug_of_a_dict_sample_before_the_first_epoch_foretells_it_and_disturbs_nothing() -> None:
    torch.manual_seed(7)
    loader: DataLoader[Any] = DataLoader(Captioned(), 4)
    sample = loader.debug(2, 0)
    drawn = draws()
    torch.manual_seed(7)
    batch = next(iter(DataLoader(Captioned(), 4)))
    assert sample["text"] == batch["text"][2]
    assert frozen(sample["picture"]) == frozen(batch["picture"][2])
    torch.manual_seed(7)
    assert drawn[2] == draws()[2]


def test_debug_raises_the_samples_own_error_and_refuses_streams() -> None:
    class Fails(Noisy):
        def __getitem__(self, key: int) -> Any:
            raise StopIteration("mine")

    with pytest.raises(StopIteration, match="mine"):
        DataLoader(Fails()).debug(3)
    with pytest.raises(ConfigError, match="map-style"):
        DataLoader(Stream()).debug(3)


def test_a_loop_that_never_waits_does_not_take_more_and_more_memory() -> None:
    """Batches are ready whenever it asks: what it has let go of must be used again all the same."""
    batches = 120
    loader: DataLoader[Any] = DataLoader(
        TensorDataset(torch.zeros(batches, 1 << 14)), batch_size=1, num_workers=1, prefetch_batches=4
    )
    most = 0
    for batch in loader:
        time.sleep(0.002)
        most = max(most, loader.stats()["arena_bytes"])
        slab = batch[0].nbytes
    assert most <= 10 * slab
