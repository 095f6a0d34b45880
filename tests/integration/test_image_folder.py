"""Image folders through the loader: ours, and torchvision's as adopted; the same batches for any number of workers."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, get_worker_info

from penstock import ConfigError, DataLoader, ImageFolder, StagedDataset, TooManySkipped
from penstock import transforms as T
from penstock.transforms.steps import Code, Step
from tests.torchvision_here import torchvision

pytest.importorskip("cv2")
CHAIN = T.Compose(
    [
        T.RandomResizedCrop(32),
        T.RandomHorizontalFlip(),
        T.RandAugment(),
        T.ToImage(),
        T.ToDtype(torch.float32, scale=True),
        T.Normalize([0.5, 0.5, 0.5], [0.25, 0.25, 0.25]),
    ]
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(2)
    for number in range(14):
        folder = root / f"class {number % 3}" / ("deep" if number == 7 else "")
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
        image = coarse.resize(
            (int(rng.integers(40, 90)), int(rng.integers(40, 90))), Image.Resampling.BICUBIC
        )
        image.save(folder / f"{number:02}.{('jpg', 'png', 'webp')[number % 3]}")
    (root / "class 1" / "notes.txt").write_text("not an image")
    return root


def batches(dataset: Any, workers: int, **options: Any) -> list[Any]:
    loader: DataLoader[Any] = DataLoader(dataset, 4, shuffle=True, seed=3, num_workers=workers, **options)
    return [batch for _ in range(2) for batch in loader]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(x, y) for a, b in zip(one, other, strict=True) for x, y in zip(a, b, strict=True)
    )


def test_the_same_batches_for_any_number_of_workers(photos: Path) -> None:
    found = batches(ImageFolder(photos, CHAIN), 0)
    assert found[0][0].shape == (4, 3, 32, 32)
    assert same(found, batches(ImageFolder(photos, CHAIN), 2))
    assert not same(found[:4], found[4:]), "another epoch, other crops"


def test_a_folder_is_read_as_torchvision_reads_it(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder as Theirs

    ours, theirs = ImageFolder(photos), Theirs(str(photos))
    assert (ours.classes, ours.class_to_idx) == (theirs.classes, theirs.class_to_idx)
    assert (ours.samples, ours.targets) == (theirs.samples, theirs.targets)
    for index in range(len(ours)):
        image, target = ours[index]
        assert target == theirs[index][1]
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), np.asarray(theirs[index][0]))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_adopted_folder_gives_the_batches_it_would_have_given(photos: Path, workers: int) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder as Theirs
    from torchvision.transforms import v2

    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    dataset = Theirs(str(photos), v2.Compose([v2.RandomResizedCrop(24), v2.RandAugment(), *tail]))
    assert same(batches(dataset, workers), batches(dataset, workers, adopt=False))


def test_workers_know_the_users_dataset(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder as Theirs
    from torchvision.transforms import v2

    dataset = Theirs(str(photos), v2.Compose([v2.Resize((8, 8)), v2.PILToTensor()]))
    loader: DataLoader[Any] = DataLoader(dataset, 4, num_workers=1, worker_init_fn=expect_a_folder)
    assert len(list(loader)) == 4


def expect_a_folder(_: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert type(info.dataset).__name__ == "ImageFolder"


def test_a_corrupt_file_is_an_error_of_its_sample(photos: Path, tmp_path: Path) -> None:
    good = sorted(photos.rglob("*.jpg"))
    files = [good[0].read_bytes(), good[1].read_bytes()[:-200], b"no image at all", good[2].read_bytes()]
    dataset = StagedDataset(lambda index: (files[index], index), T.Resize((8, 8)), len(files))
    loader: DataLoader[Any] = DataLoader(dataset, 2, num_workers=2, on_error="skip")
    assert [target.tolist() for _, target in loader] == [[0], [3]]
    reasons = {entry["key"]: entry["error"] for entry in loader.skipped()}
    assert reasons["1"].startswith("BadImage: the JPEG file cannot be decoded")
    assert reasons["2"].startswith("BadImage: not a JPEG, PNG or WebP file")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["ours", "wrapped", "adopted", "torchvision's"])
def test_what_was_left_out_is_reported_with_its_file(
    photos: Path, tmp_path: Path, workers: int, kind: str
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    bad = sorted((tmp_path / "photos").rglob("*.jpg"))[1]
    bad.write_bytes(b"no image at all")
    if kind in ("ours", "wrapped"):
        dataset: Any = ImageFolder(tmp_path / "photos", T.Resize((8, 8)))
    else:
        transforms = torchvision().transforms.v2
        chain = transforms.Compose([transforms.Resize((8, 8)), transforms.PILToTensor()])
        dataset = torchvision().datasets.ImageFolder(str(tmp_path / "photos"), chain)
    key = [path for path, _ in dataset.samples].index(str(bad))
    if kind == "wrapped":
        rest = [number for number in range(len(dataset)) if number != key]
        dataset = ConcatDataset([Subset(dataset, rest), Subset(dataset, [key])])
        key = len(rest)
    options: dict[str, Any] = {"num_workers": workers, "on_error": "skip", "adopt": kind != "torchvision's"}
    loader: DataLoader[Any] = DataLoader(dataset, 4, **options)
    assert sum(len(labels) for _, labels in loader) == len(dataset) - 1
    (skip,) = loader.skipped()
    assert (skip["key"], skip["path"]) == (str(key), str(bad))
    strict: DataLoader[Any] = DataLoader(dataset, 4, max_skipped=0, **options)
    with pytest.raises(TooManySkipped, match=re.escape(f"sample {key} ({bad}): ")):
        list(strict)


def test_a_dataset_may_be_used_without_a_loader(photos: Path) -> None:
    dataset = ImageFolder(photos, CHAIN)
    torch.manual_seed(1)
    first, second = dataset[0][0], dataset[0][0]
    torch.manual_seed(1)
    assert torch.equal(dataset[0][0], first)
    assert not torch.equal(first, second)


def test_chains_of_the_same_ops_have_one_identity() -> None:
    from penstock.pipeline.chain import Chain

    assert Chain.of(CHAIN).identity == Chain.of(list(CHAIN.transforms)).identity
    different = {
        Chain.of(chain).identity
        for chain in (CHAIN, T.Resize(32), T.Resize(33), T.CenterCrop(32), None, [T.Resize(32), T.ToTensor()])
    }
    assert len(different) == 6


@pytest.mark.parametrize(
    "chain",
    [
        [T.ToDtype(torch.float32), T.Resize(8)],
        [T.Normalize([0.5], [0.5])],
        [T.ToTensor(), T.Normalize([0.5], [0.5]), T.Normalize([0.5], [0.5])],
    ],
)
def test_a_chain_that_makes_no_sense_is_refused(chain: Any, photos: Path) -> None:
    with pytest.raises(ConfigError):
        ImageFolder(photos, chain)[0]


def drawn_target(target: int) -> float:
    return target + random.random() + float(torch.rand(())) + float(np.random.rand())


class Drawing(T.Op):
    """An op of a user's, who draws as in any dataset."""

    def draw(self, draws: Any, size: Any) -> Any:
        return [Step(Code.BRIGHTNESS, (random.random(),))]


