"""What the manager of cores hears of a rank whose batches go to a device: where training is, and what a GPU lane has still to make."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
pytest.importorskip("triton")

from penstock import DataLoader, ImageFolder
from penstock.client.device import AHEAD, DeviceIterator
from penstock.client.mover import Mover
from penstock.gpu.slots import StationTask
from penstock.wire.arena import Board
from tests.cache_jobs import named
from tests.fault.programs import until
from tests.integration.test_lending import Sleeping, node_of
from tests.lanes_on_cpu import CHAIN, CPU, OnTheCpu, photos, prep_of

__all__ = ["photos"]


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_LENDING", "1")
    monkeypatch.setenv("PENSTOCK_GROUP", str(uuid.uuid4()))
    yield
    until(lambda: not named("penstock node"), within_s=10.0, why="a node does not end")


@pytest.mark.usefixtures("group")
def test_batches_that_wait_for_training_on_the_device_are_ahead() -> None:
    loader: DataLoader[Any] = DataLoader(
        Sleeping(100_000, cheap_s=0.001), 4, num_workers=1, prefetch_batches=4, device="cpu"
    )
    batches: Any = iter(loader)
    taken = 0

    def joins() -> bool:
        nonlocal taken
        next(batches)
        taken += 1
        return bool(node_of(loader).get("loaders"))

    ahead = 4 + AHEAD + 1  # of workers; on the device; the thread has one more in hand

    def rests() -> bool:
        (one,) = node_of(loader)["loaders"]
        return bool(one["batch"] == taken and one["ahead"] == ahead)

    until(joins, within_s=20.0, why="it does not join")
    until(rests, within_s=10.0, why="what the thread has taken counts as taken by training")
    batches.close()


class Held(OnTheCpu):
    """A station that makes files one by one, as it may."""

    may = threading.Semaphore(0)

    def make(self, task: StationTask, out: Any, after: Any) -> None:
        for _ in task.ordinals:
            assert self.may.acquire(timeout=20.0)
        super().make(task, out, after)


def test_files_that_the_lane_has_not_made_are_no_batches_ahead(photos: Path) -> None:
    dataset = ImageFolder(photos, CHAIN)
    prep = prep_of(dataset, 1.0, lambda look: [Held(look)])
    loader: DataLoader[Any] = DataLoader(prep.dataset, 4, shuffle=True, seed=5, num_workers=1)
    source: Any = loader._new_engine()
    run, asks = loader._begin()
    iterator = DeviceIterator(source, Mover(CPU, None, None, False, prep.lane), loader._counters)
    loader._bind(iterator, run)
    iterator.begin(asks, run.epoch)
    board = source._session.arena.board.agent
    try:
        Held.may.release(4)
        next(iterator)
        until(lambda: prep.lane.backlog == 2.0, within_s=10.0, why="not all files come to the lane")
        for left in (1, 0):
            Held.may.release(4)
            next(iterator)
            assert board[Board.AT_LANE] == 1000 * left
    finally:
        iterator.close()
