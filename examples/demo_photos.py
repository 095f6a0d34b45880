"""What the demo trains on: generated photo-sized JPEGs, torchvision's transforms over them, and a small network."""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import library, nn

WIDE, HIGH = 500, 375
"""Pixels of the files: those of most photos in ImageNet."""
SEEN = 224
"""Pixels of a side of what the network sees."""
CLASSES = 5
VERSION = 2
"""Photos made by another version of this code are made anew."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@cache
def torchvision() -> ModuleType | None:
    """torchvision, or None where it is not installed.

    PyPI's wheel belongs to a CUDA build of torch. Beside a CPU build its compiled ops cannot load, and its import fails for want of two
    of them; their schemas alone are enough for transforms, which use none. `scripts/demo` puts it into a folder of its own.
    """
    apart = Path(sys.prefix) / "reference"
    if apart.is_dir() and str(apart) not in sys.path:
        sys.path.append(str(apart))
    try:
        import torchvision
    except ImportError:
        return None
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        define_ops()
        import torchvision
    from torchvision import datasets, transforms  # noqa: F401 - used as attributes
    from torchvision.transforms import v2  # noqa: F401

    return torchvision


@cache
def define_ops() -> library.Library:
    schemas = library.Library("torchvision", "DEF")
    for op in ("nms", "qnms"):
        schemas.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return schemas


# ---- photos


def photo(index: int) -> Image.Image:
    """Things with edges, light, and detail at all scales, as in a photo: about 100 kB as JPEG."""
    rng = np.random.default_rng(index)
    scene = Image.new("RGB", (WIDE, HIGH), (120, 120, 120))
    for _ in range(12):
        x, y, w, h = (int(n) for n in rng.uniform((0, 0, 30, 30), (WIDE, HIGH, 240, 200)))
        shade = tuple(int(n) for n in rng.uniform(40, 210, 3))
        ImageDraw.Draw(scene).ellipse((x - w // 2, y - h // 2, x + w // 2, y + h // 2), fill=shade)
    pixels = np.asarray(scene, np.float32) - 120
    for cells, contrast in ((3, 40.0), (19, 22.0), (53, 18.0), (140, 16.0), (400, 16.0)):
        high = max(2, cells * HIGH // WIDE)
        coarse = rng.standard_normal((high, cells)).astype(np.float32)
        tint = rng.uniform(0.6, 1.0, 3).astype(np.float32)
        fine = Image.fromarray(coarse).resize((WIDE, HIGH), Image.Resampling.BICUBIC)
        pixels += contrast * np.asarray(fine)[..., None] * tint
    # What is to be learnt: the class decides the colour.
    pixels += np.roll(np.array([40.0, 0.0, -40.0], np.float32), index % CLASSES) * (1 + index % CLASSES // 3)
    return Image.fromarray(np.clip(pixels + 120, 0, 255).astype(np.uint8))


def save_photo(index: int, folder: Path) -> None:
    photo(index).save(folder / f"class-{index % CLASSES}" / f"{index:05}.jpg", quality=92)


def make_photos(folder: Path, count: int) -> Iterator[int]:
    """Makes `count` files, a folder for each class; yields how many there are. Those of an earlier run are kept."""
    stamp, wanted = folder.with_suffix(".json"), json.dumps({"version": VERSION, "count": count})
    if stamp.exists() and stamp.read_text() == wanted:
        yield count
        return
    for old in folder.glob("*/*.jpg"):
        old.unlink()
    for number in range(CLASSES):
        (folder / f"class-{number}").mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        made = pool.map(save_photo, range(count), [folder] * count, chunksize=8)
        yield from (number for number, _ in enumerate(made, 1))
    stamp.write_text(wanted)


# ---- datasets


def folder_for_torch(root: Path, times: int = 1) -> Any:
    """The photos as any project reads them, the whole folder `times` over."""
    vision = torchvision()
    if vision is None:
        return PillowFolder(root, times)
    v2 = vision.transforms.v2
    chain = v2.Compose(
        [
            v2.RandomResizedCrop(SEEN),
            v2.RandomHorizontalFlip(),
            v2.RandAugment(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, DEVIATION),
        ]
    )
    dataset = vision.datasets.ImageFolder(str(root), chain)
    dataset.samples = dataset.imgs = dataset.samples * times
    dataset.targets = dataset.targets * times
    return dataset


def folder_for_ours(root: Path, times: int = 1) -> Any:
    """The same object; without torchvision our ImageFolder, with the ops of `PillowFolder`."""
    if torchvision() is not None:
        return folder_for_torch(root, times)
    from penstock import ImageFolder
    from penstock import transforms as T  # noqa: N812 - as torchvision's users call it

    chain = T.Compose(
        [
            T.RandomResizedCrop(SEEN),
            T.RandomHorizontalFlip(),
            T.ToImage(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(list(MEAN), list(DEVIATION)),
        ]
    )
    dataset: Any = ImageFolder(str(root), chain)
    return dataset if times == 1 else torch.utils.data.ConcatDataset([dataset] * times)


class PillowFolder(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Without torchvision: decode, random crop, resize, flip, normalise, with Pillow and numpy."""

    def __init__(self, root: Path, times: int = 1) -> None:
        self.files = sorted(root.glob("*/*.jpg")) * times

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        side = int(min(image.size) * random.uniform(0.4, 1.0))
        left, top = (random.randint(0, most - side) for most in image.size)
        box = (left, top, left + side, top + side)
        image = image.resize((SEEN, SEEN), Image.Resampling.BILINEAR, box=box)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = (np.asarray(image, np.float32) / 255 - np.float32(MEAN)) / np.float32(DEVIATION)
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), int(self.files[index].parent.name[-1])


# ---- training


class Trainer:
    """A small convolutional network and its optimiser; the same start every time.

    It is cheap on purpose: as with a fast accelerator, data is then what limits the training. `deep` makes it the other way round.
    """

    def __init__(self, deep: int = 0) -> None:
        torch.manual_seed(0)
        more = [layer for _ in range(deep) for layer in (nn.Conv2d(48, 48, 3, padding=1), nn.ReLU())]
        self.net = nn.Sequential(
            nn.Conv2d(3, 24, 8, stride=8), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.BatchNorm2d(48), nn.ReLU(), *more,
            nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(48, CLASSES),
        )  # fmt: skip
        self.optimiser = torch.optim.AdamW(self.net.parameters(), lr=3e-3)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.item()

    def save(self, path: Path) -> None:
        torch.save({"net": self.net.state_dict(), "optimiser": self.optimiser.state_dict()}, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        self.net.load_state_dict(saved["net"])
        self.optimiser.load_state_dict(saved["optimiser"])

    def digest(self) -> str:
        """A hash of all weights, to the last bit."""
        found = hashlib.sha256()
        for weights in self.net.state_dict().values():
            found.update(weights.numpy().tobytes())
        return found.hexdigest()[:16]


def sample_hashes(images: torch.Tensor) -> list[str]:
    """A hash of every byte of each sample."""
    return [hashlib.sha256(image.contiguous().numpy()).hexdigest()[:16] for image in images]
