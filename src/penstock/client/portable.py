"""Fallback for macOS and Windows, without our engine: the same order and randomness over torch's workers.

torch's loader prepares each whole batch as if it were one sample. Batches travel as torch sends them, and a dead worker is an error.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import tee
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from penstock.client.arguments import TorchArguments
from penstock.epochs.feed import Ask
from penstock.torch_private import enter_worker
from penstock.worker.prepare import Preparer, Recipe, Skip, Stopped, Where


def why_torchs_own(dataset: Any, *, streams: bool) -> str | None:
    """Say why torch's own iterator runs instead of ours, or None."""
    if os.environ.get("PENSTOCK_DISABLE", "") not in ("", "0"):
        return "PENSTOCK_DISABLE is set"
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):
        return "DataPipes are torch's own"
    if sys.platform != "linux" and streams:
        return "only Linux has our engine"
    return None


class KeyedBatches(Dataset[tuple[Any, list[Skip]]]):
    """A dataset whose items are batches, each with the samples that `on_error` dropped or replaced."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def __getitem__(self, ask: Ask) -> tuple[Any, list[Skip]]:
        preparer = Preparer(self._recipe)
        try:
            where = Where(ask.epoch, ask.batch, ask.first, ask.stride, 0, ask.dealt)
            return preparer.whole(where, ask.keys), preparer.skips
        except Stopped as stopped:
            raise stopped.original from None


class Entrance:
    """Worker start: make `get_worker_info()` name the user's dataset, not ours."""

    def __init__(self, recipe: Recipe, init_fn: Callable[[int], None] | None) -> None:
        self._recipe, self._init_fn = recipe, init_fn

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        enter_worker(info.id, info.num_workers, info.seed, self._recipe.shown)
        if self._init_fn is not None:
            self._init_fn(worker)


def as_it_is(batch: Any) -> Any:
    return batch


@cache
def say_what_is_missing(platform: str) -> None:
    warnings.warn(
        f"penstock's engine needs Linux: on {platform} torch's workers prepare the same batches in the same order, without "
        f"surviving a killed worker, and no faster than torch's",
        stacklevel=5,
    )


def over_torchs_workers(
    given: TorchArguments, recipe: Recipe, asks: Iterator[Ask], on_skip: Callable[[dict[str, Any]], None]
) -> tuple[Callable[[Ask], tuple[Any, Any]], Iterator[Ask]]:
    """Return a function that prepares an ask, and the asks to call it with. torch's workers see those first, as far as torch prefetches."""
    say_what_is_missing(sys.platform)
    ours, theirs = tee(asks)
    batches = iter(
        TorchDataLoader(
            KeyedBatches(recipe),
            batch_size=None,
            sampler=theirs,
            num_workers=given.num_workers,
            collate_fn=as_it_is,
            timeout=given.timeout,
            worker_init_fn=Entrance(recipe, given.worker_init_fn),
            multiprocessing_context=given.multiprocessing_context,
            generator=torch.Generator(),
            prefetch_factor=given.prefetch_factor,
        )
    )

    def prepare(_: Ask) -> tuple[Any, Any]:
        batch, skips = next(batches)
        for skip in skips:
            on_skip(skip._asdict())
        return batch, None

    return prepare, ours
