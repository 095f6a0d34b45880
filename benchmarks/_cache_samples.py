"""Samples that cost nothing to prepare and say whether they came whole: a number, a checksum, and noise.

They lie in objects of one sample each, or in shards. `Samples` is a staged dataset over them; `Blocking` reads them as many a user's dataset does.
"""

from __future__ import annotations

import random
import struct
import urllib.request
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

import penstock
from penstock.dataset.offers import ReadSeam
from penstock.sources.anywhere import AnyFiles
from penstock.sources.sources import ByteRange

BUCKET, FOLDER = "bench", "data"
HEAD = struct.Struct("<II")
SUFFIX = ".bin"
NUMBER_BYTES = 3
"""A prepared sample is its number, as one pixel."""


def size_of(sample: int, mean: int) -> int:
    """Return a size between half the mean and one and a half of it."""
    return mean // 2 + random.Random(sample).randrange(mean + 1)


def total_bytes(samples: int, mean: int) -> int:
    return sum(size_of(sample, mean) for sample in range(samples))


def make(folder: Path, samples: int, mean: int) -> int:
    """Write an object for each sample below a store's folder; return their bytes."""
    where = folder / BUCKET / FOLDER
    where.mkdir(parents=True, exist_ok=True)
    noise = random.Random(1).randbytes(2 * mean + samples)
    for sample in range(samples):
        rest = noise[sample : sample + size_of(sample, mean) - HEAD.size]
        (where / f"{sample:07}{SUFFIX}").write_bytes(HEAD.pack(sample, crc32(rest)) + rest)
    return total_bytes(samples, mean)


def pixel_of(data: bytes) -> NDArray[np.uint8]:
    """Be the decoder: check a sample, and return its number as a pixel."""
    number, said = HEAD.unpack_from(data)
    if crc32(memoryview(data)[HEAD.size :]) != said:
        raise RuntimeError(f"sample {number} has wrong bytes")
    return np.frombuffer(number.to_bytes(NUMBER_BYTES, "little"), np.uint8).reshape(1, 1, NUMBER_BYTES)


def numbers_of(images: Any) -> list[int]:
    """Return the samples of a batch."""
    rows = images.reshape(len(images), NUMBER_BYTES).tolist()
    return [low | middle << 8 | high << 16 for low, middle, high in rows]


class Samples(penstock.StagedDataset):
    """At `where`: a folder, a web server's, or an object store's."""

    bytes_from = AnyFiles()
    knows_targets = True

    def __init__(self, where: str, samples: int, mean: int) -> None:
        self.where, self.mean = where, mean
        super().__init__(None, None, samples, decoder=pixel_of)

    def name_of(self, index: int) -> str:
        return f"{self.where}/{index:07}{SUFFIX}"

    def locate(self, index: int) -> ByteRange:
        return self.name_of(index), 0, size_of(index, self.mean)

    def target_of(self, index: int) -> int:
        return index

    def seam(self) -> ReadSeam:
        return ReadSeam(holder=self, ranges=self.ranges, folder=self.where, suffixes=(SUFFIX,))

    def contents(self) -> str:
        return repr((self.where, self.length, self.mean))


class Blocking(Dataset[Any]):
    """One `urlopen` per sample."""

    def __init__(self, where: str, samples: int) -> None:
        self.where, self.samples = where, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        import torch

        with urllib.request.urlopen(f"{self.where}/{index:07}{SUFFIX}", timeout=60) as answer:
            return torch.from_numpy(pixel_of(answer.read()).copy()).permute(2, 0, 1), index
