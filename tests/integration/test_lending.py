"""Loaders of a machine that share its cores: of two ranks, of one process, of a named group. Batches are the same as without."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler

from penstock import DataLoader
from penstock.node.messages import NodeMsg, send
from tests.cache_jobs import named
from tests.fault.programs import fair, until
from tests.integration.groups import RANKS, facts_of_ranks
from tests.integration.lends import lending_in_a_group

STEPS, BATCH, SAMPLE_S = 60, 8, 0.004


class Sleeping(Dataset[torch.Tensor]):
    """Every other sample, those of rank 0, takes so many times as long; samples draw a number, too."""

    def __init__(self, samples: int, dearer: float = 1.0, cheap_s: float = SAMPLE_S) -> None:
        self.samples, self.dearer, self.cheap_s = samples, dearer, cheap_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.cheap_s * (self.dearer if index % RANKS == 0 else 1.0))
        return torch.tensor([index, int(torch.randint(1 << 30, ()))])


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from lending_in_a_group(monkeypatch)


def node_of(loader: DataLoader[Any]) -> dict[str, Any]:
    return dict(loader.stats()["node"] or {})


# ---- ranks


def training(rank: int, meeting: str, folder: str, lending: str) -> None:
    os.environ |= {"PENSTOCK_LENDING": lending, "LOCAL_WORLD_SIZE": str(RANKS)}
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=RANKS)
    data = Sleeping(RANKS * STEPS * BATCH, dearer=3.0)
    loader = DataLoader(data, batch_size=BATCH, shard="auto", seed=1, num_workers=1)
    batches, node = [], {}
    for step, batch in enumerate(loader):
        batches.append(batch.tolist())
        dist.barrier()
        if step == STEPS - 5:
            node = node_of(loader)
    (Path(folder) / f"{rank}.json").write_text(json.dumps([batches, node]))
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_in_step_lend_cores_and_get_the_same_batches(tmp_path: Path) -> None:
    facts = {}
    for lending in "01":
        (tmp_path / lending).mkdir()
        facts[lending] = facts_of_ranks(training, tmp_path / lending, lending)
    for alone, together in zip(facts["0"], facts["1"], strict=True):
        assert together[0] == alone[0]
        assert not alone[1]
    node = facts["1"][0][1]
    assert {one["rank"]: one["workers"] for one in node["loaders"]} == {0: 1, 1: 1}
    assert node["cores"] == RANKS
    borrower, lender = sorted(node["loaders"], key=lambda one: one["rank"])
    assert borrower["borrowed_s"] > 0
    assert lender["lent_s"] == pytest.approx(borrower["borrowed_s"])


# ---- launchers

STORE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
SRUN = {
    "SLURM_JOB_ID": "-1",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": str(RANKS),
    "SLURM_STEP_TASKS_PER_NODE": str(RANKS),
}
LAUNCHERS = {
    "srun": SRUN,
    "lightning": {**STORE, "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0"},
    "a script of one's own": STORE,
}


def meeting_others(rank: int, meeting: str, folder: str, launcher: str) -> None:
    os.environ |= {"PENSTOCK_LENDING": "watch", **LAUNCHERS[launcher]}
    os.environ["SLURM_STEP_ID" if launcher == "srun" else "MASTER_PORT"] = str(os.getppid())
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=RANKS)
    data = Sleeping(RANKS * STEPS * BATCH, cheap_s=0.001)
    loader: Any = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data), num_workers=1)
    seen, until_s = torch.zeros(2), time.monotonic() + fair(40.0)
    while seen[0] < RANKS and not seen[1]:
        for _ in loader:
            met = len(node_of(loader).get("ranks", [])) == RANKS
            seen = torch.tensor([float(met), float(time.monotonic() > until_s)])
            dist.all_reduce(seen)  # the ranks end together
            if seen[0] == RANKS or seen[1]:
                break
    (Path(folder) / f"{rank}.json").write_text(json.dumps(seen[0].item()))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_any_launcher_meet(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_GROUP", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert facts_of_ranks(meeting_others, tmp_path, launcher) == [RANKS, RANKS]


# ---- loaders of one process


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_loader_that_is_full_lends_to_another_of_its_process(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_GROUP")
    full: Any = DataLoader(Sleeping(64), BATCH, num_workers=2, multiprocessing_context=method)
    waiting: Any = DataLoader(Sleeping(40_000), BATCH, num_workers=1, multiprocessing_context=method)
    held, batches = iter(full), iter(waiting)
    next(held)
    taken = []

    def borrows() -> bool:
        taken.extend(row[0] for row in next(batches).tolist())
        return any(one["borrowed_s"] > 0 for one in node_of(waiting).get("loaders", [])) and (
            len(waiting.stats()["worker_pids"]) > 1
        )

    until(borrows, within_s=40.0, why="nothing is lent")
    for _ in range(20):
        taken.extend(row[0] for row in next(batches).tolist())
    assert taken == list(range(len(taken)))
    assert node_of(waiting)["cores"] == 3
    assert [row[0] for row in next(held).tolist()] == list(range(BATCH, 2 * BATCH))


def test_the_manager_sees_that_a_loader_ends_though_another_process_has_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PENSTOCK_GROUP")
    loader = DataLoader(Sleeping(64), batch_size=BATCH, num_workers=1)
    batches: Any = iter(loader)
    next(batches)
    side = batches._session.lending
    manager, stream = socket.socketpair()
    with manager, stream:  # this process has the copy
        send(side._ties.ours, NodeMsg.OPENED, side.facts.pack(), [stream.fileno()])
        manager.settimeout(10.0)
        assert manager.recv(1 << 16), "it joins"
        batches.close()
        while manager.recv(1 << 16):
            pass


def test_what_was_lent_is_known_after_an_epoch_that_was_left() -> None:
    loader = DataLoader(Sleeping(200 * BATCH), BATCH, num_workers=2)
    for _ in loader:
        if node_of(loader).get("loaders"):
            break
    assert [one["workers"] for one in node_of(loader)["loaders"]] == [2]


def test_a_loader_alone_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_GROUP")
    loader = DataLoader(Sleeping(64), batch_size=BATCH, num_workers=1)
    assert len(list(loader)) == 8
    assert not named("penstock node")
    assert not node_of(loader)


def test_nobody_lends_if_the_environment_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LENDING", "0")
    loader = DataLoader(Sleeping(64), batch_size=BATCH, num_workers=1)
    assert len(list(loader)) == 8
    assert not named("penstock node")


def test_loaders_that_follow_the_cores_have_no_more_workers_at_work_than_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaders = [DataLoader(Sleeping(4000), batch_size=BATCH, num_workers="auto") for _ in range(2)]
    batches = [iter(loader) for loader in loaders]

    def cores_are_shared() -> bool:
        for each in batches:
            next(each)
        found = node_of(loaders[0]).get("loaders", [])
        return len(found) == 2 and sum(one["allowed"] for one in found) <= len(os.sched_getaffinity(0))

    until(cores_are_shared, within_s=20.0, why="the cores are not shared")
