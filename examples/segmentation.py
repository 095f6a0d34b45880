"""Segmentation: a small network learns which pixels are circles and which are squares. penstock moves image and mask with one draw.

    python examples/segmentation.py              generated drawings
    python examples/segmentation.py --quick      fewer of them: a few seconds

The exit code is 1 if the mean overlap (IoU) of the three classes on held-out drawings stays below 60 %.
"""

from __future__ import annotations

import argparse
import io
import platform
import sys
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import nn

import penstock
from penstock import AnnotatedDataset
from penstock.transforms import (
    ColorJitter,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    ToDtype,
    ToImage,
)

SIDE = 64
CLASSES = ("ground", "circle", "square")
NEEDED = 0.60

TAIL = [ToImage(), ToDtype(torch.float32, scale=True), Normalize([0.5] * 3, [0.25] * 3)]
LEARNING = [
    RandomResizedCrop(SIDE, scale=(0.6, 1.0)),
    RandomHorizontalFlip(),
    RandomVerticalFlip(),
    ColorJitter(0.2, 0.2, 0.2),
    *TAIL,
]


class Drawings:
    """Circles and squares in any colour, as PNG files in memory, each with a mask: the class of every pixel."""

    def __init__(self, count: int, seed: int) -> None:
        self.drawn = [draw(np.random.default_rng((seed, number))) for number in range(count)]

    def read(self, index: int) -> tuple[bytes, dict[str, Any]]:
        file, mask = self.drawn[index]
        return file, {"masks": mask}


def draw(rng: np.random.Generator) -> tuple[bytes, NDArray[np.uint8]]:
    ground = rng.integers(0, 90, 3)
    image = Image.new("RGB", (SIDE, SIDE), tuple(int(c) for c in ground))
    mask = Image.new("L", (SIDE, SIDE), 0)
    for _ in range(int(rng.integers(1, 4))):
        side = int(rng.integers(14, 28))
        x, y = (int(n) for n in rng.integers(0, SIDE - side, 2))
        kind = int(rng.integers(1, 3))
        colour = tuple(int(c) for c in rng.integers(120, 256, 3))
        for canvas, fill in ((image, colour), (mask, kind)):
            pen = ImageDraw.Draw(canvas)
            (pen.ellipse if kind == 1 else pen.rectangle)((x, y, x + side, y + side), fill=fill)
    noisy = np.clip(np.asarray(image) + rng.normal(0, 12, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(noisy).save(out, "PNG")
    return out.getvalue(), np.array(mask)


class Network(nn.Module):
    """Down to a quarter and up again, with what was seen on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = block(3, 8), block(8, 16), block(16, 32)
        self.up, self.last = block(32 + 16, 16), block(16 + 8, 8)
        self.out = nn.Conv2d(8, len(CLASSES), 1)
        self.pool, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        fine = self.first(images)
        middle = self.second(self.pool(fine))
        coarse = self.third(self.pool(middle))
        middle = self.up(torch.cat([self.grow(coarse), middle], 1))
        found: torch.Tensor = self.out(self.last(torch.cat([self.grow(middle), fine], 1)))
        return found


def block(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
    )  # fmt: skip


def main() -> int:
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1 if options.workers else 2)  # the workers want the cores too
    torch.backends.mkldnn.enabled = platform.machine() != "aarch64"  # oneDNN is slow at gradients there
    began = time.monotonic()
    overlap = train(options)
    print(f"the mean overlap on held-out drawings is {overlap:.1%}, after {time.monotonic() - began:.0f} s")
    return 0 if overlap >= NEEDED else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn to tell circles from squares, pixel by pixel.")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="little data, few epochs")
    options = parser.parse_args()
    options.epochs = options.epochs or (4 if options.quick else 12)
    return options


def train(options: argparse.Namespace) -> float:
    """Mean overlap of the classes on the held-out drawings after the last epoch."""
    count = 240 if options.quick else 1_000
    learning = AnnotatedDataset(Drawings(count, options.seed).read, LEARNING, count)
    testing = AnnotatedDataset(Drawings(100, options.seed + 1).read, TAIL, 100)
    print(f"{len(learning)} drawings to learn from, {len(testing)} held out")
    how: dict[str, Any] = {"batch_size": options.batch, "num_workers": options.workers, "seed": options.seed}
    loader: penstock.DataLoader[Any] = penstock.DataLoader(
        learning, shuffle=True, persistent_workers=options.workers > 0, **how
    )
    tests: penstock.DataLoader[Any] = penstock.DataLoader(testing, **how)

    net = Network()
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    pace = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=1e-2, total_steps=options.epochs * len(loader)
    )
    overlap = 0.0
    for epoch in range(1, options.epochs + 1):
        net.train()
        total = 0.0
        for images, targets in penstock.progress(loader, f"epoch {epoch}/{options.epochs}"):
            loss = nn.functional.cross_entropy(net(images), targets["masks"].long())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            pace.step()
            total += loss.item()
        line = f"epoch {epoch}: loss {total / len(loader):.3f}"
        if epoch == options.epochs or epoch % 4 == 0:
            overlap = mean_overlap(net, tests)
            line += f", held-out overlap {overlap:.1%}"
        print(line, flush=True)
    print(loader.diagnose())
    return overlap


def mean_overlap(net: nn.Module, tests: penstock.DataLoader[Any]) -> float:
    """Pixels that are of a class and were said to be, of those that are or were; the mean over classes."""
    net.eval()
    both, either = torch.zeros(len(CLASSES)), torch.zeros(len(CLASSES))
    with torch.inference_mode():
        for images, targets in tests:
            said, true = net(images).argmax(1), targets["masks"]
            for kind in range(len(CLASSES)):
                both[kind] += ((said == kind) & (true == kind)).sum()
                either[kind] += ((said == kind) | (true == kind)).sum()
    return float((both / either.clamp(min=1)).mean())


if __name__ == "__main__":
    sys.exit(main())
