"""Cases of plain map-style and iterable datasets: their digests are the same everywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler, RandomSampler, WeightedRandomSampler

from penstock import DataLoader
from tests.contract import streams
from tests.integration.digests.case import Case, Keywords
from tests.integration.digests.files import Room

SIZE = 23


def draws() -> dict[str, float]:
    """Several numbers of each of the global generators: what one sample draws first and later."""
    return {
        "random": random.random(),
        "numpy": float(np.random.random()),
        "torch": float(torch.rand((), dtype=torch.float64)),
        "random again": random.randrange(10**9),
        "numpy again": int(np.random.randint(10**9)),
        "torch again": int(torch.randint(10**9, ())),
    }


class Drawing(Dataset[Any]):
    """Sample k says that it is k and what it drew."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: int) -> Any:
        return {"key": key, "draws": draws()}


class Failing(Drawing):
    def __getitem__(self, key: int) -> Any:
        if key % 7 == 3:
            raise ValueError(f"sample {key}")
        return super().__getitem__(key)


class Tensors(Drawing):
    def __getitem__(self, key: int) -> Any:
        return torch.arange(6, dtype=torch.int32).reshape(2, 3) + 10 * key


class Point(NamedTuple):
    x: int
    y: float


class Tuples(Drawing):
    """Of everything that default_collate knows."""

    def __getitem__(self, key: int) -> Any:
        return (
            torch.full((2, 2), key),
            np.full(3, key, np.float32),
            Point(key, key / 4),
            [key, f"{key}"],
            key % 3 == 0,
        )


class Dicts(Drawing):
    def __getitem__(self, key: int) -> Any:
        return {
            "half": torch.full((3,), key, dtype=torch.float16),
            "nested": {"bytes": b"%d" % key, "np": np.int16(key)},
        }


class Captions(Drawing):
    """Texts of very different length."""

    def __getitem__(self, key: int) -> Any:
        return {
            "key": key,
            "text": "aé☃"[key % 3] * (3, 0, 900, 70, 7000)[key % 5],
            "picture": torch.full((3, 4), float(key)),
        }


class Ragged(Drawing):
    """Samples of different length."""

    def __getitem__(self, key: int) -> Any:
        return key, torch.arange(1 + key * key % 50), {"draws": random.random()}


class Together(Drawing):
    """Takes a batch's keys at once."""

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [{"key": key, "draws": draws(), "of": len(keys)} for key in keys]


class Keeping(Drawing):
    """A map-style dataset with a state of its own."""

    level = 3

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.level = state["level"]


def as_list(samples: list[Any]) -> Any:
    return samples


def padded(samples: list[Any]) -> Any:
    longest = max(len(values) for _, values, _ in samples)
    rows = torch.zeros(len(samples), longest, dtype=torch.int64)
    for row, (_, values, _) in zip(rows, samples, strict=True):
        row[: len(values)] = values
    return rows, [key for key, _, _ in samples], {"draws": [drawn["draws"] for _, _, drawn in samples]}


def shaken(samples: list[Any]) -> Any:
    """A collate function that draws."""
    random.shuffle(samples)
    return [sample["key"] for sample in samples], {"draws": [draws(), samples]}


# ---- orders


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def drawn_by_torch(dataset: Any) -> Keywords:
    return {"sampler": RandomSampler(dataset, generator=generator())}


def with_replacement(dataset: Any) -> Keywords:
    return {"sampler": RandomSampler(dataset, replacement=True, num_samples=17)}


def distributed(dataset: Any) -> Keywords:
    return {"sampler": DistributedSampler(dataset, 2, 1, shuffle=True, seed=5)}


def weighted(dataset: Any) -> Keywords:
    return {"sampler": WeightedRandomSampler(torch.arange(1.0, len(dataset) + 1), 20, generator=generator())}


def batched(dataset: Any) -> Keywords:
    batches = BatchSampler(RandomSampler(dataset, generator=generator()), 5, drop_last=True)
    return {"batch_sampler": batches, "batch_size": 1}


ORDERS: dict[str, Callable[[Any], Keywords]] = {
    "sequential": lambda _: {},
    "shuffled": lambda _: {"shuffle": True},
    "shuffled, drop_last": lambda _: {"shuffle": True, "drop_last": True},
    "shuffled, batches of 3": lambda _: {"shuffle": True, "batch_size": 3},
    "shuffled, one a task": lambda _: {"shuffle": True, "task_size": 1},
    "shuffled, a large seed": lambda _: {"shuffle": True, "seed": 2**63 + 12345},
    "shuffled, torch's seed": lambda _: {"shuffle": True, "seed": None},
    "shuffled, torch's generator": lambda _: {"shuffle": True, "seed": None, "generator": generator()},
    "samples, sequential": lambda _: {"batch_size": None},
    "samples, shuffled": lambda _: {"batch_size": None, "shuffle": True},
    "shard 0 of 2": lambda _: {"shuffle": True, "shard": (0, 2)},
    "shard 1 of 2": lambda _: {"shuffle": True, "shard": (1, 2)},
    "shard 2 of 3, sequential": lambda _: {"shard": (2, 3), "batch_size": 3},
    "shard 1 of 3, drop_last": lambda _: {
        "shuffle": True,
        "shard": (1, 3),
        "drop_last": True,
        "batch_size": 3,
    },
    "RandomSampler": drawn_by_torch,
    "RandomSampler, replacement": with_replacement,
    "DistributedSampler": distributed,
    "WeightedRandomSampler": weighted,
    "BatchSampler": batched,
}


