"""Datasets whose samples cost a known amount, so that what is measured is the loader.

They are plain map-style datasets: nothing in them knows which loader reads them.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch.utils.data import Dataset

IMAGE_SHAPE = (3, 224, 224)
DTYPES = {"uint8": torch.uint8, "float32": torch.float32}


def burn(cpu_s: float) -> None:
    """Use `cpu_s` of CPU in this thread.

    It spins on the thread's CPU clock: a loop of a calibrated length would cost more while another core is busy
    (shared caches, clock frequency), and a sleep would cost nothing, so neither is a fixed amount of work.
    """
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


class ZeroCost(Dataset[tuple[torch.Tensor, int]]):
    """One tensor made beforehand, and the index as its label: all that is left is the loader's own work."""

    def __init__(self, length: int, dtype: str) -> None:
        self.length = length
        count = int(np.prod(IMAGE_SHAPE))
        self.image = (torch.arange(count) % 251).to(DTYPES[dtype]).reshape(IMAGE_SHAPE)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.image, index


class Burning(ZeroCost):
    """As `ZeroCost`, after a fixed amount of CPU."""

    def __init__(self, length: int, cpu_s: float) -> None:
        super().__init__(length, "uint8")
        self.cpu_s = cpu_s

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        burn(self.cpu_s)
        return self.image, index


class Tiny(Dataset[tuple[torch.Tensor, int]]):
    """Sixteen numbers each: nothing to prepare, nothing to send."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((16,), float(index)), index


class Ragged(Dataset[tuple[torch.Tensor, int]]):
    """Images of 200 to 300 pixels a side, made beforehand."""

    def __init__(self, length: int, *, kinds: int = 64) -> None:
        self.length = length
        sides = np.random.default_rng(0).integers(200, 301, size=(kinds, 2))
        self.images = [torch.full((3, *side), i, dtype=torch.uint8) for i, side in enumerate(sides.tolist())]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index % len(self.images)], index


class ArraysInMemory(Dataset[tuple[torch.Tensor, int]]):
    """A list of NumPy arrays of 100 kB: large payloads behind few Python objects."""

    def __init__(self, total_bytes: int, *, item_bytes: int = 100_000) -> None:
        self.arrays = [np.full(item_bytes, i % 256, dtype=np.uint8) for i in range(total_bytes // item_bytes)]

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.arrays[index]), index


class ObjectsInMemory(Dataset[tuple[float, int]]):
    """Lists of Python numbers, as annotations often are: to read one is to write its reference count.

    A forked worker so gets a private copy of every page it reads; that is the process's memory growing by use.
    """

    PER_ITEM = 1_000
    BYTES_PER_OBJECT = 32  # a float and its place in the list

    def __init__(self, total_bytes: int) -> None:
        count = total_bytes // (self.PER_ITEM * self.BYTES_PER_OBJECT)
        self.items = [[float(i * self.PER_ITEM + j) for j in range(self.PER_ITEM)] for i in range(count)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[float, int]:
        total = 0.0
        for number in self.items[index]:
            total += number
        return total, index
