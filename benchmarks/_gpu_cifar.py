"""CIFAR-10 as it is trained on: its images enlarged and encoded again, once, and loaders of them, with the GPU lane and without.

The archive is a tar of JPEG files, train/CLASS/NAME.jpg and test/CLASS/NAME.jpg.
"""

from __future__ import annotations

import io
import multiprocessing
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _prepare_subjects import MEAN, STD

from penstock import DataLoader, GpuPrep, ImageFolder
from penstock import transforms as T  # noqa: N812

SIZE, QUALITY = 128, 90
"""Pixels of a side, and of the JPEG file (4:2:0)."""
MEMBER = re.compile(r"(?:\./)?((?:train|test)/[\w-]+/[\w-]+\.jpe?g)")
Say = Callable[[str], None]


# ---- images


def enlarged(archive: Path, work: Path, *, limit: int | None, processes: int, say: Say) -> Path:
    """A folder with `train` and `test`, made of the archive once: a stamp says that all of it is there."""
    root = work / f"cifar10-{SIZE}-q{QUALITY}{'' if limit is None else f'-{limit}'}"
    stamp = root / ".whole"
    if stamp.exists():
        return root
    began, count = time.monotonic(), 0
    say(f"enlarging the images of {archive.name}, {processes} processes")
    jobs = ((root / name, data) for name, data in members(archive, limit))
    if processes == 1:
        count = sum(map(enlarge, jobs))
    else:
        with multiprocessing.Pool(processes) as pool:
            for done in pool.imap_unordered(enlarge, jobs, chunksize=100):
                count += done
    if not count:
        raise SystemExit(f"{archive}: no files like train/CLASS/NAME.jpg in it")
    stamp.write_text(f"{count}\n")
    say(f"{count} images in {time.monotonic() - began:.0f} s")
    return root


def members(archive: Path, limit: int | None) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the images, at most `limit` of each class in each part."""
    counts: dict[str, int] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            found = MEMBER.fullmatch(member.name)
            file = tar.extractfile(member) if found else None
            if found is None or file is None:
                continue
            folder = found[1].rpartition("/")[0]
            counts[folder] = counts.get(folder, 0) + 1
            if limit is None or counts[folder] <= limit:
                yield found[1], file.read()


def enlarge(job: tuple[Path, bytes]) -> int:
    """Write one image, larger. A file that an interrupted run left is written again."""
    from PIL import Image

    path, data = job
    path.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(io.BytesIO(data)) as image:
        larger = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    larger.save(path, "JPEG", quality=QUALITY, subsampling=2)
    return 1


# ---- loaders


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What two runs must have in common to be compared."""

    device: str
    epochs: int
    batch: int
    crop: int
    lr: float
    """The highest learning rate, reached after the first fifth."""
    share: float
    """Of the samples that the lane prepares where it is on."""
    limit: int | None
    """Images of each class; None: all."""
    workers: int


@dataclass(frozen=True, slots=True)
class Fed:
    """What all runs are fed from."""

    train: ImageFolder
    test: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """The test images, prepared once by workers and kept on the device: they are the same for every run."""


def chain(crop: int, *, train: bool) -> Any:
    tail = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    if not train:
        return T.Compose([T.Resize(round(crop / 0.88)), T.CenterCrop(crop), *tail])
    moved = [T.RandomResizedCrop(crop, scale=(0.35, 1.0)), T.RandomHorizontalFlip()]
    return T.Compose([*moved, T.RandAugment(2, 9), *tail])


def lane_mode(share: float | None, device: str) -> dict[str, Any]:
    """The loader's words for it; None: no lane. Without a GPU there is none either, and everything else can still be tried."""
    if share is None or device == "cpu":
        return {"gpu_prep": "off"}
    return {"gpu_prep": GpuPrep(mode="concurrent", share=share), "deterministic": True}


def lane_figures(loader: Any) -> dict[str, Any]:
    """What the lane was given of the samples, what of that the CPU had to make after all, and what kept the lane from it."""
    gpu = loader.stats().get("gpu") or {}
    return {name: gpu.get(name, 0) for name in ("samples", "packed", "by_cpu")} | {
        "cannot": gpu.get("cannot", "")
    }


def fed_from(root: Path, settings: Settings) -> Fed:
    test: Any = DataLoader(
        ImageFolder(root / "test", chain(settings.crop, train=False)),
        batch_size=settings.batch,
        num_workers=settings.workers,
        device=settings.device,
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
        gpu_prep="off",
        seed=0,
    )
    train = ImageFolder(root / "train", chain(settings.crop, train=True))
    return Fed(train, [(images, targets) for images, targets in test])


def train_loader(fed: Fed, settings: Settings, seed: int, *, lane: bool) -> Any:
    return DataLoader(
        fed.train,
        batch_size=settings.batch,
        shuffle=True,
        seed=seed,
        num_workers=settings.workers,
        persistent_workers=True,
        drop_last=True,
        device=settings.device,
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
        **lane_mode(settings.share if lane else None, settings.device),
    )
