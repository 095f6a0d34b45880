"""Samples that are kept on a device, without one: the store's bytes lie in host memory, and stations execute programs on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from penstock import DataLoader, ImageFolder
from penstock.gpu.prep import Prep
from penstock.plan.renewal import Renewal
from penstock.reuse.images import Reused
from penstock.reuse.on_device import ReusedOnDevice
from penstock.reuse.stores.device import DeviceStore
from penstock.reuse.stores.memory import MemoryStore
from tests.lanes_on_cpu import CHAIN, prep_of

SAMPLES = 12
ROOM = 16 << 20


def folder_of(root: Path, copies: int = 1) -> ImageFolder:
    dataset = ImageFolder(root, CHAIN)
    dataset.samples *= copies
    dataset.length = len(dataset.samples)
    return dataset


def on_device(root: Path, *, times: int = 3, split: int = 1, kept: int = SAMPLES, room: int = ROOM) -> Any:
    renewal = Renewal(SAMPLES, kept, times, seed=5)
    return ReusedOnDevice(ImageFolder(root, CHAIN), split, renewal, DeviceStore(renewal, room))


def prepared(dataset: Any, share: float | None = 0.0, *, opened: bool = True, **options: Any) -> Prep:
    """With the memory there from the first sample on: otherwise workers that are ahead of the first batch keep nothing."""
    prep = prep_of(dataset, share, **options)
    if opened:
        assert prep.lane.residents is not None
        prep.lane.residents.open()
    return prep


def expected(root: Path, dataset: ReusedOnDevice, epoch: int, copies: int = 1) -> list[Any]:
    """The batches of a loader that never kept anything."""
    renewal = dataset.renewal
    plain = Reused(folder_of(root, copies), dataset.split, renewal, MemoryStore(renewal, 0))
    loader: DataLoader[Any] = DataLoader(plain, batch_size=4, shuffle=True, seed=5)
    loader.set_epoch(epoch)
    return list(loader)


def same(found: list[Any], others: list[Any]) -> bool:
    return len(found) == len(others) and all(
        torch.equal(images, theirs) and torch.equal(targets, their_targets)
        for (images, targets), (theirs, their_targets) in zip(found, others, strict=True)
    )
