"""What the demo trains on: drawn shapes in JPEG files, a dataset that augments them, a small network, and batch hashes."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageChops, ImageDraw, ImageEnhance
from torch import nn

STORED = 176
"""Pixels of a side of the files."""
SEEN = 144
"""Pixels of a side of what the network sees."""
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "star")
VERSION = 1
"""Files drawn by another version of this code are drawn anew."""


def corners(shape: str) -> list[tuple[float, float]]:
    """A shape as (angle in turns, radius) of its corners."""
    match shape:
        case "square":
            return [(0.125 + n / 4, 1.0) for n in range(4)]
        case "triangle":
            return [(0.25 + n / 3, 1.1) for n in range(3)]
        case "diamond":
            return [(n / 4, 1.2 if n % 2 else 0.7) for n in range(4)]
        case "cross":
            return [(n / 4 + d, r) for n in range(4) for d, r in ((-0.05, 1.1), (0.05, 1.1), (0.125, 0.45))]
        case "star":
            return [(n / 10, 0.5 if n % 2 else 1.15) for n in range(10)]
    return [(n / 24, 0.9) for n in range(24)]


def draw(label: int, rng: random.Random) -> Image.Image:
    """One shape, somewhere, some size and turn, on a noisy ground."""
    ground = tuple(rng.randrange(40, 200) for _ in range(3))
    colour = tuple((value + rng.randrange(70, 150)) % 256 for value in ground)
    image = Image.new("RGB", (STORED, STORED), ground)
    size, turn = rng.uniform(26, 46), rng.uniform(-0.04, 0.04)
    x, y = (rng.uniform(size + 18, STORED - size - 18) for _ in range(2))
    outline = [
        (x + size * r * math.cos(2 * math.pi * (a + turn)), y + size * r * math.sin(2 * math.pi * (a + turn)))
        for a, r in corners(SHAPES[label])
    ]
    ImageDraw.Draw(image).polygon(outline, fill=colour)
    grain = Image.effect_noise((STORED, STORED), 46).convert("RGB")
    return ImageChops.add(image, grain, scale=1.4, offset=-40)


def make_images(folder: Path, count: int) -> Iterator[int]:
    """Draws what is missing of `count` files; yields how many there are."""
    stamp, wanted = folder / "set.json", json.dumps({"version": VERSION, "count": count})
    if stamp.exists() and stamp.read_text() == wanted:
        yield count
        return
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.jpg"):
        old.unlink()
    for index in range(count):
        label = index % len(SHAPES)
        draw(label, random.Random(index)).save(folder / f"{index:05}-{SHAPES[label]}.jpg", quality=88)
        yield index + 1
    stamp.write_text(wanted)


class Shapes(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Decode, random crop, random flip, random brightness, normalise: ordinary code over the global generators.

    Nothing here knows about penstock. Under its loader these generators are seeded per sample, so what they give depends on
    the seed, the epoch and the sample, not on which worker happens to run this.
    """

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        left, top = (random.randint(0, STORED - SEEN) for _ in range(2))
        image = image.crop((left, top, left + SEEN, top + SEEN))
        if np.random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = ImageEnhance.Brightness(image).enhance(0.8 + 0.4 * torch.rand(()).item())
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        normalised = pixels.float().sub_(127.5).div_(64.0)
        return normalised.contiguous(), index % len(SHAPES)


class Trainer:
    """A small convolutional network and its optimiser; the same start every time.

    It is cheap on purpose: as with a fast accelerator, the input is then what limits the training.
    """

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 8, stride=8), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, len(SHAPES)),
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


def batch_hash(images: torch.Tensor, labels: torch.Tensor) -> str:
    """A hash of every byte of a batch, in order."""
    found = hashlib.sha256(images.numpy())
    found.update(labels.numpy())
    return found.hexdigest()[:16]


def epoch_hash(hashes: list[str]) -> str:
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:12]
