"""CIFAR-10 from a tar of JPEG files (train/CLASS/NAME.jpg, test/CLASS/NAME.jpg): its files, and decoded arrays."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import StagedDataset
from penstock.dataset.offers import Offer

MEMBER = re.compile(r"(?:\./)?((?:train|test)/[\w-]+/[\w-]+\.jpe?g)")
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


class Arrays(NamedTuple):
    """Images of 32 x 32 x 3, and the numbers of their classes."""

    train: Images
    train_labels: Labels
    test: Images
    test_labels: Labels


def arrays_of(archive: Path, *, limit: int | None) -> Arrays:
    """All images, or at most `limit` of each class in each part."""
    found = decoded(members(archive, limit))
    if not len(found.train) or not len(found.test):
        raise SystemExit(f"{archive}: no files like train/CLASS/NAME.jpg and test/CLASS/NAME.jpg in it")
    return found


def members(archive: Path, limit: int | None) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the images in a tar, at most `limit` of each class in each part."""
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
