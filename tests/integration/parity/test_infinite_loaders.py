"""Subclasses that replace the batch sampler after construction and keep one iterator over all epochs, as timm and ultralytics do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler

from penstock import DataLoader as OurLoader

from .harness import Loader, assert_same

SIZE, EPOCHS = 11, 4


class Endlessly:
    """The same sampler over and over."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


def reopened(base: Loader) -> Loader:
    """As timm's MultiEpochsDataLoader: torch's guard is lifted while the batch sampler is replaced."""

    class Reopened(base):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._DataLoader__initialized = False
            if self.batch_sampler is None:
                self.sampler = Endlessly(self.sampler)
            else:
                self.batch_sampler = Endlessly(self.batch_sampler)
            self._DataLoader__initialized = True
            self.batches = super().__iter__()

        def __len__(self) -> int:
            return len(self.sampler.sampler if self.batch_sampler is None else self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            return (next(self.batches) for _ in range(len(self)))

    return Reopened


def bypassed(base: Loader) -> Loader:
    """As ultralytics' InfiniteDataLoader: torch's guard is gone round, and `reset` takes a fresh iterator."""

    class Bypassed(base):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Endlessly(self.batch_sampler))
            self.batches = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            return (next(self.batches) for _ in range(len(self)))

        def reset(self) -> None:
            self.batches = self._get_iterator()

    return Bypassed


def epochs(loader: Any, count: int = EPOCHS) -> list[list[Any]]:
    return [list(loader) for _ in range(count)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [reopened, bypassed])
def test_a_loader_that_repeats_its_batch_sampler_goes_on_over_all_epochs(
    kind: Callable[[Loader], Loader], workers: int, shuffle: bool
) -> None:
    assert_same(lambda base: epochs(kind(base)(list(range(SIZE)), 3, shuffle=shuffle, num_workers=workers)))


@pytest.mark.parametrize("workers", [0, 2])
def test_so_does_one_that_repeats_the_sampler_of_single_samples(workers: int) -> None:
    assert_same(
        lambda base: epochs(reopened(base)(list(range(SIZE)), None, shuffle=True, num_workers=workers))
    )


def test_persistent_workers_and_drop_last_change_nothing_of_that() -> None:
    options: dict[str, Any] = {
        "shuffle": True,
        "drop_last": True,
        "num_workers": 2,
        "persistent_workers": True,
    }
    assert_same(lambda base: epochs(reopened(base)(list(range(SIZE)), 3, **options)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fresh_iterator_by_torchs_own_method_is_one_of_ours(workers: int) -> None:
    def after_reset(base: Loader) -> list[Any]:
        loader: Any = bypassed(base)(list(range(SIZE)), 3, shuffle=True, num_workers=workers)
        seen = epochs(loader, 1)
        loader.reset()
        seen += epochs(loader, 2)
        if base is OurLoader:
            assert loader.stats()["engine"] == ("workers" if workers else "inline")
            assert loader.stats()["batches"] == len(loader) * 3
        return seen

    assert_same(after_reset)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_sampler_that_is_replaced_between_epochs_is_followed(workers: int) -> None:
    def replaced(base: Loader) -> list[Any]:
        loader: Any = base(list(range(SIZE)), 3, num_workers=workers)
        seen = [list(loader)]
        order = RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(4))
        object.__setattr__(loader, "batch_sampler", BatchSampler(order, 4, drop_last=True))
        return [*seen, list(loader), len(loader)]

    assert_same(replaced)


def test_every_rank_of_a_repeated_shard_keeps_its_part() -> None:
    """Rank 0 and rank 1 together see each sample once in an epoch; the tail is dropped as without the repetition."""
    for size, drop_last in ((20, False), (19, True)):
        options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "drop_last": drop_last}
        for rank in range(2):
            plain: Any = OurLoader(range(size), shard=(rank, 2), **options)
            repeated: Any = reopened(OurLoader)(range(size), shard=(rank, 2), **options)  # type: ignore[arg-type]
            expected = [batch.tolist() for batch in plain]
            assert [[batch.tolist() for batch in epoch] for epoch in epochs(repeated, 2)] == [
                expected,
                expected,
            ]
