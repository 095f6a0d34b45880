"""`loader.explain()`: golden texts, but for the figures, which depend on the machine."""

from __future__ import annotations

import re
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock import AnnotatedDataset, AudioFolder, DataLoader, ImageFolder, StagedDataset
from penstock import transforms as T
from penstock.client.advice import lacking
from penstock.client.gpu_choice import missing_for_lane
from penstock.config import LoaderConfig
from penstock.pipeline.explain import explained
from tests.torchvision_here import torchvision

pytest.importorskip("cv2")
LOCATED = "bytes: located in local files, so that a cache or another machine could read them"
OPAQUE = (
    "bytes: from a read of yours, which does not say where they are: no cache and no other machine can read them. "
    "A subclass of StagedDataset with locate(index) can say so"
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("photos")
    (root / "a").mkdir()
    for number in range(3):
        Image.fromarray(np.full((60, 80, 3), 40 * number, np.uint8)).save(root / "a" / f"{number}.jpg")
    return root


def without_figures(text: str) -> str:
    return re.sub(r" +[\d,]+ µs +\d+%", "  N", re.sub(r" +[\d,]+ µs per", "  N per", text))


def upside_down(image: Any) -> Any:
    return image[::-1]


def test_a_chain_of_ours_with_a_function_of_the_users(photos: Path) -> None:
    chain = [T.RandomResizedCrop(32), T.Lambda(upside_down), T.ToTensor()]
    dataset = ImageFolder(photos, chain)
    text = DataLoader(dataset, 2).explain()
    assert without_figures(text) == (
        f"ImageFolder: 3 samples, chain {dataset.chain.identity}\n"
        "  read  N  cpu\n"
        "  decode  N  cpu, gpu\n"
        "  RandomResizedCrop  N  cpu, gpu         size=32, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), interpolation=2, "
        "antialias=True\n"
        "  Lambda  N  cpu, Python only lambd=tests.integration.test_explain.upside_down  (a function of yours: no other lane can "
        "run it)\n"
        "  to tensor  N  cpu, gpu         float32\n"
        "  together  N per sample and core, over 3 samples\n"
        f"  {LOCATED}\n"
        "  the GPU cannot help: Lambda: a function in Python"
    )


def test_an_adopted_chain(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder as Theirs
    from torchvision.transforms import v2

    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.RandomErasing()]
    ops = [
        v2.RandomResizedCrop(32),
        v2.RandomPerspective(),
        v2.RandAugment(),
        v2.RandomRotation(9, interpolation="bicubic"),
    ]
    dataset = Theirs(str(photos), v2.Compose([*ops, *tail]))
    assert without_figures(DataLoader(dataset, 2).explain()) == (
        "ImageFolder of torchvision, adopted: 3 samples, torchvision's draws and pixels\n"
        "  read  N  cpu\n"
        "  decode  N  cpu, gpu\n"
        "  RandomResizedCrop  N  cpu, gpu\n"
        "  RandomPerspective  N  cpu, Python only   (not a transform that we know, or with parameters that we do not: it is called as "
        "it is)\n"
        "  RandAugment  N  cpu, gpu\n"
        "  RandomRotation  N  cpu                (not always on the GPU: affine maps with interpolation BICUBIC have no kernel)\n"
        "  to tensor  N  cpu, Python only float32  (RandomErasing: called on the finished tensor)\n"
        "  together  N per sample and core, over 3 samples\n"
        f"  {LOCATED}\n"
        "  the GPU cannot help: RandomPerspective, RandomErasing: called as it is, in Python"
    )


def test_several_crops_are_explained_by_what_they_have_in_common(photos: Path) -> None:
    large, small = T.RandomResizedCrop(32), T.RandomCrop(8)
    chain = [
        T.Resize(40),
        T.MultiCrop([([large, T.RandomGrayscale()], 2), (small, 6), (T.CenterCrop(9), 1)]),
        T.ToTensor(),
    ]
    dataset = ImageFolder(photos, chain)
    crop = "size=8, padding=None, pad_if_needed=False, fill=0, padding_mode=constant"
    assert without_figures(DataLoader(dataset, 2).explain()) == (
        f"ImageFolder: 3 samples, chain {dataset.chain.identity}\n"
        "  read  N  cpu\n"
        "  decode  N  cpu, gpu\n"
        "  Resize  N  cpu, gpu         size=40, interpolation=2, max_size=None, antialias=True\n"
        "  crops 1 to 2:\n"
        "  2 x RandomResizedCrop  N  cpu, gpu         size=32, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), interpolation=2, "
        "antialias=True\n"
        "  2 x RandomGrayscale  N  cpu, gpu         p=0.1\n"
        "  2 x to tensor  N  cpu, gpu         float32\n"
        "  crops 3 to 8:\n"
        f"  6 x RandomCrop  N  cpu, gpu         {crop}\n"
        "  6 x to tensor  N  cpu, gpu         float32\n"
        "  crop 9:\n"
        "  CenterCrop  N  cpu, gpu         size=9\n"
        "  to tensor  N  cpu, gpu         float32\n"
        "  together  N per sample and core, over 3 samples\n"
        f"  {LOCATED}\n"
        "  the GPU cannot help: the chain makes several images of one"
    )


def test_the_cost_of_several_crops_is_that_of_all_of_them(photos: Path) -> None:
    crop = [T.Resize((300, 300)), T.RandomCrop(280)]
    texts = [
        DataLoader(ImageFolder(photos, [T.MultiCrop([(crop, count)]), T.ToTensor()]), 2).explain()
        for count in (1, 12)
    ]
    one, twelve = (float(re.findall(r"Resize +([\d,]+) µs", text)[0].replace(",", "")) for text in texts)
    assert twelve > 3 * one


def test_images_with_masks_and_boxes(photos: Path) -> None:
    data = (photos / "a" / "0.jpg").read_bytes()
    targets = {"masks": np.zeros((60, 80), np.uint8), "boxes": [[1, 2, 30, 40]], "labels": [3]}
    dataset = AnnotatedDataset(lambda _: (data, targets), [T.RandomHorizontalFlip(), T.ToTensor()], 3)
    assert without_figures(DataLoader(dataset, 2).explain()) == (
        f"AnnotatedDataset: 3 samples, chain {dataset.chain.identity}\n"
        "  read  N  cpu\n"
        "  decode  N  cpu, gpu\n"
        "  RandomHorizontalFlip  N  cpu, gpu         p=0.5\n"
        "  to tensor  N  cpu, gpu         float32\n"
        "  masks and boxes  N  cpu\n"
        "  together  N per sample and core, over 3 samples\n"
        f"  {OPAQUE}\n"
        "  the GPU cannot help: masks and boxes are prepared by the CPU, together with their image"
    )


def test_draws_that_are_shared_and_functions_within_them(photos: Path) -> None:
    data = (photos / "a" / "0.jpg").read_bytes()
    chain = [T.PerBatch(T.RandomHorizontalFlip(), samples=4), T.RandomApply([T.Lambda(upside_down)])]
    dataset = StagedDataset(lambda _: (data, 0), chain, 3)
    said = without_figures(DataLoader(dataset, 2).explain())
    assert (
        "  PerBatch  N  cpu, gpu         transforms=(('RandomHorizontalFlip', ('p', 0.5)),), samples=4\n"
        in said
    )
    assert "  RandomApply  N  cpu, Python only transforms=" in said
    assert "  to tensor  N  cpu, gpu         uint8\n" in said


def test_what_is_not_staged_says_so(photos: Path) -> None:
    torchvision()
    from torchvision.datasets import ImageFolder as Theirs

    assert DataLoader(list(range(4))).explain() == (
        "list: not staged, so its samples are prepared as they are, by calling it. Give it as penstock.ImageFolder, "
        "penstock.TarDataset or penstock.StagedDataset, or as torchvision's ImageFolder."
    )
    text = DataLoader(Theirs(str(photos), loader=lambda path: path)).explain()
    assert text.endswith("Its loader is not torchvision's default one.")


def test_explaining_draws_nothing_from_the_programs_generators(photos: Path) -> None:
    loader: DataLoader[Any] = DataLoader(ImageFolder(photos, T.RandomCrop(20)), 2)
    torch.manual_seed(5)
    loader.explain()
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))


