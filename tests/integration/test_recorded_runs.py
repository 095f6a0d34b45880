"""A real run, recorded and told again to a new core: the same actions, step by step."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from penstock import DataLoader
from penstock.agent.record import read_record
from penstock.sim import replay


class Rows(Dataset[Any]):
    """Tensors; ragged ones where asked for."""

    def __init__(self, length: int, *, ragged: bool = False, fails_at: int = -1) -> None:
        self.length, self.ragged, self.fails_at = length, ragged, fails_at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.fails_at:
            raise ValueError("broken")
        return torch.full((1 + index % 5 if self.ragged else 3,), float(index))


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(20))


LOADERS: dict[str, dict[str, Any]] = {
    "slots": {"dataset": Rows(40)},
    "parts": {"dataset": Rows(40, ragged=True), "collate_fn": list},
    "failing": {"dataset": Rows(40, fails_at=17)},
    "stream": {"dataset": Numbers()},
    "unordered": {"dataset": Rows(40), "in_order": False},
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_recorded_run_leads_to_the_same_actions(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    monkeypatch.setenv("PENSTOCK_RECORD", str(path))
    loader = DataLoader(batch_size=4, num_workers=2, seed=1, **LOADERS[name])
    batches = iter(loader)
    taken = 0
    while True:
        try:
            next(batches)
        except StopIteration:
            break
        except ValueError:
            continue
        taken += 1
        if taken == 2 and name != "stream":
            os.kill(loader.stats()["worker_pids"][0], signal.SIGKILL)
    runs = list(read_record(path))
    assert [replay(*run) for run in runs] == [None]
    assert len(runs[0][1]) > 10
