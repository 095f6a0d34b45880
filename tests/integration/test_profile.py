"""`penstock.profile`: it measures, decides, stores, and leaves no trace."""

from __future__ import annotations

import hashlib
import pickle
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler, Sampler

import penstock
from penstock.client.remote_side import RemoteSide
from penstock.measure.metric_store import MetricStore, stored
from penstock.policy.offload import decide
from remote_here import remote_workers

pytest.importorskip("cloudpickle")
SECONDS = 0.4


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine more of them wait for each other
    yield
    torch.set_num_threads(threads)


class Slow(Dataset[Any]):
    def __init__(self, count: int = 96) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        until = time.process_time() + 0.003
        while time.process_time() < until:
            pass
        return torch.randn(6) + index, index


class Remembered(Sampler[int]):
    """Has a state of its own, and counts how often it was asked."""

    def __init__(self, length: int) -> None:
        self.length, self.asked = length, 0
        self.generator = torch.Generator()

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        yield from torch.randperm(self.length, generator=self.generator).tolist()


class Model(torch.nn.Module):
    """With all that a step may change: weights, statistics, an unsaved buffer, draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)
        )
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found: torch.Tensor = self.layers(x)
        return found


class Training:
    def __init__(self, *, begun: bool) -> None:
        self.model = Model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.steps, self.fails_at = 0, -1
        if begun:
            self.step((torch.randn(8, 6), None))

    def step(self, batch: Any) -> None:
        self.steps += 1
        if self.steps == self.fails_at:
            raise ArithmeticError("no more")
        self.model.train()
        self.optimizer.zero_grad()
        (self.model(batch[0]).square().mean() + random.random() + np.random.random()).backward()
        self.optimizer.step()
        self.scheduler.step()

    @property
    def keep(self) -> tuple[Any, ...]:
        return self.model, self.optimizer, self.scheduler


def digest(training: Training, loader: Any) -> str:
    """Of everything that a training goes on from."""
    model = training.model
    sampler = loader.sampler
    generators = [getattr(one, "generator", None) for one in (loader, sampler)]
    state = (
        [(name, values.numpy().tobytes()) for name, values in model.state_dict().items()],
        [None if one.grad is None else one.grad.numpy().tobytes() for one in model.parameters()],
        model.calls.item(),
        [part.training for part in model.modules()],
        repr(training.optimizer.state_dict()),
        repr(training.scheduler.state_dict()),
        random.getstate(),
        np.random.get_state()[1].tobytes(),
        torch.get_rng_state().numpy().tobytes(),
        [None if one is None else one.get_state().numpy().tobytes() for one in generators],
        getattr(sampler, "asked", 0),
        repr(loader.state_dict()),
        loader.stats()["batches"],
    )
    return hashlib.sha256(pickle.dumps(state)).hexdigest()


def loader_of(kind: str) -> Any:
    dataset = Slow()
    options: dict[str, Any] = {
        "seeded": {"shuffle": True, "seed": 5},
        "unseeded": {"shuffle": True},
        "generator": {"shuffle": True, "generator": torch.Generator()},
        "sampler": {"sampler": Remembered(len(dataset))},
        "torch's sampler": {"sampler": RandomSampler(dataset, generator=torch.Generator())},
    }[kind]
    return penstock.DataLoader(dataset, batch_size=8, num_workers=1, **options)


@pytest.mark.parametrize("kind", ["seeded", "unseeded", "generator", "sampler", "torch's sampler"])
def test_a_profile_leaves_no_trace(kind: str) -> None:
    training, loader = Training(begun=kind != "unseeded"), loader_of(kind)
    if kind == "seeded":
        running = iter(loader)
        next(running)
    before = digest(training, loader)
    found = penstock.profile(training.step, loader, keep=training.keep, seconds=SECONDS)
    assert digest(training, loader) == before
    assert training.steps > 5
    assert found.metrics.training > 0
    if kind == "seeded":
        running.close()


def test_nor_does_one_whose_step_raises() -> None:
    training, loader = Training(begun=True), loader_of("sampler")
    training.model.eval()
    before = digest(training, loader)
    training.fails_at = training.steps + 7
    with pytest.raises(ArithmeticError, match="no more"):
        penstock.profile(training.step, loader, keep=training.keep, seconds=SECONDS)
    assert digest(training, loader) == before
    assert MetricStore().rows() == []


def test_batches_are_those_of_a_loader_that_was_not_profiled() -> None:
    def epoch(*, profiled: bool) -> list[Any]:
        torch.manual_seed(3)
        loader = loader_of("unseeded")
        if profiled:
            penstock.profile(lambda _: None, loader, seconds=SECONDS)
        return [keys.tolist() for _, keys in loader]

    assert epoch(profiled=True) == epoch(profiled=False)


def test_without_remote_workers_it_says_how_many_would_help() -> None:
    found = penstock.profile(lambda _: None, loader_of("seeded"), seconds=SECONDS, model="idle")
    assert found.remote_help is not None
    assert found.remote_help.workers >= 1
    assert found.metrics.plans == ()
    assert 0.002 < found.metrics.preparing_s < 0.1
    assert found.decision == decide(found.metrics)
    assert "training alone" in str(found)
    assert "remote worker" in str(found)
    assert stored(found.workload) == found.metrics
    assert [row.workload["model"] for row in MetricStore().rows()] == ["idle"]


@pytest.fixture(scope="module")
def side() -> Iterator[RemoteSide]:
    with remote_workers(2) as (found, _, _):
        yield found


def test_remote_workers_are_measured_alone(side: RemoteSide) -> None:
    loader = loader_of("seeded")
    loader._remote = side
    found = penstock.profile(lambda _: None, loader, seconds=1.0)
    plan = found.metrics.plans[0]
    assert plan.name == "samples"
    assert plan.remote > 0
    assert 0 < plan.handling_s < found.metrics.preparing_s, "receiving a sample costs less than preparing it"
    assert "remote workers, samples" in str(found)
    assert found.remote_help is None
    assert (found.workload.remote_workers, found.workload.plans) == (2, ("samples", "batches"))
    assert loader._remote is side


def test_they_are_not_asked_where_training_is_the_bottleneck(side: RemoteSide) -> None:
    loader = loader_of("seeded")
    loader._remote = side
    found = penstock.profile(lambda _: time.sleep(0.5), loader, seconds=SECONDS)
    assert found.metrics.plans == ()
    assert not found.decision.offload
    assert stored(found.workload) == found.metrics


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"loader": torch.utils.data.DataLoader([1, 2])}, "needs a penstock.DataLoader, got DataLoader"),
        ({"keep": (3,)}, "keep= takes what has state_dict"),
        ({"seconds": 0}, "seconds must be above 0"),
        ({"loader": penstock.DataLoader(Slow(0), num_workers=1)}, "has no batches"),
    ],
)
def test_what_cannot_be_profiled_is_said(wrong: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"loader": loader_of("seeded"), "seconds": SECONDS, **wrong}
    with pytest.raises(penstock.ConfigError, match=says):
        penstock.profile(lambda _: None, given.pop("loader"), **given)


def test_a_sampler_that_cannot_be_copied_is_said() -> None:
    class Stubborn(Remembered):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("mine")

    loader: Any = penstock.DataLoader(Slow(), sampler=Stubborn(96), num_workers=1)
    with pytest.raises(penstock.ConfigError, match=r"Stubborn cannot be copied \(mine\)"):
        penstock.profile(lambda _: None, loader, seconds=SECONDS)