FROM_BASE_SEEDS_GENERATOR = ("shuffled, torch's generator", "RandomSampler, replacement")


def on_loader(loader: DataLoader[Any], epoch: int) -> None:
    loader.set_epoch(3 * epoch + 2)


def on_sampler(loader: DataLoader[Any], epoch: int) -> None:
    sampler: Any = loader.sampler
    sampler.set_epoch(epoch)


def plain(kind: Any, order: str = "shuffled", **more: Any) -> Callable[[Room], tuple[Any, Keywords]]:
    def make(_: Room) -> tuple[Any, Keywords]:
        dataset = kind()
        keywords = {"batch_size": 4, **ORDERS[order](dataset), **more}
        if "batch_sampler" in keywords:
            del keywords["batch_size"]
        return dataset, keywords

    return make


def maps() -> Iterator[tuple[str, Case]]:
    for order in ORDERS:
        sets = on_sampler if order == "DistributedSampler" else None
        stays, spawns = order not in FROM_BASE_SEEDS_GENERATOR, order == "shuffled"
        yield (
            f"drawing: {order}",
            Case(make=plain(Drawing, order), set_epoch=sets, stays=stays, spawns=spawns),
        )
    yield "drawing: epochs that are set", Case(make=plain(Drawing), epochs=3, set_epoch=on_loader)
    yield (
        "drawing: shard, epochs that are set",
        Case(make=plain(Drawing, "shard 1 of 2"), epochs=3, set_epoch=on_sampler),
    )
    yield "drawing: device cpu", Case(make=plain(Drawing, device="cpu"))
    yield "drawing: three epochs", Case(make=plain(Drawing, batch_size=6), epochs=3)
    yield "tensors", Case(make=plain(Tensors))
    yield "tensors: a list", Case(make=plain(Tensors, "sequential", collate_fn=as_list))
    yield "tuples", Case(make=plain(Tuples))
    yield "tuples: samples", Case(make=plain(Tuples, "samples, shuffled"))
    yield "dicts", Case(make=plain(Dicts))
    yield "captions", Case(make=plain(Captions))
    yield "ragged: padded", Case(make=plain(Ragged, collate_fn=padded))
    yield "ragged: a list", Case(make=plain(Ragged, "sequential", collate_fn=as_list))
    yield "ragged: shard", Case(make=plain(Ragged, "shard 1 of 2", collate_fn=padded))
    yield "ragged: samples", Case(make=plain(Ragged, "samples, shuffled"))
    yield "collate_fn draws", Case(make=plain(Drawing, collate_fn=shaken))
    yield "__getitems__", Case(make=plain(Together))
    yield "a state of its own", Case(make=plain(Keeping))
    for how in ("skip", "replace"):
        yield f"{how}: shuffled", Case(make=plain(Failing, on_error=how))
        yield f"{how}: shard", Case(make=plain(Failing, "shard 1 of 2", on_error=how))
    yield "skip: RandomSampler", Case(make=plain(Failing, "RandomSampler", on_error="skip"))


def stream(kind: Any, sizes: tuple[int, ...], **more: Any) -> Callable[[Room], tuple[Any, Keywords]]:
    return lambda _: (kind(*sizes), {"batch_size": 3, **more})


def iterables() -> Iterator[tuple[str, Case]]:
    """One case for each number of workers: they share an iterable dataset out."""
    uneven = (14, 3, 8)
    kinds = {
        "no place": (streams.Shares, {}, (0, 1, 2, 3)),
        "place in the dataset": (streams.InDataset, {}, (0, 2)),
        "its own iterator": (streams.Itself, {}, (1, 3)),
        "place in the iterator": (streams.InIterator, {}, (0, 2)),
        "place in both": (streams.InBoth, {}, (2,)),
        "its own generator": (streams.Shuffled, {}, (0, 3)),
        "drawing": (streams.Drawing, {}, (0, 1, 2, 3)),
        "drawing, torch's seed": (streams.Drawing, {"seed": None}, (0, 2)),
        "drawing, its own iterator": (streams.DrawingItself, {}, (0, 2)),
        "samples": (streams.Drawing, {"batch_size": None}, (2,)),
        "drop_last": (streams.InDataset, {"drop_last": True}, (2,)),
        "snapshots of every third": (streams.Itself, {"snapshot_every_n_steps": 3}, (0, 2)),
    }
    for name, (kind, more, numbers) in kinds.items():
        for workers in numbers:
            yield (
                f"iterable: {name}, {workers} workers",
                Case(make=stream(kind, uneven, **more), workers=workers),
            )
    counting = stream(streams.Counting, (7, 5), persistent_workers=True)
    yield "iterable: counts epochs, 2 workers", Case(make=counting, workers=2, epochs=3)
