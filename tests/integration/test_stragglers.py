"""Two ranks with a barrier in every step: stats, diagnosis and trace name the one that holds up the other, and say why."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from penstock import DataLoader
from tests.cache_jobs import named, until
from tests.integration.groups import facts_of_ranks

BATCHES, BATCH = 60, 8
CHEAP_S, DEAR_S = 0.004, 0.012


class Samples:
    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return torch.full((4,), float(index))


def train(rank: int, meeting: str, folder: str, job: dict[str, Any]) -> None:
    """Be a rank as torchrun starts it; its samples and workers are those of the job."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", PENSTOCK_GROUP=meeting, **job["environ"]
    )
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    loader: DataLoader[Any] = DataLoader(
        Samples(job["sleep_s"][rank]),
        BATCH,
        num_workers=job["workers"][rank],
        trace=Path(folder) / f"trace{rank}.json",
    )
    for number, _ in enumerate(loader):
        if number == 0 and job["meets"]:
            until(
                lambda: len((loader.stats()["node"] or {"loaders": ()})["loaders"]) == 2,
                within_s=30,
                why="ranks join",
            )
        distributed.barrier()
    stats = loader.stats()
    found = {"node": stats["node"], "said": loader.diagnose(), "recent": stats["recent"]}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def trained(folder: Path, **job: Any) -> list[Any]:
    folder.mkdir(exist_ok=True)
    plain = {
        "sleep_s": (DEAR_S, CHEAP_S),
        "workers": (2, 2),
        "environ": {"PENSTOCK_LENDING": "1"},
        "meets": True,
    }
    found = facts_of_ranks(train, folder, plain | job)
    until(lambda: not named("penstock node"), within_s=30, why="the node process ends with the last rank")
    return found


def test_without_lending_the_slow_rank_is_named_by_both(tmp_path: Path) -> None:
    for one in trained(tmp_path, environ={"PENSTOCK_LENDING": "watch"}):
        last = one["node"]["slowest"]
        assert (last["rank"], last["ranks"], last["why"]) == (0, [0], "source")
        assert last["share"] > 0.5
        assert last["sample_times"] == pytest.approx(3.0, rel=0.3)
        assert "Rank 0 holds up the others" in one["said"]
        assert "mostly blocked" in one["said"]
        assert one["recent"]["workers"] == 2


def test_lending_is_shown_and_leaves_less_to_wait_for(tmp_path: Path) -> None:
    watched, lent = tmp_path / "watched", tmp_path / "lent"
    before = trained(watched, environ={"PENSTOCK_LENDING": "watch"})[1]["node"]["slowest"]
    slow, quick = trained(lent)
    by_rank = {one["rank"]: one for one in slow["node"]["ranks"]}
    assert by_rank[0]["cores"] > 2.2 > 1.8 > by_rank[1]["cores"]
    assert slow["recent"]["workers"] >= 2 >= quick["recent"]["workers"]
    after = slow["node"]["slowest"]
    assert after is None or after["held_s"] < 0.6 * before["held_s"]
    changes = [
        event["args"]
        for event in json.loads((lent / "trace0.json").read_text())["traceEvents"]
        if event["name"] == "cores"
    ]
    assert changes[0] == {"own": 2, "allowed": 2}
    assert max(one["allowed"] for one in changes) >= 3


def test_a_rank_with_fewer_workers_is_told_that_it_lacks_cores(tmp_path: Path) -> None:
    facts = trained(
        tmp_path, sleep_s=(CHEAP_S, CHEAP_S), workers=(1, 3), environ={"PENSTOCK_LENDING": "watch"}
    )
    assert facts[1]["node"]["slowest"]["why"] == "cores"
    assert "Rank 0 holds up the others" in facts[1]["said"]
    assert "it has 1.0 cores, the others 3.0" in facts[1]["said"]


def test_switched_off_there_is_no_view(tmp_path: Path) -> None:
    for one in trained(tmp_path, environ={"PENSTOCK_LENDING": "0"}, meets=False):
        assert one["node"] is None
        assert "holds up" not in one["said"]
