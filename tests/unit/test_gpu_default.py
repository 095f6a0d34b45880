"""gpu_prep="auto" is the default: where it applies, and why it does not."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import DataLoader, GpuPrep
from penstock.client import gpu_choice
from penstock.client.places import DeviceSide
from penstock.client.worker_count import auto_number, count_workers
from penstock.config import LoaderConfig
from tests.lanes_on_cpu import CHAIN, photos  # noqa: F401 - a fixture

from penstock import ImageFolder  # isort: skip

pytestmark = pytest.mark.usefixtures("cuda_seems_to_be_here")


class Seen:
    """What the loader would ask the device for."""

    def __init__(self) -> None:
        self.modes: list[str] = []

    def __call__(self, *_: Any, **options: Any) -> str:
        self.modes.append(options["wanted"].mode)
        return "no device here"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()
    monkeypatch.setattr("penstock.gpu.cuda.prep_for", seen)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(gpu_choice, "missing_for_lane", lambda: "")
    return seen


@pytest.fixture
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


def mode_of(asked: Seen, photos: Path, **options: Any) -> str:  # noqa: F811
    loader: DataLoader[Any] = DataLoader(
        ImageFolder(photos, CHAIN), 4, **{"shuffle": True, "device": "cuda", "num_workers": 1, **options}
    )
    shuffles = loader._epochs.source.shuffles
    gpu_choice.helped(loader._config, loader_recipe(loader), DeviceSide(), shuffles=shuffles)
    return asked.modes[-1]


def loader_recipe(loader: DataLoader[Any]) -> Any:
    loader._draw()
    return loader._recipe()


def test_the_default_is_auto_where_the_loader_shuffles_onto_a_cuda_device(
    asked: Seen,
    photos: Path,  # noqa: F811
) -> None:
    assert mode_of(asked, photos) == "auto"


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": False},
        {"deterministic": True},
        {"on_error": "skip"},
        {"on_error": "replace"},
        {"gpu_prep": "off"},
    ],
)
def test_where_it_is_not_wanted_the_default_is_off(
    options: dict[str, Any],
    asked: Seen,
    photos: Path,  # noqa: F811
) -> None:
    assert mode_of(asked, photos, **options) == "off"


@pytest.mark.usefixtures("deterministic")
def test_who_asks_torch_for_determinism_gets_it(asked: Seen, photos: Path) -> None:  # noqa: F811
    assert mode_of(asked, photos) == "off"


def test_who_says_that_determinism_is_not_wanted_here_gets_the_lane(
    asked: Seen,
    photos: Path,  # noqa: F811
) -> None:
    assert mode_of(asked, photos, deterministic=False) == "auto"


def test_a_share_that_was_given_is_kept_with_determinism(asked: Seen, photos: Path) -> None:  # noqa: F811
    assert mode_of(asked, photos, deterministic=True, gpu_prep=GpuPrep(share=0.3)) == "auto"


def test_without_triton_the_lane_is_off_and_the_pip_line_is_said(
    photos: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen, real = Seen(), builtins.__import__

    def without_triton(name: str, *args: Any, **options: Any) -> Any:
        if name == "triton":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr("penstock.gpu.cuda.prep_for", seen)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    gpu_choice.missing_for_lane.cache_clear()
    gpu_choice.say_once.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without_triton)
    try:
        assert mode_of(seen, photos) == "off"
        assert mode_of(seen, photos) == "off"
    finally:
        monkeypatch.undo()
        gpu_choice.missing_for_lane.cache_clear()
        gpu_choice.say_once.cache_clear()
    said = [
        record.getMessage() for record in caplog.records if "pip install 'penstock[gpu]'" in record.message
    ]
    assert len(said) == 1


def test_auto_workers_are_all_cores_until_the_lane_works() -> None:
    cuda = LoaderConfig(device="cuda")
    assert auto_number(cuda) == auto_number(LoaderConfig()) == count_workers()
    assert auto_number(replace(cuda, gpu_prep="concurrent")) == count_workers(lane=True)
