"""Batches of prepared photos without end, by each subject that delivers through torch: ours, and torch's loader with others' ops.

Each function takes the workload, the folder of photos and what `Setting` says, and yields tensors of float32. Imports are
inside: a subject needs only what it uses.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
PASSES = 500
"""Over the photos, in one epoch: what ends and starts epochs is not measured here."""
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    workload: str
    """W1, W2 or W3."""
    root: str
    """Holds a folder of photos, as an ImageFolder of one class."""
    batch_size: int
    workers: int

    @property
    def files(self) -> list[str]:
        return sorted(str(path) for path in (Path(self.root) / "photos").iterdir())

    def arranged(self, crop: list[Any], augment: list[Any], tail: list[Any]) -> list[Any]:
        """The ops of the workload in its order."""
        match self.workload:
            case "W1":
                return [*crop, *augment, *tail]
            case "W2":
                return [*crop, *tail]
            case "W3":
                return [*augment, *crop, *tail]
        raise ValueError(f"no workload {self.workload}")


class Shuffled:
    """Positions in random order, pass after pass."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count * PASSES

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(0)
        for _ in range(PASSES):
            yield from rng.sample(range(self.count), self.count)


class Prepared:
    """A map-style dataset of what a function makes of each file."""

    def __init__(self, files: list[str], prepare: Callable[[str], Any]) -> None:
        self.files, self.prepare = files, prepare

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.prepare(self.files[index]), index


def batches(loader_type: Any, dataset: Any, setting: Setting) -> Iterator[Any]:
    import torch

    torch.set_num_threads(1)
    loader = loader_type(
        dataset,
        batch_size=setting.batch_size,
        sampler=Shuffled(len(dataset)),
        num_workers=setting.workers,
        drop_last=True,
    )
    for images, _ in loader:
        yield images


# ---- ours


def ours(setting: Setting) -> Iterator[Any]:
    import penstock

    return batches(penstock.DataLoader, our_dataset(setting), setting)


def ours_fast(setting: Setting) -> Iterator[Any]:
    import penstock

    return batches(penstock.DataLoader, our_dataset(setting, fast=True), setting)


def our_dataset(setting: Setting, *, fast: bool = False) -> Any:
    """`fast`: without antialiasing, and with only those parts of a file decoded that are needed."""
    import torch

    import penstock
    from penstock import transforms as T  # noqa: N812

    crop = [T.RandomResizedCrop(224, antialias=not fast), T.RandomHorizontalFlip()]
    tail = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    chain = setting.arranged(crop, [T.RandAugment(2, 9)], tail)
    return penstock.ImageFolder(setting.root, T.Compose(chain), fast_decode=fast)


def adopted(setting: Setting) -> Iterator[Any]:
    import penstock

    return batches(penstock.DataLoader, torchvision_dataset(setting), setting)


# ---- torch's loader


def torchvision_dataset(setting: Setting) -> Any:
    torchvision = import_torchvision()
    T = torchvision.transforms  # noqa: N806
    crop = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    tail = [T.ToTensor(), T.Normalize(MEAN, STD)]
    chain = T.Compose(setting.arranged(crop, [T.RandAugment(2, 9)], tail))
    return torchvision.datasets.ImageFolder(setting.root, chain)


@cache
def import_torchvision() -> Any:
    """Also beside a CPU build of torch, where its import wants two ops of its own, if only by name."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = schemas()
        for op in ("nms", "qnms"):
            library.define(f"{op}{SCHEMA}")
        import torchvision
    return torchvision


@cache
def schemas() -> Any:
    """Definitions last as long as this does."""
    from torch import library

    return library.Library("torchvision", "DEF")


def torch_torchvision(setting: Setting) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    return batches(DataLoader, torchvision_dataset(setting), setting)


def torch_opencv(setting: Setting) -> Iterator[Any]:
    import _prepare_cv
    import torch
    from torch.utils.data import DataLoader

    prepare = _prepare_cv.Prepare(setting.workload)
    dataset = Prepared(setting.files, lambda path: torch.from_numpy(prepare(path)))
    return batches(DataLoader, dataset, setting)


def torch_albumentations(setting: Setting) -> Iterator[Any]:
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    import _prepare_cv
    import albumentations as A  # noqa: N812
    import cv2
    from albumentations.pytorch import ToTensorV2
    from torch.utils.data import DataLoader

    cv2.setNumThreads(0)
    always: dict[str, Any] = {"p": 1}
    nearest = {"interpolation": cv2.INTER_NEAREST, **always}
    shear, shift = (-5.2, 5.2), (-0.136, 0.136)
    augment = A.SomeOf(
        [
            A.NoOp(**always),
            A.Affine(shear={"x": shear, "y": 0}, **nearest),
            A.Affine(shear={"x": 0, "y": shear}, **nearest),
            A.Affine(translate_percent={"x": shift, "y": 0}, **nearest),
            A.Affine(translate_percent={"x": 0, "y": shift}, **nearest),
            A.Rotate((-9, 9), border_mode=cv2.BORDER_CONSTANT, **nearest),
            A.RandomBrightnessContrast((-0.27, 0.27), 0, **always),
            A.RandomBrightnessContrast(0, (-0.27, 0.27), **always),
            A.ColorJitter((1, 1), (1, 1), (0.73, 1.27), (0, 0), **always),
            A.Sharpen((0.27, 0.27), **always),
            A.Posterize(7, **always),
            A.Solarize((0.7, 0.7), **always),
            A.AutoContrast(**always),
            A.Equalize(**always),
        ],
        n=2,
        replace=True,
        p=1,
    )
    crop = [A.RandomResizedCrop((224, 224)), A.HorizontalFlip()]
    chain = A.Compose(setting.arranged(crop, [augment], [A.Normalize(MEAN, STD), ToTensorV2()]))
    dataset = Prepared(setting.files, lambda path: chain(image=_prepare_cv.read(path))["image"])
    return batches(DataLoader, dataset, setting)