@pytest.mark.parametrize(
    ("chain", "target", "alone"),
    [
        (CHAIN, None, True),
        (CHAIN, drawn_target, False),
        ([T.Resize((8, 8)), Drawing()], None, False),
        ([T.RandomApply([Drawing()], 1.0), T.Resize((8, 8))], None, False),
        ([T.Lambda(lambda image: image), T.Resize((8, 8))], None, False),
    ],
    ids=["ours", "target", "op", "op within", "function"],
)
def test_code_of_the_users_finds_seeded_generators(
    chain: Any, target: Any, alone: bool, photos: Path
) -> None:
    """Whoever draws there, the sample is the same whichever worker prepares it."""
    dataset = ImageFolder(photos, chain, target)
    assert dataset.offer().draws_alone() is alone
    epochs = [
        [
            (images.sum().item(), targets.tolist())
            for images, targets in DataLoader(dataset, 2, seed=3, num_workers=workers)
        ]
        for workers in (1, 2)
    ]
    assert epochs[0] == epochs[1]


def test_what_a_dataset_is_given_later_counts(photos: Path) -> None:
    dataset = ImageFolder(photos, CHAIN)
    offer = dataset.offer()
    assert offer.draws_alone()
    dataset.target_transform = drawn_target
    assert not offer.draws_alone()
    dataset.target_transform = None
    dataset.chain = ImageFolder(photos, [Drawing()]).chain
    assert not offer.draws_alone()


BEGINNING = """
import sys, torch
from penstock import DataLoader, ImageFolder, transforms as T

def begin(worker):
    raise RuntimeError(f"{worker} has {sorted({'cv2', 'PIL.ImageOps'} & set(sys.modules))}")

chain = [T.RandomHorizontalFlip(), T.CenterCrop(8), *([T.GaussianBlur(3)] if "blur" in sys.argv[2] else []), T.ToImage()]
assert "cv2" not in sys.modules
dataset = ImageFolder(sys.argv[1], chain)
if "subset" in sys.argv[2]:
    dataset = torch.utils.data.Subset(dataset, [0, 1])
next(iter(DataLoader(dataset, 2, num_workers=1, worker_init_fn=begin)))
"""


@pytest.mark.parametrize("form", ["folder", "subset", "subset that blurs"])
def test_workers_begin_with_the_libraries_that_they_need(photos: Path, form: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BEGINNING, str(photos), form], capture_output=True, text=True, check=False
    )
    needed = ["PIL.ImageOps", "cv2"] if "blurs" in form else ["PIL.ImageOps"]
    assert f"0 has {needed}" in ran.stderr


AFTERWARDS = """
import os, sys
from penstock import DataLoader, ImageFolder, transforms as T

before = dict(os.environ)
chain = [T.RandomCrop(8, pad_if_needed=True), T.ToTensor()]
print(len(next(iter(DataLoader(ImageFolder(sys.argv[1], chain), 2, num_workers=1)))[0]))
print({name: value for name, value in os.environ.items() if before.get(name) != value and name == "LD_LIBRARY_PATH"})
"""


@pytest.mark.parametrize("broken", [False, True])
def test_libraries_leave_no_search_path_and_may_be_broken(photos: Path, tmp_path: Path, broken: bool) -> None:
    only_jpegs = tmp_path / "photos" / "a"
    only_jpegs.mkdir(parents=True)
    for photo in list(photos.rglob("*.jpg"))[:2]:
        (only_jpegs / photo.name).write_bytes(photo.read_bytes())
    if broken:
        (tmp_path / "cv2.py").write_text("raise AttributeError('an installation that does not fit')")
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    env.pop("LD_LIBRARY_PATH", None)  # this process may have OpenCV's
    ran = subprocess.run(
        [sys.executable, "-c", AFTERWARDS, str(tmp_path / "photos")],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    assert ran.stdout.split("\n")[:2] == ["2", "{}"], ran.stderr
