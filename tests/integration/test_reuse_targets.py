"""`reuse=` with whatever a dataset gives beside its pixels, or makes of its files, however workers are started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import DataLoader, ImageFolder, Reuse, StagedDataset
from penstock import transforms as T
from tests.unit.test_jpeg_parts import jpeg_of, photo

pytest.importorskip("cv2")
SAMPLES = 12
CHAIN = [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)]
FILES = [jpeg_of(photo(40, 50, at), quality=70) for at in range(SAMPLES)]


class Elsewhere:
    """Can be written down, and read nowhere but in the process that made it."""

    def __init__(self, made: int) -> None:
        if made != os.getpid():
            raise RuntimeError("not here")

    def __reduce__(self) -> Any:
        return Elsewhere, (0,)


def tensors(index: int) -> tuple[bytes, Any]:
    return FILES[index], {"box": torch.full((2, 2), index), "names": [torch.tensor(index)]}


def unreadable(index: int) -> tuple[bytes, Any]:
    return FILES[index], Elsewhere(os.getpid())


def first_of(batch: list[Any]) -> torch.Tensor:
    return torch.stack([images for images, _ in batch])


@pytest.mark.parametrize("store", ["memory", "disk"])
@pytest.mark.parametrize("workers", [0, 2])
def test_targets_may_be_tensors(workers: int, store: str, tmp_path: Path) -> None:
    reuse = Reuse(times=3, split=1, store=store, path=str(tmp_path) if store == "disk" else None)
    loader = DataLoader(
        StagedDataset(tensors, T.Compose(CHAIN), SAMPLES), 4, seed=1, num_workers=workers, reuse=reuse
    )
    for _ in range(4):
        boxes = torch.cat([targets["box"] for _, targets in loader])
        assert boxes[:, 0, 0].tolist() == list(range(SAMPLES))
    assert loader.stats()["reuse"]["found"] > SAMPLES


def test_a_target_that_cannot_be_read_again_is_made_again() -> None:
    dataset = StagedDataset(unreadable, T.Compose(CHAIN), SAMPLES)
    loader = DataLoader(dataset, 4, seed=1, collate_fn=first_of, reuse=Reuse(times=3, split=1))
    assert [sum(len(images) for images in loader) for _ in range(2)] == [SAMPLES] * 2


def folder(root: Path) -> Path:
    for at, data in enumerate(FILES):
        path = root / "photos" / str(at % 2) / f"{at:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root / "photos"


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_workers_may_be_spawned(store: str, tmp_path: Path) -> None:
    found = []
    for context in ("fork", "spawn"):
        reuse = Reuse(
            times=3, split=1, store=store, path=str(tmp_path / context) if store == "disk" else None
        )
        loader = DataLoader(
            ImageFolder(folder(tmp_path), T.Compose(CHAIN)),
            4,
            shuffle=True,
            seed=1,
            num_workers=1,
            multiprocessing_context=context,
            persistent_workers=True,
            reuse=reuse,
        )
        found.append([torch.cat([images for images, _ in loader]) for _ in range(3)])
        assert loader.stats()["reuse"]["found"] > 0
        del loader
    assert all(map(torch.equal, *found))


class Darker(ImageFolder):
    def image(self, data: bytes) -> Any:
        return np.asarray(super().image(data).part((0, 0, 40, 50))) // 2


@pytest.mark.parametrize("kept", ["8GiB", "1MiB"])
def test_a_datasets_own_way_to_decode_is_taken(kept: str, tmp_path: Path) -> None:
    dataset = Darker(folder(tmp_path), T.Compose([T.RandomHorizontalFlip()]))
    loader = DataLoader(dataset, 4, seed=1, reuse=Reuse(times=3, split=0, max_bytes=kept))
    for _ in range(2):
        assert max(int(images.max()) for images, _ in loader) <= 127
