"""A GPU lane without a GPU: its code on the CPU, with stations that execute programs there, behind a loader with workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")
pytest.importorskip("triton")

from penstock import DataLoader, GpuPrep
from penstock import transforms as T
from penstock.client.device import DeviceIterator
from penstock.client.mover import Mover
from penstock.gpu.prep import Look, Prep, planned
from penstock.gpu.slots import (
    ENCODED,
    Contents,
    GpuSample,
    StationRoom,
    StationTask,
    left,
    slot_bytes,
    tasks_of,
)
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
    """What a station does, by the CPU's own executor."""

    def __init__(self, look: Look, trouble: str = "") -> None:
        self.tail, self.trouble = look.tail, trouble
        self.by_cpu = self.held_bytes = 0
        self.residents: Any = None

    def prepare(self) -> str:
        return self.trouble

    def tasks(self, contents: Contents) -> list[StationTask]:
        return tasks_of(contents, StationRoom(2, 3, 1 << 30, 1 << 30))

    def close(self) -> None:
        pass

    def make(self, task: StationTask, out: torch.Tensor, after: Any) -> None:
        if not task.kept:
            for sample in task.gpu_samples():
                if sample.form == ENCODED:
                    self._write(sample, sample.program, decode(sample.image.tobytes()), out)
                else:
                    self._write(sample, *left(sample), out)
            return
        for ordinal in self.residents.run(task, lambda: self._from_places(task, out), lambda: None):
            sample = task.contents.gpu_sample(ordinal)
            self._write(sample, *self.residents.left(sample), out)
            self.by_cpu += 1

    def _from_places(self, task: StationTask, out: torch.Tensor) -> None:
        """What lies in the store's memory, as the kernels take it."""
        arena = self.residents.store.arena
        for sample in task.gpu_samples():
            if arena is None:  # the store was closed at this very moment
                self._write(sample, *self.residents.left(sample), out)
                continue
            assert sample.place is not None
            first, (height, width) = sample.place.offset, sample.size
            pixels = arena[first : first + 3 * height * width].numpy()
            self._write(sample, sample.program, pixels.reshape(height, width, 3), out)

    def _write(self, sample: GpuSample, program: Any, image: Any, out: torch.Tensor) -> None:
        out[sample.ordinal] = self.tail.finish(execute(program, image))


def two(look: Look) -> list[OnTheCpu]:
    return [OnTheCpu(look), OnTheCpu(look)]


def prep_of(dataset: Any, share: float | None, stations: Any = two, **options: Any) -> Prep:
    found = planned(
        dataset,
        default_collate,
        stations,
        CPU,
        **{
            "wanted": GpuPrep(mode="concurrent", share=share),
            "dtype": None,
            "memory_format": None,
            **options,
        },
    )
    assert isinstance(found, Prep), found
    found.dataset._slot = slot_bytes((48, 48), 128 << 10)  # room for all of these photos
    return found


def iterator_of(prep: Prep, workers: int, epoch: int = 0) -> DeviceIterator:
    """A loader with workers, and the lane behind it."""
    loader = DataLoader(prep.dataset, batch_size=4, shuffle=True, seed=5, num_workers=workers)
    loader.set_epoch(epoch)
    mover = Mover(CPU, None, None, False, prep.lane)
    source = loader._new_engine()
    run, asks = loader._begin()
    iterator = DeviceIterator(source, mover)
    loader._bind(iterator, run)
    iterator.begin(asks, run.epoch)
    return iterator


def batches_of(prep: Prep, workers: int, epoch: int = 0) -> list[Any]:
    iterator = iterator_of(prep, workers, epoch)
    try:
        return list(iterator)
    finally:
        iterator.close()
