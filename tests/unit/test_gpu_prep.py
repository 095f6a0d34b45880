"""Two lanes on one batch, without a GPU: the same samples whoever makes them, and the share that is asked for.

The lane's code is that of a GPU, on the CPU; its maker executes programs on the CPU too (the kernels have tests of their own).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")

from penstock import DataLoader, ImageFolder
from penstock import transforms as T
from penstock.engine.device import DeviceIterator, Mover
from penstock.gpu.parcels import Parcel, SharedNumber, unpacked
from penstock.gpu.prep import Look, Prep, planned
from penstock.lanes.seeding import seed_all
from penstock.pipeline.decode import decode
from penstock.transforms.cpu import execute
from tests.unit.test_jpeg_parts import jpeg_of, photo

CPU = torch.device("cpu")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(12):
        path = tmp_path / "photos" / f"{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg_of(photo(120 + 7 * number, 150, number), quality=70))
    return tmp_path / "photos"


CHAIN = T.Compose(
    [
        T.RandomResizedCrop(48),
        T.RandomHorizontalFlip(),
        T.RandAugment(),
        T.ToDtype(torch.float32, scale=True),
        T.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
    ]
)


class OnTheCpu:
    """What the GPU does, by the CPU's own executor."""

    def __init__(self, look: Look) -> None:
        self.tail, self.made = look.tail, 0

    def __call__(self, parcels: Sequence[Parcel], out: torch.Tensor) -> None:
        for parcel in parcels:
            pixels = execute(parcel.program, decode(parcel.data.numpy().tobytes()))
            out[parcel.ordinal] = self.tail.finish(pixels)
            self.made += 1


def prep_of(dataset: Any, share: float | None, **options: Any) -> Prep:
    found = planned(
        dataset,
        default_collate,
        OnTheCpu,
        CPU,
        fixed_share=share,
        **{"dtype": None, "memory_format": None, **options},
    )
    assert isinstance(found, Prep), found
    return found


def batches_of(prep: Prep, workers: int) -> list[Any]:
    """Through a loader with workers, and the lane behind it."""
    loader = DataLoader(prep.dataset, batch_size=4, shuffle=True, seed=5, num_workers=workers)
    mover = Mover(CPU, None, None, False, prep.lane)
    source = loader._new_engine()
    run, asks = loader._begin()
    iterator = DeviceIterator(source, mover)
    loader._bind(iterator, run)
    iterator.begin(asks, run.epoch)
    try:
        return list(iterator)
    finally:
        iterator.close()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_samples_are_the_same_whoever_makes_them(share: float, photos: Path) -> None:
    expected = list(DataLoader(ImageFolder(photos, CHAIN), batch_size=4, shuffle=True, seed=5))
    prep = prep_of(ImageFolder(photos, CHAIN), share)
    found = batches_of(prep, 2)
    for (images, targets), (theirs, their_targets) in zip(found, expected, strict=True):
        assert torch.equal(targets, their_targets)
        assert torch.equal(images, theirs)
    assert prep.lane.samples == 12
    assert prep.lane.packed == {0.0: 0, 1.0: 12}.get(share, prep.lane.packed)
    assert 0.0 < share < 1.0 or prep.lane.packed in (0, 12)


def test_the_batch_has_the_dtype_and_the_layout_that_were_asked_for(photos: Path) -> None:
    prep = prep_of(ImageFolder(photos, CHAIN), 0.5, dtype=torch.bfloat16, memory_format=torch.channels_last)
    images = batches_of(prep, 1)[0][0]
    assert images.dtype is torch.bfloat16
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_a_parcel_that_is_too_large_is_left_to_the_worker(photos: Path) -> None:
    prep = prep_of(ImageFolder(photos, CHAIN), 1.0)
    prep.dataset._room = 100
    _, _, record = prep.dataset[0]
    assert unpacked(record[None]) == []


UNSUITED = {
    "a collate function": (lambda root: ImageFolder(root, CHAIN), list, "collate function of yours"),
    "several sizes": (ImageFolder, default_collate, "several sizes"),
    "several crops": (
        lambda root: ImageFolder(root, T.MultiCrop([(T.RandomResizedCrop(8), 2)])),
        default_collate,
        "several images of one",
    ),
    "something else": (lambda _: [1, 2, 3], default_collate, "not staged"),
}


@pytest.mark.parametrize("what", UNSUITED)
def test_what_cannot_be_shared_is_said(what: str, photos: Path) -> None:
    make, collate, reason = UNSUITED[what]
    found = planned(make(photos), collate, OnTheCpu, CPU, dtype=None, memory_format=None)
    assert isinstance(found, str)
    assert reason in found


class Brighter(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image + 1, target


def test_a_subclass_with_another_getitem_is_not_shared(photos: Path) -> None:
    found = planned(Brighter(photos, CHAIN), default_collate, OnTheCpu, CPU, dtype=None, memory_format=None)
    assert "a __getitem__ of its own" in str(found)


def test_a_shared_number_is_seen_by_who_unpickles_it() -> None:
    number = SharedNumber(0.25)
    other = pickle.loads(pickle.dumps(number))
    number.set(0.75)
    assert other.get() == 0.75
    other.close()
    number.close()


def test_the_kernels_make_the_workers_samples(photos: Path) -> None:
    """All of the lane but nvJPEG: here the CPU decodes, and Triton's interpreter runs the kernels."""
    pytest.importorskip("triton")
    from penstock.gpu.cuda import CudaMaker

    class Interpreted(CudaMaker):
        def _decoded(self, parcels: Sequence[Parcel]) -> list[torch.Tensor]:
            images = [decode(parcel.data.numpy().tobytes()) for parcel in parcels]
            return [torch.from_numpy(image.transpose(2, 0, 1).copy()) for image in images]

    chain = T.Compose([T.RandomResizedCrop(16), T.RandAugment(), *CHAIN.transforms[3:]])
    dataset = ImageFolder(photos, chain)
    made = planned(
        dataset,
        default_collate,
        lambda look: Interpreted(look.tail, CPU),
        CPU,
        dtype=None,
        memory_format=None,
        fixed_share=1.0,
    )
    assert isinstance(made, Prep)
    samples = []
    for index in range(4):
        seed_all(index)
        samples.append(made.dataset[index])
    images, targets = made.lane.finish(default_collate(samples))
    assert made.lane.packed == 4
    for index in range(4):
        seed_all(index)
        expected, target = dataset[index]
        assert torch.equal(images[index], expected)
        assert targets[index] == target


def test_what_the_kernels_cannot_take_is_made_by_the_cpu(photos: Path) -> None:
    pytest.importorskip("triton")
    from penstock.gpu.cuda import CudaMaker

    class Broken(CudaMaker):
        def _decoded(self, parcels: Sequence[Parcel]) -> list[torch.Tensor]:
            raise RuntimeError("nvJPEG does not know this file")

    maker: list[Broken] = []

    def make(look: Look) -> Broken:
        maker.append(Broken(look.tail, CPU))
        return maker[0]

    dataset = ImageFolder(photos, CHAIN)
    made = planned(dataset, default_collate, make, CPU, dtype=None, memory_format=None, fixed_share=1.0)
    assert isinstance(made, Prep)
    seed_all(7)
    images, _ = made.lane.finish(default_collate([made.dataset[3]]))
    seed_all(7)
    assert torch.equal(images[0], dataset[3][0])
    assert maker[0].by_cpu == 1
