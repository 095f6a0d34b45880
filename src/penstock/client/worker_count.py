"""A loader's worker count: its value, whether it follows the cores, and which engines must hear of a change."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from penstock.agent.capacity import affinity_of, workers_for
from penstock.client.arguments import TorchArguments, check_num_workers, on_cuda
from penstock.config import LoaderConfig, whole
from penstock.errors import ConfigError
from penstock.measure.launch import ranks_sharing
from penstock.wire.arena import MOST_WORKERS
from penstock.worker.prepare import Recipe

AUTO = "auto"
AHEAD_BYTES, FEWEST = 2 << 30, 6
"""Limit on prefetched batches whose size is known beforehand: this many bytes, or this many batches if that is more."""
BY_STATIONS = 3
"""Batches that GPU stations hold at once: usually two, and one still in use when the next arrives."""


def may_have_lane(config: LoaderConfig) -> bool:
    """Return whether there is a GPU lane if the chain allows one."""
    return on_cuda(config) and config.gpu.mode != "off"


def lane_keeps_cores(config: LoaderConfig) -> bool:
    """Return whether the GPU lane has its own cores from the start. With "auto" it takes them from workers while it runs."""
    return may_have_lane(config) and config.gpu.mode != "auto"


def count_workers(*, lane: bool = False) -> int:
    """Return the worker count of "auto"; without a lane, this rank's cores."""
    cores = affinity_of(os.getpid())
    return workers_for(cores, ranks_sharing(len(cores)), lane=lane)


def auto_number(config: LoaderConfig) -> int:
    """Return the worker count of num_workers="auto" for this config."""
    return count_workers(lane=lane_keeps_cores(config))


def number_of(workers: int | str, config: LoaderConfig) -> tuple[int, int]:
    """Resolve the constructor's num_workers; the second value repeats it if it was "auto", else it is 0."""
    if not isinstance(workers, str):
        check_num_workers(workers)
        return workers, 0
    if workers != AUTO:
        raise ConfigError(f"num_workers must be a number or 'auto', got {workers!r}")
    number = auto_number(config)
    return number, number


def check_workers(workers: object) -> int:
    """Check the number given to `set_workers`."""
    number = whole(workers, "the number of workers", word=" or 'auto'")
    if number < 1:
        raise ConfigError(
            f"set_workers needs at least 1 worker, got {number}: to prepare in the training process itself, build a loader with "
            f"num_workers=0"
        )
    if number > MOST_WORKERS:
        raise ConfigError(f"set_workers takes at most {MOST_WORKERS} workers, got {number}")
    return number


CACHE_AHEAD = 4
"""Batches prefetched with a cache, at least: reads for one rank's late batch then wait for another's due one."""


def window_of(config: LoaderConfig, given: TorchArguments, recipe: Recipe) -> Callable[[int], int]:
    """Return the prefetch window as a function of the worker count. Batches for a GPU lane are large, so fewer are prefetched unless
    `prefetch_batches` is given: all are pinned, at a quarter of a millisecond per megabyte, and training stands still meanwhile."""
    batches, factor = config.prefetch_batches, given.prefetch_factor
    if batches is not None:
        return lambda _: batches
    assert factor is not None
    least = CACHE_AHEAD if config.cache is not None else 0
    if factor <= 0:
        raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
    most = max(FEWEST, AHEAD_BYTES // (recipe.sample_bytes * given.samples)) if recipe.sample_bytes else None
    return lambda workers: max(least, factor * workers if most is None else min(most, factor * workers))


def enough_of(config: LoaderConfig, given: TorchArguments, recipe: Recipe) -> int:
    """Return how many batches of arena memory suffice beside a GPU lane: the window plus those at stations. More would be pinned
    mid-epoch."""
    if not recipe.sample_bytes:
        return 0
    return window_of(config, given, recipe)(MOST_WORKERS) + BY_STATIONS


def weakly(follow: Callable[[int], None]) -> Callable[[int], None]:
    """Wrap a method so that it is called while its object lives, without keeping it alive."""
    held = weakref.WeakMethod(follow)

    def tell(workers: int) -> None:
        method = held()
        if method is not None:
            method(workers)

    return tell


class WorkerCount:
    def __init__(self, auto: int) -> None:
        self.auto = auto
        """The latest count of "auto"; 0 if a number was given. Setting `num_workers` ends "auto", too."""
        self._engines: weakref.WeakSet[Any] = weakref.WeakSet()

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return type(self), (self.auto,)

    def joined_by(self, engine: Any) -> Any:
        self._engines.add(engine)
        return engine

    def engines(self, workers: int, *, streams: bool) -> list[Any]:
        """Return the engines to tell of a new worker count; ConfigError if it cannot change now."""
        if not workers:
            raise ConfigError(
                "set_workers needs a loader with workers; this one (num_workers=0) prepares in the training process: build it with "
                "num_workers of at least 1, or 'auto'"
            )
        living = [engine for engine in self._engines if not engine.closed]
        if streams and any(not engine.run.exhausted for engine in living):
            raise ConfigError(
                "the number of workers cannot change within an epoch of an iterable dataset: each worker iterates its own share of "
                "the data. Call set_workers before iter(), or when the epoch has come to its end"
            )
        return living
