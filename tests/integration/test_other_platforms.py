"""Off Linux the same batches come over torch's own workers, and the package imports without what only Linux has."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from penstock import DataLoader


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 7:
            raise ValueError("seven")
        return {"i": index, "noise": torch.rand(2), "more": np.random.rand(), "most": random.random()}


class Plain(Noisy):
    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        assert info is None or type(info.dataset) is Plain
        return super().__getitem__(index + 100)


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(a[key], b[key]) for a, b in zip(ours, theirs, strict=True) for key in b
    )


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.filterwarnings("ignore:penstock's engine needs Linux")
def test_batches_are_those_of_any_worker_count() -> None:
    expected = list(DataLoader(Plain(), 4, shuffle=True, seed=5))
    assert same(list(DataLoader(Plain(), 4, shuffle=True, seed=5, num_workers=2)), expected)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.filterwarnings("ignore:penstock's engine needs Linux")
def test_resume_and_on_error_hold() -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(Noisy(), 4, shuffle=True, seed=5, num_workers=2, on_error="skip")

    whole = list(make())
    assert sum(len(batch["i"]) for batch in whole) == 22
    loader = make()
    iterator = iter(loader)
    head = [next(iterator), next(iterator)]
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert same(head + list(resumed), whole)


@pytest.mark.usefixtures("elsewhere")
def test_what_is_missing_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            list(DataLoader(Plain(), 8, num_workers=1))
    said = [w for w in caught if "needs Linux" in str(w.message)]
    assert len(said) <= 1


def test_the_package_imports_without_fcntl_and_real_time_signals() -> None:
    program = (
        "import sys, signal; sys.modules['fcntl'] = None; "
        "[delattr(signal, n) for n in ('SIGRTMIN', 'SIGRTMAX') if hasattr(signal, n)]; "
        "from penstock import DataLoader; print(sum(len(b) for b in DataLoader(list(range(10)), 3, shuffle=True)))"
    )
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False, env=paths
    )
    assert done.stdout.strip() == "10", done.stderr
