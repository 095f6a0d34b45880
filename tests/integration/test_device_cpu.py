"""`device="cpu"`: the way of a batch to its device, without one: what is converted, what runs ahead, what ends with it."""

from __future__ import annotations

import gc
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import IterableDataset

from penstock import ConfigError, DataLoader, PenstockError
from penstock.client.mover import Mover
from penstock.gpu.gate import Gate
from tests.integration.noisy import SIZE, Captioned, Noisy, Ragged, epoch, frozen, order_of

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Pictures(Noisy):
    """A picture, a mask, a caption and a label."""

    def __getitem__(self, key: int) -> Any:
        return {
            "picture": torch.rand(3, 8, 6),
            "more": [torch.rand(2, 2), (torch.rand(3, 4, 5), f"caption {key}")],
            "label": key,
        }


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


def copying() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock device"]


@contextmanager
def ends_with_it(loader: DataLoader[Any]) -> Iterator[None]:
    """What is dropped meanwhile takes the loader's thread and processes along, and nobody collects garbage for that."""
    assert len(copying()) == 1
    processes = [loader.stats()["agent_pid"], *loader.stats()["worker_pids"]]
    del loader
    gc.disable()
    try:
        yield
        assert until(lambda: not copying())
        assert until(lambda: not any(map(psutil.pid_exists, processes)))
    finally:
        gc.enable()


# ---- what arrives


@WORKERS
@pytest.mark.parametrize("dataset", [Noisy, Captioned, Pictures])
def test_batches_are_those_of_a_loader_without_a_device(workers: int, dataset: Any) -> None:
    plain: DataLoader[Any] = DataLoader(dataset(), 4, shuffle=True, seed=1)
    placed: DataLoader[Any] = DataLoader(
        dataset(), 4, shuffle=True, seed=1, num_workers=workers, device="cpu"
    )
    for _ in range(2):
        assert epoch(placed) == epoch(plain)


@WORKERS
def test_custom_batches_pass_through(workers: int) -> None:
    settings: dict[str, Any] = {"collate_fn": list, "batch_size": 4, "seed": 1}
    plain: DataLoader[Any] = DataLoader(Ragged(), **settings)
    placed: DataLoader[Any] = DataLoader(Ragged(), **settings, num_workers=workers, device="cpu")
    assert epoch(placed) == epoch(plain)


@WORKERS
def test_dtype_and_memory_format_are_those_of_image_tensors_only(workers: int) -> None:
    settings: dict[str, Any] = {"batch_size": 5, "seed": 1, "num_workers": workers}
    plain: DataLoader[Any] = DataLoader(Pictures(), **settings)
    placed: DataLoader[Any] = DataLoader(
        Pictures(),
        **settings,
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
    )
    for expected, batch in zip(plain, placed, strict=True):
        picture, (flat, (inner, _)) = batch["picture"], batch["more"]
        assert torch.equal(picture, expected["picture"].to(torch.bfloat16))
        assert picture.is_contiguous(memory_format=torch.channels_last)
        assert inner.dtype is torch.bfloat16
        assert flat.dtype is torch.float32
        assert batch["label"].dtype is torch.int64


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": torch.float16}, "give device= too"),
        ({"memory_format": torch.channels_last}, "give device= too"),
        ({"device": "warp"}, "device must be a torch device"),
        ({"device": ["cpu"]}, "device must be a torch device"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataLoader(Noisy(), **settings)


# ---- errors


class Fails(Noisy):
    def __getitem__(self, key: int) -> Any:
        if key == 5:
            raise LookupError(f"no sample {key}")
        return super().__getitem__(key)


@WORKERS
def test_a_samples_error_comes_in_its_place_and_the_next_batch_follows(workers: int) -> None:
    batches = iter(DataLoader(Fails(), 4, seed=1, num_workers=workers, device="cpu"))
    assert order_of([next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(LookupError, match="no sample 5"):
        next(batches)
    assert order_of(batches) == list(range(8, SIZE))


@WORKERS
def test_a_samplers_error_arrives_in_the_training_loop(workers: int) -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            yield from range(4)
            raise LookupError("the sampler fails")

    loader: DataLoader[Any] = DataLoader(
        Noisy(),
        4,
        sampler=Broken(),
        num_workers=workers,
        device="cpu",
        prefetch_factor=1 if workers else None,
    )
    with pytest.raises(LookupError, match="the sampler fails"):
        list(loader)


# ---- what runs ahead


def test_only_batches_that_were_handed_out_count_though_a_thread_runs_ahead() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Noisy(), 4, shuffle=True, seed=1, num_workers=2, device="cpu")

    whole = epoch(make())
    loader = make()
    batches: Any = iter(loader)
    head = [frozen(next(batches)) for _ in range(2)]
    assert until(lambda: len(batches._shelf.items) >= 3), "the thread takes batches that nobody asked for"
    assert (loader.stats()["batches"], loader.stats()["samples"]) == (2, 8)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["batches"] == 2
    resumed = make()
    resumed.load_state_dict(state)
    assert head + epoch(resumed) == whole


def test_a_dropped_iterator_ends_its_thread_and_processes() -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(200), 4, seed=1, num_workers=2, device="cpu")
    batches = iter(loader)
    next(batches)
    with ends_with_it(loader):
        del batches
    assert (loader.stats()["agent_pid"], loader.stats()["worker_pids"]) == (0, [])


def test_an_exhausted_iterator_has_no_thread() -> None:
    list(DataLoader(Noisy(), 4, seed=1, num_workers=2, device="cpu"))
    assert not copying()


def test_an_epoch_left_early_is_void_with_persistent_workers() -> None:
    loader: DataLoader[Any] = DataLoader(
        Noisy(), 4, shuffle=True, seed=1, num_workers=2, device="cpu", persistent_workers=True
    )
    plain: DataLoader[Any] = DataLoader(Noisy(), 4, shuffle=True, seed=1)
    for _ in range(2):
        next(iter(loader))
        iter(plain)
    assert epoch(loader) == epoch(plain)


# ---- without workers


def test_without_workers_nothing_runs_beside_the_training_loop() -> None:
    batches = iter(DataLoader(Noisy(), 4, seed=1, device="cpu"))
    torch.manual_seed(3)
    random.seed(3)
    drawn = []
    for _ in range(3):
        next(batches)
        assert not copying()
        drawn.append((random.random(), torch.rand(1).item()))
    torch.manual_seed(3)
    random.seed(3)
    assert drawn == [(random.random(), torch.rand(1).item()) for _ in range(3)]


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_without_state_is_fast_forwarded_on_its_way_to_a_device(workers: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Counting(), 4, num_workers=workers, device="cpu")

    whole = epoch(make())
    loader = make()
    batches = iter(loader)
    next(batches)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="1 batches are prepared again"):
        assert epoch(resumed) == whole[1:]