def test_where_the_gpu_could_help_is_said_and_what_it_cannot_do(photos: Path) -> None:
    chain = [T.RandomResizedCrop(32), T.RandomErasing(value="random"), T.ToTensor()]
    text = DataLoader(ImageFolder(photos, chain), 2).explain()
    assert "(not always on the GPU: the noise of RandomErasing is drawn on the CPU)" in text
    if torch.cuda.is_available():
        assert "  the GPU could help, with device='cuda'" in text
    else:
        assert text.endswith(
            "  a GPU could help, and torch finds none here: it takes a CUDA device, torch built for CUDA, and pip install 'penstock[gpu]'"
        )


def test_recordings_are_never_said_to_be_not_staged(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with wave.open(str(tmp_path / "a" / "0.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(1600))
    text = DataLoader(AudioFolder(tmp_path), 1).explain()
    assert text.startswith("AudioFolder: 1 recordings")
    assert f"\n  {LOCATED}\n" in text
    assert text.endswith("  the GPU cannot help: recordings are prepared by the CPU")
    empty = AudioFolder(tmp_path)
    empty.samples.clear()
    assert explained(empty) == "AudioFolder: no samples, so there is nothing to explain."


def test_a_dataset_with_a_getitem_of_its_own_is_told_by_name(photos: Path) -> None:
    class Brighter(ImageFolder):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)

    text = DataLoader(Brighter(photos, [T.RandomCrop(20), T.ToTensor()]), 2).explain()
    assert text.endswith("the GPU cannot help: Brighter has a __getitem__ of its own")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": None, "gpu_prep": "off"}, "with device='cuda' and gpu_prep='auto'"),
        ({"device": "cpu"}, "with device='cuda'"),
        ({"gpu_prep": "off"}, "with gpu_prep='auto', 'concurrent' or 'idle'"),
        ({"num_workers": 0}, "with workers: give num_workers"),
        ({"shuffles": False}, "but gpu_prep='auto' leaves it out: the loader does not shuffle"),
        ({"on_error": "skip"}, "but gpu_prep='auto' leaves it out: on_error='skip'"),
        ({"deterministic": True}, "but gpu_prep='auto' leaves it out: determinism was asked for"),
        ({"shuffles": False, "gpu_prep": "concurrent"}, ""),
        ({}, ""),
    ],
)
def test_what_a_loader_lacks_for_its_gpu_to_help_is_said(settings: dict[str, Any], said: str) -> None:
    settings = dict(settings)
    if missing_for_lane():
        pytest.skip(missing_for_lane())
    workers, shuffles = settings.pop("num_workers", 2), settings.pop("shuffles", True)
    found = lacking(LoaderConfig(**{"device": "cuda", **settings}), workers, shuffles=shuffles)
    assert found.startswith(said)
    assert bool(found) == bool(said)
