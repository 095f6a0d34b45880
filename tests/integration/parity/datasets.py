"""Datasets, samplers and collate functions of the parity cases, importable so that spawned workers find them."""

from __future__ import annotations

import dataclasses
import os
import random
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024  (an untyped one is what users write)


@dataclasses.dataclass
class Record:
    image: torch.Tensor
    label: int


class Picked:
    """A batch type of the user's own."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self.stacked = torch.stack([torch.as_tensor(s) for s in samples])
        self.count = len(samples)


class Tagged(torch.Tensor):
    """A tensor subclass without state."""


class Made(Dataset[Any]):
    """Sample k is `make(k)`."""

    def __init__(self, size: int, make: Callable[[Any], Any]) -> None:
        self.size, self.make = size, make

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Any) -> Any:
        return self.make(key)


class Scaled(Dataset[torch.Tensor]):
    """Small tensors that show which dataset state prepared them: the attribute may be changed between epochs."""

    def __init__(self, size: int, scale: int = 1) -> None:
        self.size, self.scale = size, scale

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.tensor([key, key * self.scale])


class Keyed(Dataset[Any]):
    """Says which key it was asked for, and its type; has no length."""

    def __getitem__(self, key: Any) -> tuple[str, str]:
        return type(key).__name__, str(key)


class Whole(Dataset[Any]):
    """Takes a whole batch of keys at once, and says what it was given."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int) -> Any:
        raise AssertionError("__getitems__ should have been called")

    def __getitems__(self, keys: list[int]) -> list[tuple[int, int, int, str]]:
        return [(key, at, len(keys), type(keys).__name__) for at, key in enumerate(keys)]


class Fails(Dataset[int]):
    """Raises what `error` makes for the keys named."""

    def __init__(self, size: int, keys: Sequence[int], error: Callable[[int], BaseException]) -> None:
        self.size, self.keys, self.error = size, keys, error

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int) -> int:
        if key in self.keys:
            self.fail_further_down(key)
        return key

    def fail_further_down(self, key: int) -> None:
        raise self.error(key)


class Streamed(IterableDataset[Any]):
    """Counts up to `size`, all of it in every worker."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.size))

    def __repr__(self) -> str:
        return f"Streamed({self.size})"


class StreamedWithLength(Streamed):
    def __init__(self, size: int, claimed: int) -> None:
        super().__init__(size)
        self.claimed = claimed

    def __len__(self) -> int:
        return self.claimed


class Sharded(IterableDataset[int]):
    """Worker w yields `sizes[w]` numbers that begin at 100 w; without workers all of them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        shards = range(len(self.sizes)) if info is None else range(info.id, len(self.sizes), info.num_workers)
        for shard in shards:
            yield from range(100 * shard, 100 * shard + self.sizes[shard])


class Counting(IterableDataset[tuple[int, int]]):
    """Says in which pass of this copy of the dataset a sample was made."""

    def __init__(self, size: int) -> None:
        self.size, self.passes = size, 0

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self.passes += 1
        for k in range(self.size):
            yield self.passes, k


class Noise(IterableDataset[tuple[float, float, float]]):
    """Draws from all three global generators."""

    def __iter__(self) -> Iterator[tuple[float, float, float]]:
        for _ in range(4):
            yield float(torch.rand(())), random.random(), float(np.random.rand())


class Recorded(Sampler[int]):
    """Counts how often it was begun and how many keys were taken, and in which process."""

    def __init__(self, size: int) -> None:
        self.size, self.begun, self.taken = size, 0, 0
        self.pids: set[int] = set()

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        return self._keys()

    def _keys(self) -> Iterator[int]:
        for key in range(self.size):
            self.taken += 1
            self.pids.add(os.getpid())
            yield key

    def __len__(self) -> int:
        return self.size


class EagerlyRandom(Sampler[int]):
    """Draws its order when it is begun, not when the first key is taken."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.size).tolist())

    def __len__(self) -> int:
        return self.size


class OutOfOrder(Sampler[int]):
    def __init__(self, keys: Sequence[Any]) -> None:
        self.keys = keys

    def __iter__(self) -> Iterator[int]:
        return iter(self.keys)

    def __len__(self) -> int:
        return len(self.keys)


class Endless(Sampler[list[int]]):
    """A batch sampler without end and without length."""

    def __iter__(self) -> Iterator[list[int]]:
        at = 0
        while True:
            yield [at % 7, (at + 1) % 7]
            at += 2


def pairs(samples: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*samples, strict=True))


def keep(samples: list[Any]) -> list[Any]:
    return samples


class LeaveANote:
    """A `worker_init_fn` that says where it ran by a file per worker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, worker_id: int) -> None:
        with (self.folder / f"worker-{worker_id}").open("a") as note:
            note.write("started\n")


mark = 0
"""Set to 1 in the parent by the cases that ask how a worker was started."""
