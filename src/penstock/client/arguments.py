"""Constructor arguments: torch's as one value, and checks that refuse bad ones before anything is built. Each error says the fix."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import index
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from penstock.config import LoaderConfig
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchArguments:
    """torch's parameters, with torch's meanings. `shuffle` is missing: it is part of the sampler."""

    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Callable[[Any], Any]
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool

    @classmethod
    def of(cls, loader: TorchDataLoader[Any]) -> TorchArguments:
        """Read the loader's attributes as they are now: trainers and subclasses change some after construction."""
        return cls(**{field.name: getattr(loader, field.name) for field in fields(cls)})

    @property
    def samples(self) -> int:
        """Samples in a batch, as far as torch's arguments tell."""
        return int(self.batch_size or getattr(self.batch_sampler, "batch_size", None) or 1)


def check_num_workers(workers: object) -> None:
    """Refuse 2.0, which torch accepts and then fails on in the first epoch. Leave other errors to torch."""
    try:
        index(workers)  # type: ignore[arg-type]
    except TypeError:
        if hasattr(workers, "__float__"):
            raise ConfigError(
                f"num_workers must be a whole number or 'auto', got {workers!r}: write int(…)"
            ) from None


def check_on_error(config: LoaderConfig, *, streams: bool) -> None:
    if streams and config.on_error != "raise":
        raise ConfigError("on_error needs a map-style dataset: an iterable one cannot go on behind a failure")


def on_cuda(config: LoaderConfig) -> bool:
    """Return whether batches go to a CUDA device."""
    return config.device is not None and torch.device(config.device).type == "cuda"


def check_lane(config: LoaderConfig) -> None:
    """Require that a GPU lane asked for by name runs on the device that receives the batches."""
    mode = config.gpu.mode
    if mode in ("idle", "concurrent") and not on_cuda(config):
        raise ConfigError(
            f"gpu_prep={mode!r} needs device='cuda', got device={config.device!r}: give that device, or leave gpu_prep out"
        )


_said = False
"""Whether this process has already warned about too many workers."""


def say_once(workers: int, check: Callable[[], None]) -> None:
    """Run torch's `check` for more workers than cores once, on local rank 0; torch would warn for every loader, epoch and rank."""
    global _said
    if _said or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    _said = workers > len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else bool(workers)
    check()
