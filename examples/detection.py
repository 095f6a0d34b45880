"""Detection: a small network finds circles and squares. penstock moves images and their boxes with one draw.

    python examples/detection.py              generated drawings with one to three objects each
    python examples/detection.py --quick      fewer of them: a few seconds

Images have different numbers of boxes, so batches are tuples. The exit code is 1 if the F1 score on held-out drawings (right class,
overlap of at least a half) stays below 60 %.
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

SIDE, CELL = 64, 8
GRID = SIDE // CELL
NEEDED = 0.60

TAIL = [ToImage(), ToDtype(torch.float32, scale=True), Normalize([0.5] * 3, [0.25] * 3)]
LEARNING = [
    RandomResizedCrop(SIDE, scale=(0.6, 1.0)),
    RandomHorizontalFlip(),
    RandomVerticalFlip(),
    ColorJitter(0.2, 0.2, 0.2),
    *TAIL,
]
Target = dict[str, torch.Tensor]


class Drawings:
    """Circles (0) and squares (1) in any colour, as PNG files in memory, each object with a box and a label."""

    def __init__(self, count: int, seed: int) -> None:
        self.drawn = [draw(np.random.default_rng((seed, number))) for number in range(count)]

    def read(self, index: int) -> tuple[bytes, dict[str, Any]]:
        file, boxes, labels = self.drawn[index]
        return file, {"boxes": boxes, "labels": labels}


def draw(rng: np.random.Generator) -> tuple[bytes, NDArray[np.float32], NDArray[np.int64]]:
    image = Image.new("RGB", (SIDE, SIDE), tuple(int(c) for c in rng.integers(0, 90, 3)))
    pen = ImageDraw.Draw(image)
    boxes: list[tuple[int, int, int, int]] = []
    labels: list[int] = []
    for _ in range(int(rng.integers(1, 4))):
        side = int(rng.integers(14, 26))
        x, y = (int(n) for n in rng.integers(0, SIDE - side, 2))
        if any(
            x < right and left < x + side and y < bottom and top < y + side
            for left, top, right, bottom in boxes
        ):
            continue
        label = int(rng.integers(2))
        colour = tuple(int(c) for c in rng.integers(120, 256, 3))
        (pen.rectangle if label else pen.ellipse)((x, y, x + side - 1, y + side - 1), fill=colour)
        boxes.append((x, y, x + side, y + side))
        labels.append(label)
    noisy = np.clip(np.asarray(image) + rng.normal(0, 12, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(noisy).save(out, "PNG")
    return out.getvalue(), np.array(boxes, np.float32), np.array(labels, np.int64)


def as_tuples(samples: list[Any]) -> tuple[Any, ...]:
    """(images, targets): boxes differ in number, so nothing is stacked."""
    return tuple(zip(*samples, strict=True))


def network() -> nn.Sequential:
    """For every cell of 8 x 8 pixels: whether an object's middle lies there, its class, and its four sides."""
    layers: list[nn.Module] = []
    for before, after, pooled in (
        (3, 12, True),
        (12, 24, True),
        (24, 48, True),
        (48, 48, False),
        (48, 48, False),
    ):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pooled else []
    return nn.Sequential(*layers, nn.Conv2d(48, 7, 1))


