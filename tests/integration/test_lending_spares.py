"""Workers for borrowed cores that cannot start: training goes on without them, and is told so once."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import DataLoader
from tests.fault.programs import until
from tests.integration.lends import lending_in_a_group
from tests.integration.test_lending import BATCH, Sleeping, node_of

MORE = 30
"""Batches that are taken after the worker was given up."""


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from lending_in_a_group(monkeypatch)


def only_for_own(worker: int) -> None:
    """Sets up worker `worker` from a list of as many seeds as the user has asked for workers."""
    [17][worker]


def train_beside_a_lender(
    method: str, caplog: pytest.LogCaptureFixture, *, before: Callable[[DataLoader[Any], Sleeping], None] = lambda _, __: None, **options: Any
) -> str:  # fmt: skip
    """Train with one worker beside a loader that lends two, until a worker for their cores is given up, and on; return the warning."""
    data = Sleeping(40_000)
    short: Any = DataLoader(data, BATCH, num_workers=1, multiprocessing_context=method, **options)
    batches, taken = iter(short), list[int]()

    def take() -> None:
        taken.extend(row[0] for row in next(batches).tolist())

    def joined() -> bool:
        take()
        return len(node_of(short).get("loaders", [])) == 1

    def warned() -> bool:
        take()
        return bool(warnings())

    def alone() -> bool:
        take()
        return len(short.stats()["worker_pids"]) == 1

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "penstock"]

    until(joined, within_s=40.0, why="it does not join the others")
    before(short, data)
    held = iter(DataLoader(Sleeping(64), BATCH, num_workers=2, multiprocessing_context=method))
    next(held)
    until(warned, within_s=40.0, why="no worker is given up")
    until(
        alone, within_s=40.0, why="a worker for a borrowed core stays"
    )  # the other one may be slow to start
    for _ in range(MORE):
        take()
    assert taken == list(range(len(taken)))
    assert alone()
    assert short.stats()["agent_restarts"] == 0
    (warning,) = warnings()
    assert "PENSTOCK_LENDING=0" in warning
    return warning


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_init_that_takes_only_the_ranks_own_workers_costs_no_batch(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    warning = train_beside_a_lender(method, caplog, worker_init_fn=only_for_own)
    assert "failed in worker_init_fn (IndexError: list index out of range)" in warning
    assert "in only_for_own" in warning


def test_a_machine_without_descriptors_for_another_worker_costs_no_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def forbid(loader: DataLoader[Any], _: Sleeping) -> None:
        agent = loader.stats()["agent_pid"]
        _, most = resource.prlimit(agent, resource.RLIMIT_NOFILE)
        resource.prlimit(agent, resource.RLIMIT_NOFILE, (3, most))

    assert "could not be started ([Errno 24] Too many open files)" in train_beside_a_lender(
        "fork", caplog, before=forbid
    )


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_dataset_that_can_be_pickled_no_more_costs_no_batch(caplog: pytest.LogCaptureFixture) -> None:
    def lock(_: DataLoader[Any], data: Sleeping) -> None:
        data.lock = threading.Lock()  # type: ignore[attr-defined]

    warning = train_beside_a_lender("spawn", caplog, before=lock)
    assert "could not be started (TypeError: cannot pickle" in warning
