"""One seam between datasets and bytes: whatever stands there, samples are the same, and everything is read through it."""

from __future__ import annotations

import builtins
import io
import os
import tarfile
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL.Image")
pytest.importorskip("soundfile")

from penstock import AudioFolder, DataLoader, ImageFolder, Reuse, StagedDataset, TarDataset
from penstock import transforms as T
from penstock.pipeline.adopt import adopted
from penstock.sources.sources import ByteRange
from tests.memory_source import Memory
from tests.torchvision_here import torchvision
from tests.unit.test_jpeg_parts import jpeg_of, photo

CHAIN = [T.RandomResizedCrop(16), T.ToTensor()]
SAMPLES = 6


class Elsewhere(Memory):
    """All files of a dataset, in memory."""

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__({path: Path(path).read_bytes() for path in paths})
        self.read_from: list[str] = []

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self.read_from.append(name)
        return super().read(name, start, end)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for kind in ("a", "b"):
        (tmp_path / "data" / kind).mkdir(parents=True)
    return tmp_path / "data"


def photos(root: Path) -> list[str]:
    paths = [root / "ab"[number % 2] / f"{number}.jpg" for number in range(SAMPLES)]
    for number, path in enumerate(paths):
        path.write_bytes(jpeg_of(photo(40, 50 + number, number)))
    return [str(path) for path in paths]


def images(root: Path) -> tuple[Any, list[str]]:
    paths = photos(root)
    return ImageFolder(root, CHAIN), paths


def theirs(root: Path) -> tuple[Any, list[str]]:
    torchvision()
    from torchvision.datasets import ImageFolder as Theirs
    from torchvision.transforms import v2

    paths = photos(root)
    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return adopted(Theirs(str(root), v2.Compose([v2.RandomResizedCrop(16), *tail]))), paths


def shards(root: Path) -> tuple[Any, list[str]]:
    path = root / "shard.tar"
    with tarfile.open(path, "w") as tar:
        for number, photo_path in enumerate(photos(root)):
            for name, data in (
                (f"{number}.jpg", Path(photo_path).read_bytes()),
                (f"{number}.cls", b"%d" % number),
            ):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return TarDataset(path, CHAIN), [str(path)]


def recordings(root: Path) -> tuple[Any, list[str]]:
    paths = [str(root / "ab"[number % 2] / f"{number}.wav") for number in range(SAMPLES)]
    for number, path in enumerate(paths):
        with wave.open(path, "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.full(400, 100 * number, "<i2").tobytes())
    return AudioFolder(root), paths


MAKES: list[Callable[[Path], tuple[Any, list[str]]]] = [images, theirs, shards, recordings]


@pytest.mark.parametrize("make", MAKES)
def test_a_sample_lies_where_its_dataset_says_and_its_target_is_given_apart(make: Any, root: Path) -> None:
    dataset, paths = make(root)
    for index in range(SAMPLES):
        name, start, end = dataset.locate(index)
        assert name in paths
        data = Path(name).read_bytes()[start:end]
        assert data.startswith((b"\xff\xd8\xff", b"RIFF"))
        assert dataset.bytes_from.read(name, start, end) == data
        assert dataset.target_of(index) == dataset[index][1]


@pytest.mark.parametrize("make", MAKES)
def test_another_source_can_stand_in_its_place_and_nothing_is_read_beside_it(
    make: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, paths = make(root)
    expected = list(DataLoader(dataset, 2, seed=3))
    dataset.bytes_from = source = Elsewhere(paths)
    opened: list[str] = []

    def noting(real: Any) -> Any:
        def opens(path: Any, *rest: Any, **more: Any) -> Any:
            opened.append(str(path))
            return real(path, *rest, **more)

        return opens

    for module in (os, builtins, io):
        monkeypatch.setattr(module, "open", noting(module.open))  # type: ignore[attr-defined]
    found = list(DataLoader(dataset, 2, seed=3))
    monkeypatch.undo()
    assert not set(opened) & set(paths)
    assert set(source.read_from) == set(paths)
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))


def test_what_is_kept_for_reuse_is_read_there_too(root: Path) -> None:
    dataset, paths = images(root)
    expected = list(DataLoader(dataset, 2, seed=3, reuse=Reuse(times=2, split=1)))
    dataset.bytes_from = source = Elsewhere(paths)
    found = list(DataLoader(dataset, 2, seed=3, reuse=Reuse(times=2, split=1)))
    assert set(source.read_from) == set(paths)
    for one, other in zip(found, expected, strict=True):
        assert all(map(torch.equal, one, other))


class Pieces(StagedDataset):
    """A user's own: samples one behind the other in one file."""

    def __init__(self, files: list[bytes]) -> None:
        super().__init__(None, CHAIN, len(files))
        self.ends = np.cumsum([len(data) for data in files]).tolist()
        self.bytes_from = Memory({"all": b"".join(files)})

    def locate(self, index: int) -> ByteRange:
        return "all", self.ends[index - 1] if index else 0, self.ends[index]

    def target_of(self, index: int) -> int:
        return index


def test_a_users_dataset_can_say_where_its_bytes_are(root: Path) -> None:
    files = [Path(path).read_bytes() for path in photos(root)]
    opaque = StagedDataset(lambda index: (files[index], index), CHAIN, len(files))
    located = Pieces(files)
    assert located.is_located
    assert not opaque.is_located
    for one, other in zip(
        DataLoader(located, 2, seed=3), DataLoader(opaque, 2, seed=3, num_workers=1), strict=True
    ):
        assert all(map(torch.equal, one, other))
    assert "bytes: located in local files" in DataLoader(located, 2).explain()
    with pytest.raises(NotImplementedError, match="does not say where its bytes are"):
        opaque.locate(0)


def test_a_read_that_was_put_in_later_tells_nobody_where_it_reads(root: Path) -> None:
    dataset, _ = images(root)
    assert dataset.is_located
    dataset.read = lambda index: (b"", index)
    assert not dataset.is_located
    assert dataset.contents() is None