class Queue:
    """What training has given the device: done, or not."""

    def __init__(self, *, is_done: bool) -> None:
        self.is_done = is_done

    def query(self) -> bool:
        return self.is_done


@pytest.mark.parametrize("is_done", [True, False])
def test_training_waits_only_while_the_device_has_nothing_to_do(is_done: bool) -> None:
    told: list[float] = []

    class Lane:
        gate = Gate()

        def taken(self, arrival: Any, asked_s: float, ready: int, ahead: int) -> None:
            told.append(time.perf_counter() - asked_s)

    lane: Any = Lane()
    mover = Mover("cpu", None, None, pin=False, lane=lane)
    mover.in_use.until(Queue(is_done=is_done))
    mover.taken(None, time.perf_counter() - 5.0, 0, 8)
    assert (told[0] > 4.0) is is_done


def test_batches_that_are_ready_are_counted() -> None:
    loader: DataLoader[Any] = DataLoader(Noisy(), 4, num_workers=1, prefetch_batches=2)
    engine = loader._new_engine()
    run, asks = loader._begin()
    loader._bind(engine, run)
    engine.begin(asks, run.epoch)
    try:
        for _ in range(SIZE // 4):
            time.sleep(0.5)  # the worker goes on to the next one meanwhile
            assert engine.pull() is not None
            if engine.ready:
                break
        assert engine.ready >= 1
    finally:
        engine.close()


def test_an_iteration_that_is_halted_does_not_look_like_one_that_has_ended() -> None:
    """As where an interrupt falls into its halt, and the caller goes on with the iterator."""
    loader: DataLoader[Any] = DataLoader(Noisy(), 1, num_workers=1, device="cpu")
    batches: Any = iter(loader)
    next(batches)
    batches._shelf.end()
    with pytest.raises(PenstockError, match="was interrupted while it was being closed"):
        list(batches)
    assert not batches.run.finished
    batches.close()


def test_nothing_is_brought_to_the_device_any_more_when_an_iteration_is_halted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be no place for it; and at the end of a program those who would prepare it have left."""
    moved: list[Any] = []
    move = Mover.move
    monkeypatch.setattr(Mover, "move", lambda mover, batch: (moved.append(batch), move(mover, batch))[1])
    loader: DataLoader[Any] = DataLoader(Noisy(), 1, num_workers=1, device="cpu")
    batches: Any = iter(loader)
    batches._mover._places.most = 1
    next(batches)
    source = batches._source
    assert until(lambda: source._handed > 0)  # the next one waits for its place
    batches._halt()
    assert len(moved) == 1
    batches.close()
