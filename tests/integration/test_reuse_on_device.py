"""Whole loaders with `Reuse(store="device")`, on the CPU: all is theirs but the stations and the way to the device."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
pytest.importorskip("triton")

from penstock import DataLoader, ImageFolder, Reuse
from penstock.client.mover import Mover
from penstock.gpu.prep import planned
from tests.lanes_on_cpu import CHAIN, CPU, photos, two
from tests.residents_on_cpu import folder_of, same

__all__ = ["photos"]
pytestmark = pytest.mark.usefixtures("cuda_seems_to_be_here")
COPIES = 3


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def prep_for(dataset: Any, collate_fn: Any, device: Any, **options: Any) -> Any:
        return planned(dataset, collate_fn, None if options["wanted"].mode == "off" else two, CPU, **options)

    monkeypatch.setattr("penstock.gpu.cuda.prep_for", prep_for)
    monkeypatch.setattr(
        "penstock.loader.mover_for",
        lambda _config, _given, _held, lane=None: Mover(CPU, None, None, False, lane),
    )


def loader_of(dataset: ImageFolder, store: str = "device", **options: Any) -> DataLoader[Any]:
    keywords: dict[str, Any] = {"num_workers": 2, "shuffle": True, "seed": 5, **options}
    if store == "device":
        keywords |= {
            "device": "cuda",
            "gpu_prep": keywords.get("gpu_prep", "concurrent"),
            "prefetch_batches": 3,
        }
    reuse = Reuse(times=3, split=1, store=store, max_bytes="16MiB")
    return DataLoader(dataset, 4, reuse=reuse, **keywords)


def epochs(loader: DataLoader[Any], count: int) -> list[list[Any]]:
    return [[(images.clone(), targets.clone()) for images, targets in loader] for _ in range(count)]


def in_memory(dataset: ImageFolder, count: int, **options: Any) -> list[list[Any]]:
    return epochs(loader_of(dataset, "memory", num_workers=0, **options), count)


@pytest.mark.parametrize(
    "options",
    [
        {"deterministic": True},
        {"persistent_workers": True, "gpu_prep": "auto"},
        {"shuffle": False, "gpu_prep": "auto", "num_workers": 1},
    ],
    ids=str,
)
def test_batches_are_those_of_the_store_in_memory(options: dict[str, Any], photos: Path) -> None:
    loader = loader_of(folder_of(photos, COPIES), **options)
    expected = in_memory(folder_of(photos, COPIES), 5, shuffle=options.get("shuffle", True))
    for epoch, wanted in enumerate(expected):
        found = []
        for images, targets in loader:
            found.append((images.clone(), targets.clone()))
            stats = loader.stats()
            assert stats["gpu"]["resident"] <= stats["reuse"]["found"], "the next batches are on their way"
        assert same(found, wanted), epoch
    stats = loader.stats()
    assert stats["gpu"]["resident"] > 36
    assert stats["gpu"]["finishes"]
    assert stats["reuse"]["entries"] > 0
    assert stats["reuse"]["held_bytes"] == stats["reuse"]["max_bytes"] == 16 << 20


def test_a_resume_finds_nothing_and_goes_on_with_the_same_batches(photos: Path) -> None:
    loader = loader_of(folder_of(photos, COPIES))
    epochs(loader, 3)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = list(iterator)
    following = epochs(loader, 1)[0]
    resumed = loader_of(folder_of(photos, COPIES))
    resumed.load_state_dict(state)
    assert same(epochs(resumed, 1)[0], rest)
    assert resumed.stats()["reuse"]["found"] == 0
    assert same(epochs(resumed, 1)[0], following)
    loader.load_state_dict(state)  # the same loader goes back, and finds what it had kept
    assert same(epochs(loader, 1)[0], rest)


def test_workers_may_come_and_go(photos: Path) -> None:
    loader = loader_of(folder_of(photos, COPIES))
    for batches in in_memory(folder_of(photos, COPIES), 4):
        found = []
        for number, (images, targets) in enumerate(loader):
            found.append((images, targets))
            if number % 3 == 1:
                loader.set_workers(1 + number % 2)
        assert same(found, batches)


def test_a_copy_of_a_loader_has_a_store_of_its_own(photos: Path) -> None:
    loader = loader_of(folder_of(photos))
    epochs(loader, 3)
    copy = pickle.loads(pickle.dumps(loader))
    copy.set_epoch(3)
    expected = in_memory(folder_of(photos), 4)[3]
    assert same(epochs(copy, 1)[0], expected)
    assert copy.stats()["reuse"]["found"] == 0
    assert same(epochs(loader, 1)[0], expected)
    assert loader.stats()["reuse"]["found"] > 0


def test_a_file_that_cannot_be_read_is_left_out_where_that_is_asked_for(photos: Path) -> None:
    path = photos / "0" / "0.jpg"
    path.write_bytes(path.read_bytes()[:400])
    loader = loader_of(ImageFolder(photos, CHAIN), on_error="skip", gpu_prep="auto")
    for _ in range(3):
        images = torch.cat([images for images, _ in epochs(loader, 1)[0]])
        assert len(images) == 11
    assert loader.stats()["gpu"]["resident"] > 0
    with pytest.raises(Exception, match="sample 0"):
        epochs(loader_of(ImageFolder(photos, CHAIN)), 1)
