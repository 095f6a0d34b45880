"""Rates that one run has measured begin the next: real remote workers behind TCP connections, a real store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock
from penstock.client.arguments import TorchArguments
from penstock.client.remote_side import RemoteSide
from penstock.client.workload import workload_of
from penstock.measure.metric_store import ACTIVE, PASSIVE, MetricStore, StoredMetrics, save
from penstock.policy.course_state import NOW, OffloadTerms
from penstock.policy.offload import Metrics
from penstock.policy.restored import restored
from remote_here import remote_workers
from tests.integration.test_offloading import LONGEST_S, Sleepy, loader_of

pytest.importorskip("cloudpickle")


class Busy(Sleepy):
    """Takes clearly more CPU time than it takes to receive a sample, also as measured on a busy machine."""

    def __getitem__(self, index: int) -> Any:
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        return super().__getitem__(index)


DATASET = Busy(0.004, count=6400)  # one epoch is enough


class FirstRun(NamedTuple):
    """A run that has measured and stored."""

    side: RemoteSide
    stats: dict[str, Any]
    row: StoredMetrics

    @property
    def metrics(self) -> Metrics:
        assert self.row.metrics is not None
        return self.row.metrics


def trained(loader: Any, until: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Train until the agent's account is as wanted; return it."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        for _ in loader:
            stats = loader.stats()["remote"]
            if stats and until(stats):
                return dict(stats)
    raise AssertionError(loader.stats()["remote"])


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstRun]:
    with (
        remote_workers(2, share="auto", plan="samples") as (side, _, _),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.delenv("PENSTOCK_STORED_METRICS", raising=False)
        patch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        stats = trained(loader_of(DATASET, side), lambda _: MetricStore().rows())
        (row,) = MetricStore().rows()
        yield FirstRun(side, stats, row)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PENSTOCK_STORED_METRICS", raising=False)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path))
    return tmp_path


def another(first: FirstRun, metrics: Metrics | None = None) -> Any:
    """A loader as another program makes it, with the same workers; `metrics` are stored for it."""
    side = first.side
    found = RemoteSide(open_ferry=side.open_ferry, addresses=side.addresses, share=side.share, plan=side.plan)
    loader = loader_of(DATASET, found)
    if metrics is not None:
        assert save(workload_of(loader._config, TorchArguments.of(loader), found), metrics, PASSIVE)
    return loader


def test_the_second_run_begins_with_what_the_first_one_measured(first: FirstRun) -> None:
    assert (first.row.how, first.stats["rates_from"]) == (PASSIVE, NOW)
    assert first.stats["time"]["measuring"]["seconds"] > 0
    loader = another(first, first.metrics)
    found = trained(loader, lambda told: told["samples"])
    assert (found["stage"], found["time"]["measuring"]["seconds"]) == ("refining", 0)
    assert found["local_rate"] == first.metrics.local
    assert found["plans"][0]["remote"] == first.metrics.plans[0].remote
    assert found["rates_from"].endswith("by an earlier run")
    assert found["rates_from"] in loader.explain()


def test_a_profile_and_a_running_loop_agree(first: FirstRun) -> None:
    loader = another(first)
    active = penstock.profile(lambda _: None, loader, seconds=2.0).metrics
    for ours, theirs in (
        (first.metrics.local, active.local),
        (first.metrics.plans[0].by(2).remote, active.plans[0].by(2).remote),
    ):
        assert 0.4 < ours / theirs < 2.5
    decisions = [restored(one, OffloadTerms(most=2), "") for one in (first.metrics, active)]
    assert [(one.plan, one.workers) for one in decisions] == 2 * [("samples", 2)]
    (row,) = MetricStore().rows()
    assert row.how == ACTIVE
    assert trained(loader, lambda told: told["samples"])["rates_from"].endswith("by penstock profile")


def test_rates_that_do_not_hold_are_measured_again(first: FirstRun) -> None:
    plans = tuple(replace(plan, remote=8 * plan.remote) for plan in first.metrics.plans)
    wrong = replace(first.metrics, plans=plans, refined=None)
    found = trained(another(first, wrong), lambda told: told["rates_from"].startswith(NOW))
    assert "did not hold" in found["rates_from"]


def test_a_store_that_cannot_be_read_is_one_line_of_explain(
    first: FirstRun, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "metrics.sqlite").mkdir()
    loader = another(first)
    trained(loader, lambda told: told["not_stored"])
    assert loader.explain().count("not kept between runs") == 1
    assert [one for one in caplog.records if one.levelname == "WARNING"] == []
