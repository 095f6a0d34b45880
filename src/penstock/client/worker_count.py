"""A loader's workers as the user sees them: how many, whether their number follows that of the cores, and who must hear of a change."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from penstock.agent.capacity import affinity_of, workers_for
from penstock.client.arguments import TorchArguments, check_num_workers, on_cuda
from penstock.config import LoaderConfig, whole
from penstock.errors import ConfigError
from penstock.measure.host import local_world
from penstock.wire.arena import MOST_WORKERS
from penstock.worker.prepare import Recipe

AUTO = "auto"
AHEAD_BYTES, FEWEST = 2 << 30, 6
"""Of batches ahead whose size is known beforehand: so many bytes, or so many batches where those are more."""
BY_STATIONS = 3
"""Batches that stations have at once: two as a rule, and one that is looked at when the next comes."""


def may_have_lane(config: LoaderConfig) -> bool:
    """Whether there is a GPU lane, if the chain allows for one."""
    return on_cuda(config) and config.gpu.mode != "off"


def lane_keeps_cores(config: LoaderConfig) -> bool:
    """Whether the GPU lane has cores of its own from the start. With "auto" it takes them from workers, while it works."""
    return may_have_lane(config) and config.gpu.mode != "auto"


def count_workers(*, lane: bool = False) -> int:
    """What "auto" comes to; without a lane, this rank's cores."""
    return workers_for(affinity_of(os.getpid()), local_world(), lane=lane)


def auto_number(config: LoaderConfig) -> int:
    """What num_workers="auto" comes to."""
    return count_workers(lane=lane_keeps_cores(config))


def number_of(workers: int | str, config: LoaderConfig) -> tuple[int, int]:
    """What the constructor's num_workers comes to; and the same again if it was "auto", else 0."""
    if not isinstance(workers, str):
        check_num_workers(workers)
        return workers, 0
    if workers != AUTO:
        raise ConfigError(f"num_workers must be a number or 'auto', got {workers!r}")
    number = auto_number(config)
    return number, number


def check_workers(workers: object) -> int:
    """The number that `set_workers` was given."""
    number = whole(workers, "the number of workers", word=" or 'auto'")
    if number < 1:
        raise ConfigError(
            f"set_workers needs at least 1 worker, got {number}: to prepare in the training process itself, build a loader with "
            f"num_workers=0"
        )
    if number > MOST_WORKERS:
        raise ConfigError(f"set_workers takes at most {MOST_WORKERS} workers, got {number}")
    return number


def window_of(config: LoaderConfig, given: TorchArguments, recipe: Recipe) -> Callable[[int], int]:
    """How many batches are asked for ahead, by the number of workers. Those that a GPU helps with are large, and fewer unless
    `prefetch_batches` says otherwise: all are pinned, a quarter of a millisecond for each megabyte, and training stands still meanwhile."""
    batches, factor = config.prefetch_batches, given.prefetch_factor
    if batches is not None:
        return lambda _: batches
    assert factor is not None
    if factor <= 0:
        raise AssertionError("prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter")
    most = max(FEWEST, AHEAD_BYTES // (recipe.sample_bytes * given.samples)) if recipe.sample_bytes else None
    return lambda workers: factor * workers if most is None else min(most, factor * workers)


def enough_of(config: LoaderConfig, given: TorchArguments, recipe: Recipe) -> int:
    """Batches whose memory is enough beside a GPU lane: those that are asked for, and some that stations have. More would be pinned
    in the midst of an epoch."""
    if not recipe.sample_bytes:
        return 0
    return window_of(config, given, recipe)(MOST_WORKERS) + BY_STATIONS


def weakly(follow: Callable[[int], None]) -> Callable[[int], None]:
    """Calls a method with another number of workers, as long as its object is there; does not keep it alive."""
    held = weakref.WeakMethod(follow)

    def tell(workers: int) -> None:
        method = held()
        if method is not None:
            method(workers)

    return tell


class WorkerCount:
    def __init__(self, auto: int) -> None:
        self.auto = auto
        """What "auto" came to last; 0 where a number was given. Someone who sets `num_workers` ends it, too."""
        self._engines: weakref.WeakSet[Any] = weakref.WeakSet()

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return type(self), (self.auto,)

    def joined_by(self, engine: Any) -> Any:
        self._engines.add(engine)
        return engine

    def engines(self, workers: int, *, streams: bool) -> list[Any]:
        """Those that are to hear of another number of workers; ConfigError where it cannot change now."""
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
