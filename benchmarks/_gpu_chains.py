"""The workloads of `scripts/bench gpu` as chains of ops, ours and torchvision's.

W1: RandomResizedCrop(224), flip, RandAugment(2, 9), normalise. W2: the same without RandAugment. W3: RandAugment on the whole photo,
then crop and flip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from _prepare_data import photos
from _prepare_subjects import MEAN, STD, import_torchvision

SIDE = 224
REPEATED = 4_000_000
"""Samples of an epoch, the photos again and again: what ends and starts epochs is not measured here."""
T_co = TypeVar("T_co", covariant=True)


class Repeated(Sequence[T_co]):
    """A list again and again, without the memory for it."""

    def __init__(self, items: Sequence[T_co], least: int) -> None:
        self.items, self.length = items, -(-least // len(items)) * len(items)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, at: Any) -> Any:
        if not -self.length <= at < self.length:
            raise IndexError(at)
        return self.items[at % len(self.items)]

    def __iter__(self) -> Iterator[T_co]:
        return (self[at] for at in range(self.length))


def arranged(workload: str, crop: list[Any], augment: list[Any], tail: list[Any]) -> list[Any]:
    return [*augment, *crop, *tail] if workload == "W3" else [*crop, *augment, *tail]


def our_chain(workload: str) -> Any:
    from penstock import transforms as T  # noqa: N812

    crop = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip()]
    tail = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    augment = [] if workload == "W2" else [T.RandAugment(2, 9)]
    return T.Compose(arranged(workload, crop, augment, tail))


def torchvision_chain(workload: str) -> Any:
    T = import_torchvision().transforms  # noqa: N806
    crop = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip()]
    augment = [] if workload == "W2" else [T.RandAugment(2, 9)]
    return T.Compose(arranged(workload, crop, augment, [T.ToTensor(), T.Normalize(MEAN, STD)]))


def torchvision_v2_dataset(root: Path, workload: str) -> Any:
    """As most new programs have it."""
    torchvision = import_torchvision()
    from torchvision.transforms import v2 as T  # noqa: N812

    crop = [T.RandomResizedCrop(SIDE), T.RandomHorizontalFlip()]
    tail = [T.ToImage(), T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    augment = [] if workload == "W2" else [T.RandAugment()]
    dataset = torchvision.datasets.ImageFolder(str(root), T.Compose(arranged(workload, crop, augment, tail)))
    dataset.samples = Repeated(dataset.samples, REPEATED)
    return dataset


def our_dataset(root: Path, workload: str, least: int = REPEATED) -> Any:
    """`least` samples, or a few more: the photos are repeated whole."""
    import penstock

    dataset: Any = penstock.ImageFolder(str(root), our_chain(workload), fast_decode=True)
    dataset.samples = Repeated(dataset.samples, least)
    dataset.length = len(dataset.samples)
    return dataset


def torchvision_dataset(root: Path, workload: str) -> Any:
    dataset = import_torchvision().datasets.ImageFolder(str(root), torchvision_chain(workload))
    dataset.samples = Repeated(dataset.samples, REPEATED)
    return dataset


@cache
def photo_root(data: str | None, generated: int) -> Path:
    """The folder with the photos as one class; says nothing, since it is asked for in every process."""
    return photos(data, None if data else generated, lambda _: None)


def photo_files(root: Path) -> list[str]:
    return sorted(str(path.resolve()) for path in (root / "photos").iterdir())
