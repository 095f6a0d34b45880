"""Datasets whose samples show every draw that made them, and a form of batches that compares bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

SIZE = 23


def draws() -> list[float]:
    """One number of each of the three global generators."""
    return [random.random(), float(np.random.random()), float(torch.rand((), dtype=torch.float64))]


class Noisy(Dataset[Any]):
    """Sample k says that it is k and how it was augmented."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int) -> Any:
        return torch.tensor([key, *draws()], dtype=torch.float64)


class Captioned(Noisy):
    """Pictures with a text; the texts are so different in length that the room that one suggests is too small for others."""

    def __getitem__(self, key: int) -> Any:
        text = "".join(random.choices("aé☃", k=random.choice([0, 3, 70, 900, 7000])))
        return {"key": key, "text": text, "picture": torch.rand(3, 4), "noise": np.random.random(2)}


class Ragged(Noisy):
    """Samples of different length, for a collate function of the user's."""

    def __getitem__(self, key: int) -> Any:
        return key, torch.rand(random.randrange(1, 50)), np.random.random(3)


class Batched(Noisy):
    """Takes a batch's keys at once and draws for all of them."""

    def __getitem__(self, key: int) -> Any:
        raise AssertionError("__getitems__ should have been called")

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [(key, torch.tensor(draws(), dtype=torch.float64)) for key in keys]


class Stream(IterableDataset[Any]):
    """Each worker says who it is, how it was seeded, and draws."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        for step in range(6):
            yield (-1 if info is None else info.id), (0 if info is None else info.seed), step, draws()


def shaking(samples: list[Any]) -> Any:
    """A collate function that draws: shuffles the batch and adds noise to it."""
    random.shuffle(samples)
    return [sample[0] for sample in samples], [sample[1] for sample in samples], draws()


def frozen(value: Any) -> Any:
    """Tensors and arrays as their type, shape and bytes."""
    match value:
        case torch.Tensor():
            return "tensor", str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
        case np.ndarray():
            return "array", str(value.dtype), value.shape, value.tobytes()
        case dict():
            return {key: frozen(item) for key, item in value.items()}
        case list() | tuple():
            return type(value).__name__, [frozen(item) for item in value]
    return value


def epoch(batches: Any) -> list[Any]:
    return [frozen(batch) for batch in batches]


def order_of(batches: Any) -> list[int]:
    """Which samples batches of `Noisy` hold."""
    return [int(key) for batch in batches for key in batch[:, 0]]
