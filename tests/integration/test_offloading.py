"""Remote workers are used when that pays, and only then: real processes behind TCP connections, and what the loader decides by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

import penstock
from penstock.client.remote_side import RemoteSide
from remote_here import Server, remote_workers

pytest.importorskip("cloudpickle")

LONGEST_S = 240.0
"""Until the decision is expected, on a busy machine."""


class Sleepy(Dataset[Any]):
    """Blocked samples: workers do not take each other's core, however few there are."""

    def __init__(self, seconds: float, *, elsewhere: float = 1.0, count: int = 640) -> None:
        self.seconds, self.elsewhere, self.count = seconds, elsewhere, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        is_remote = info is not None and info.id > 0  # one local worker: the others are remote
        time.sleep(self.seconds * (self.elsewhere if is_remote else 1.0))
        return torch.randn(3, 4, 4) + index, index


def loader_of(dataset: Sleepy, side: RemoteSide | None = None) -> Any:
    loader: Any = penstock.DataLoader(dataset, batch_size=16, shuffle=True, seed=5, num_workers=1)
    loader._remote = side
    return loader


def expected(dataset: Sleepy, epochs: int) -> list[bytes]:
    """The same batches from a loader without remote workers, and without the sleep."""
    loader = loader_of(Sleepy(0.0, count=dataset.count))
    return [images.numpy().tobytes() for _ in range(epochs) for images, _ in loader]


def trained(
    dataset: Sleepy,
    side: RemoteSide,
    *,
    until: Callable[[dict[str, Any]], bool],
    step_s: float = 0.0,
    least_epochs: int = 1,
) -> list[bytes]:
    """Train until the agent's account is as wanted, whole epochs, and return the batches."""
    loader, deadline, found, epochs = loader_of(dataset, side), time.monotonic() + LONGEST_S, [], 0
    while time.monotonic() < deadline:
        for images, _ in loader:
            found.append(images.numpy().tobytes())
            time.sleep(step_s)
        epochs += 1
        if epochs >= least_epochs and until(side.record.stats):
            break
    assert found == expected(dataset, epochs), "the same batches, wherever they were prepared"
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[RemoteSide, list[Server]]]:
    with remote_workers(2, share="auto") as (side, _, servers):
        yield side, servers


@pytest.fixture
def remote(cluster: tuple[RemoteSide, list[Server]]) -> tuple[RemoteSide, list[Server]]:
    """The same workers for every test, as for one program after the other."""
    return beside(cluster, share="auto"), cluster[1]


def beside(cluster: tuple[RemoteSide, list[Server]], **options: Any) -> RemoteSide:
    return RemoteSide(open_ferry=cluster[0].open_ferry, addresses=cluster[0].addresses, **options)


needs_full = pytest.mark.skipif(
    os.environ.get("PENSTOCK_FULL") != "1",
    reason="half a minute each: unit/test_course.py and unit/test_offloading.py are the short version",
)
STAGES = ("local", "hiring", "trial", "refining", "fixed")


def is_refined(stats: dict[str, Any]) -> bool:
    return bool(stats.get("stage") == "refining" and stats["samples"])


def test_where_training_waits_for_slow_samples_remote_workers_take_a_share(
    remote: tuple[RemoteSide, list[Server]],
) -> None:
    trained(Sleepy(0.005, count=1600), remote[0], until=is_refined)
    stats = remote[0].record.stats
    assert stats["stage"] == "refining"
    assert stats["reason"].startswith("offload ")
    assert {row["alive"] for row in stats["workers"]} == {True}
    assert all(row["bytes"] > 0 for row in stats["workers"])
    assert stats["preparing_s"] > 0
    assert stats["receiving_s"] > 0


def test_where_training_does_not_wait_nothing_is_offloaded(remote: tuple[RemoteSide, list[Server]]) -> None:
    measured = "no offloading: training could be"
    trained(
        Sleepy(0.0, count=1600),  # long enough: each epoch begins with a window that does not count
        remote[0],
        step_s=0.05,
        until=lambda stats: measured in stats.get("reason", ""),
    )
    stats = remote[0].record.stats
    assert measured in stats["reason"]
    assert (stats["samples"], stats["workers_wanted"], stats["workers"]) == (0, 0, [])


def test_a_loader_explains_what_it_decided(remote: tuple[RemoteSide, list[Server]]) -> None:
    loader = loader_of(Sleepy(0.0, count=320), remote[0])
    assert "remote workers: nothing is measured yet" in loader.explain()
    for _ in range(2):
        for _ in loader:
            time.sleep(0.05)
    assert loader.stats()["remote"]["plan"] == "samples"
    assert f"remote workers: {loader.stats()['remote']['reason']}" in loader.explain()


@needs_full
def test_a_remote_pool_that_is_far_slower_is_left_alone_again(
    remote: tuple[RemoteSide, list[Server]],
) -> None:
    dataset = Sleepy(0.004, elsewhere=60.0)
    tried = False

    def is_over(stats: dict[str, Any]) -> bool:
        nonlocal tried
        tried |= bool(stats.get("plans"))
        return tried and stats["share"] < 0.2

    trained(dataset, remote[0], until=is_over)
    stats = remote[0].record.stats
    assert stats["plans"][0]["remote"] < stats["local_rate"]
    assert stats["share"] < 0.2


@needs_full
@pytest.mark.parametrize("stage", ["hiring", "trial", "fixed"])
def test_remote_workers_that_die_in_any_stage_cost_no_batch(stage: str) -> None:
    with remote_workers(2, share=0.5 if stage == "fixed" else "auto") as (side, _, servers):
        dataset, loader = Sleepy(0.005), loader_of(Sleepy(0.005), side)
        found, epochs, deadline, killed = [], 0, time.monotonic() + LONGEST_S, False
        while time.monotonic() < deadline and not killed:
            for images, _ in loader:
                found.append(images.numpy().tobytes())
                stats = side.record.stats
                begun = stats.get("samples") if stage == "fixed" else True
                if not killed and begun and STAGES.index(stats.get("stage", "local")) >= STAGES.index(stage):
                    killed = True
                    for server in servers:
                        server.process.kill()
            epochs += 1
        assert killed
        found += [images.numpy().tobytes() for images, _ in loader]
        assert found == expected(dataset, epochs + 1)


def test_a_fixed_share_is_what_remote_workers_get(cluster: tuple[RemoteSide, list[Server]]) -> None:
    side = beside(cluster, share=0.25)
    loader = loader_of(Sleepy(0.004), side)
    list(loader)  # they are there from now on
    assert sum(len(indices) for _, indices in loader) == 640
    stats = side.record.stats
    assert stats["share"] == 0.25
    assert stats["samples"] <= 0.25 * 640 + 64
