"""CIFAR-10 in memory, decoded: a folder or a tar of JPEG files, train/CLASS/NAME.jpg and test/CLASS/NAME.jpg, read once and kept as arrays."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _gpu_cifar import MEMBER, members
from numpy.typing import NDArray

from penstock import StagedDataset
from penstock.lanes.offers import Offer

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


class Arrays(NamedTuple):
    """Images of 32 x 32 x 3, and the numbers of their classes."""

    train: Images
    train_labels: Labels
    test: Images
    test_labels: Labels


def arrays_of(data: Path, work: Path, *, limit: int | None, say: Callable[[str], None]) -> Arrays:
    """All images, or at most `limit` of each class in each part; the second time from a file in `work`."""
    name = f"{data.resolve()} {data.stat().st_size} {limit}"
    path = work / f"cifar10-{hashlib.sha256(name.encode()).hexdigest()[:12]}.npz"
    if not path.exists():
        began = time.monotonic()
        found = decoded(in_folder(data, limit) if data.is_dir() else members(data, limit))
        if not len(found.train) or not len(found.test):
            raise SystemExit(f"{data}: no files like train/CLASS/NAME.jpg and test/CLASS/NAME.jpg in it")
        work.mkdir(parents=True, exist_ok=True)
        partly = path.with_suffix(".part.npz")
        np.savez(partly, **found._asdict())
        partly.replace(path)
        say(f"{len(found.train)} + {len(found.test)} images decoded in {time.monotonic() - began:.1f} s")
    with np.load(path) as file:
        return Arrays(**{name: file[name] for name in Arrays._fields})


def in_folder(root: Path, limit: int | None) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the images, as `members` gives those of an archive."""
    for folder in sorted(path for part in ("train", "test") for path in (root / part).glob("*")):
        for path in sorted(folder.iterdir())[:limit]:
            name = path.relative_to(root).as_posix()
            if MEMBER.fullmatch(name):
                yield name, path.read_bytes()


def decoded(files: Iterator[tuple[str, bytes]]) -> Arrays:
    import cv2

    found: dict[str, list[tuple[str, Images]]] = {"train": [], "test": []}
    for name, data in files:
        part, kind, _ = name.split("/")
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        found[part].append((kind, cv2.cvtColor(image, cv2.COLOR_BGR2RGB)))
    numbers = {kind: number for number, kind in enumerate(sorted({kind for kind, _ in found["train"]}))}
    parts = [
        (
            np.array([image for _, image in found[part]], np.uint8),
            np.array([numbers[kind] for kind, _ in found[part]], np.int64),
        )
        for part in ("train", "test")
    ]
    return Arrays(*parts[0], *parts[1])


def as_it_is(image: Images) -> Images:
    return image


class ArrayDataset(StagedDataset):
    """Images that need not be decoded."""

    knows_targets = True

    def __init__(self, images: Images, labels: Labels, chain: Any) -> None:
        super().__init__(self._read, chain, len(images), decoder=as_it_is)  # type: ignore[arg-type]
        self._images, self._labels = images, labels.tolist()

    def offer(self) -> Offer:
        """No code of anybody else's has a part in a sample."""
        return replace(super().offer(), draws_alone=lambda: True)

    def target_of(self, index: int) -> int:
        return int(self._labels[index])

    def _read(self, index: int) -> tuple[Any, int]:
        return self._images[index], self.target_of(index)
