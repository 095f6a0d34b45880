"""Datasets and helpers for tests of loaders with `cache=`: what batches are, and where the processes behind it are."""

from __future__ import annotations

import gc
import io
import tarfile
import wave
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Subset

from penstock import AudioFolder, Cache, DataLoader, ImageFolder, StagedDataset, TarDataset
from penstock import transforms as T
from penstock.dataset.offers import ReadSeam
from penstock.node.link import NodeLink
from penstock.pipeline.adopt import adopted
from penstock.sources.sources import ByteRange
from tests.fault.kill_schedules import digest
from tests.fault.programs import until
from tests.leaks import GONE, descendants
from tests.torchvision_here import torchvision

SAMPLES, BATCH = 42, 4
ROOMY = Cache(memory="16MiB")
CHAIN = [T.RandomResizedCrop(16), T.ToTensor()]
NODE_END_S = 10.0
Batches = list[str]
"""A digest of each batch."""


@cache
def jpeg(number: int, side: int = 40) -> bytes:
    """A noisy photo, so that its bytes do not shrink; each of another size."""
    pixels = np.random.default_rng(number).integers(0, 255, (side + number % 13, side + 7, 3), np.uint8)
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    return file.getvalue()


def photos(root: Path, samples: int = SAMPLES, side: int = 40) -> list[Path]:
    """Image files of two classes."""
    paths = [root / "ab"[number % 2] / f"{number:03}.jpg" for number in range(samples)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number, side))
    return paths


# ---- datasets


def images(root: Path) -> Any:
    photos(root)
    return ImageFolder(root, CHAIN)


def theirs(root: Path) -> Any:
    torchvision()
    from torchvision.datasets import ImageFolder as Theirs
    from torchvision.transforms import v2

    photos(root)
    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return adopted(Theirs(str(root), v2.Compose([v2.RandomResizedCrop(16), *tail])))


def shards(root: Path) -> Any:
    """Targets are files of the shards, too: a sample has two ranges."""
    root.mkdir(parents=True, exist_ok=True)
    for shard in range(2):
        with tarfile.open(root / f"{shard}.tar", "w") as tar:
            for number in range(shard, SAMPLES, 2):
                for name, data in ((f"{number}.jpg", jpeg(number)), (f"{number}.cls", b"%d" % (number % 5))):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return TarDataset([root / "0.tar", root / "1.tar"], CHAIN)


def recordings(root: Path) -> Any:
    for number in range(SAMPLES):
        path = root / "ab"[number % 2] / f"{number:03}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.full(400, 100 * number, "<i2").tobytes())
    return AudioFolder(root)


class Pieces(StagedDataset):
    """A user's own: samples one behind the other in one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(None, CHAIN, SAMPLES)
        self.path = str(path)
        self.ends = np.cumsum([len(jpeg(number)) for number in range(SAMPLES)]).tolist()

    def locate(self, index: int) -> ByteRange:
        return self.path, self.ends[index - 1] if index else 0, self.ends[index]

    def target_of(self, index: int) -> int:
        return index

    def seam(self) -> ReadSeam:
        return ReadSeam(holder=self, ranges=self.ranges, files=(self.path,))


def pieces(root: Path) -> Any:
    root.mkdir(parents=True, exist_ok=True)
    path = root / "all"
    path.write_bytes(b"".join(map(jpeg, range(SAMPLES))))
    return Pieces(path)


def subset(root: Path) -> Any:
    return Subset(images(root), [*range(40, 3, -2), 7, 7])


MAKES: dict[str, Callable[[Path], Any]] = {
    made.__name__: made for made in (images, theirs, shards, recordings, pieces, subset)
}


# ---- loaders


def loader(dataset: Any, cache: Cache | None = ROOMY, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": BATCH, "shuffle": True, "seed": 3, "num_workers": 2} | options
    return DataLoader(dataset, cache=cache, **options)


def taken(made: Iterable[Any], epochs: int = 2) -> list[Batches]:
    return [[digest(batch) for batch in made] for _ in range(epochs)]


def reference(dataset: Any, epochs: int = 2, **options: Any) -> list[Batches]:
    """What a loader without workers and cache delivers: the same, by its promise."""
    return taken(loader(dataset, None, **{**options, "num_workers": 0}), epochs)


def told(made: DataLoader[Any]) -> dict[str, Any]:
    """What the service says."""
    found: dict[str, Any] = made.stats()["cache"]
    assert found, "the service does not answer"
    return found


def adds_up(found: dict[str, Any], batches: int, samples: int) -> None:
    """Check the sums of a loader's counters."""
    assert found["batches"] == batches
    assert sum(found["samples"].values()) == samples
    assert found["memory_bytes"] <= found["memory_max_bytes"]
    assert found["kept_bytes"] <= found["room_bytes"]


# ---- processes


def named(name: str) -> list[psutil.Process]:
    """Our processes of that name (`measure.host.name_process`) that live."""
    found = []
    for process in descendants().values():
        try:
            if process.name() == name and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except GONE:
            continue
    return sorted(found, key=lambda process: process.pid)


def one_named(name: str) -> psutil.Process:
    """The one process of that name, once it is there."""
    until(lambda: len(named(name)) == 1, within_s=10.0, why=f"there is no {name}, or more than one")
    return named(name)[0]


@dataclass(slots=True)
class SharedNode:
    """A node process for many tests: to start one for each would take seconds."""

    link: NodeLink


@pytest.fixture(scope="module")
def node() -> Iterator[SharedNode]:
    """A node whose cache service has started."""
    shared = SharedNode(NodeLink.attach())
    shared.link.open("cache").close()
    yield shared
    shared.link.close()
    until(lambda: not named("penstock node"), within_s=NODE_END_S, why="the node process does not end")


@pytest.fixture
def own_node() -> Iterator[None]:
    """A test that does harm has a node of its own, and it ends."""
    assert not named("penstock node")
    yield
    gc.collect()
    until(
        lambda: not (named("penstock node") or named("penstock cache")),
        within_s=NODE_END_S,
        why="the node process or its cache does not end",
    )