def cells_of(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of the cell that each box has its middle in."""
    middle = ((boxes[:, :2] + boxes[:, 2:]) / 2 / CELL).long().clamp(0, GRID - 1)
    return middle[:, 1], middle[:, 0]


def sides_of(boxes: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """How far each side is from the middle of its cell, in cells."""
    middle = torch.stack([columns, rows, columns, rows], 1) + 0.5
    return boxes / CELL - middle


def loss_of(found: torch.Tensor, targets: tuple[Target, ...]) -> torch.Tensor:
    there = torch.zeros(len(targets), GRID, GRID)
    classes, sides = [], []
    for number, target in enumerate(targets):
        rows, columns = cells_of(target["boxes"])
        there[number, rows, columns] = 1
        here = found[number, :, rows, columns].T
        wanted = sides_of(target["boxes"], rows, columns)
        classes.append(nn.functional.cross_entropy(here[:, 1:3], target["labels"], reduction="sum"))
        sides.append(nn.functional.smooth_l1_loss(here[:, 3:], wanted, reduction="sum", beta=0.2))
    objects = there.sum().clamp(min=1)
    seen = nn.functional.binary_cross_entropy_with_logits(found[:, 0], there, reduction="sum")
    return (seen + torch.stack(classes).sum() + torch.stack(sides).sum()) / objects


def boxes_in(found: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes and classes that the network sees in one image; of two that overlap, the surer one."""
    rows, columns = torch.nonzero(found[0] > 0, as_tuple=True)
    order = found[0, rows, columns].argsort(descending=True)
    rows, columns = rows[order], columns[order]
    middle = torch.stack([columns, rows, columns, rows], 1) + 0.5
    boxes = (found[3:, rows, columns].T + middle) * CELL
    kept: list[int] = []
    for number in range(len(boxes)):
        if all(float(overlaps(boxes[number], boxes[[other]])) < 0.4 for other in kept):
            kept.append(number)
    return boxes[kept], found[1:3, rows, columns].argmax(0)[kept]


def overlaps(box: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Intersection over union of a box with each of others."""
    low, high = torch.maximum(box[:2], boxes[:, :2]), torch.minimum(box[2:], boxes[:, 2:])
    both = (high - low).clamp(min=0).prod(1)
    return both / ((box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(1) - both)


def main() -> int:
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1 if options.workers else 2)  # the workers want the cores too
    torch.backends.mkldnn.enabled = platform.machine() != "aarch64"  # oneDNN is slow at gradients there
    began = time.monotonic()
    score = train(options)
    print(f"the F1 score on held-out drawings is {score:.1%}, after {time.monotonic() - began:.0f} s")
    return 0 if score >= NEEDED else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learn to find circles and squares.")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="little data, few epochs")
    options = parser.parse_args()
    options.epochs = options.epochs or (8 if options.quick else 20)
    return options


def train(options: argparse.Namespace) -> float:
    """F1 score on the held-out drawings after the last epoch."""
    count = 300 if options.quick else 1_500
    learning = AnnotatedDataset(Drawings(count, options.seed).read, LEARNING, count)
    testing = AnnotatedDataset(Drawings(100, options.seed + 1).read, TAIL, 100)
    print(f"{len(learning)} drawings to learn from, {len(testing)} held out")
    how: dict[str, Any] = {
        "batch_size": options.batch, "num_workers": options.workers, "seed": options.seed, "collate_fn": as_tuples,
    }  # fmt: skip
    loader: penstock.DataLoader[Any] = penstock.DataLoader(
        learning, shuffle=True, persistent_workers=options.workers > 0, **how
    )
    tests: penstock.DataLoader[Any] = penstock.DataLoader(testing, **how)

    net = network()
    optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3)
    pace = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=1e-2, total_steps=options.epochs * len(loader)
    )
    score = 0.0
    for epoch in range(1, options.epochs + 1):
        net.train()
        total = 0.0
        for images, targets in penstock.progress(loader, f"epoch {epoch}/{options.epochs}"):
            loss = loss_of(net(torch.stack(images)), targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            pace.step()
            total += loss.item()
        line = f"epoch {epoch}: loss {total / len(loader):.3f}"
        if epoch == options.epochs or epoch % 4 == 0:
            score = f1(net, tests)
            line += f", held-out F1 {score:.1%}"
        print(line, flush=True)
    print(loader.diagnose())
    return score


def f1(net: nn.Module, tests: penstock.DataLoader[Any]) -> float:
    """Objects found twice count once; those that are not there count against it."""
    net.eval()
    right = said = true = 0
    with torch.inference_mode():
        for images, targets in tests:
            for found, target in zip(net(torch.stack(images)), targets, strict=True):
                boxes, classes = boxes_in(found)
                said, true = said + len(boxes), true + len(target["boxes"])
                for box, label in zip(target["boxes"], target["labels"], strict=True):
                    right += bool(((overlaps(box, boxes) >= 0.5) & (classes == label)).any())
    return 2 * right / max(1, said + true)


if __name__ == "__main__":
    sys.exit(main())
