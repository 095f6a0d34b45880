"""Arguments of the constructor that are refused before anything is built from them; each refusal says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from operator import index
from typing import Any

import torch

from penstock.config import GpuPrep
from penstock.errors import ConfigError


def check_adopt(adopt: object) -> None:
    if adopt not in (True, False, "fast_decode"):
        raise ConfigError(f'adopt must be True, False or "fast_decode", got {adopt!r}')


def check_num_workers(workers: object) -> None:
    """torch takes 2.0 and fails when the first epoch begins. What it refuses itself is left to it."""
    try:
        index(workers)  # type: ignore[arg-type]
    except TypeError:
        if hasattr(workers, "__float__"):
            raise ConfigError(
                f"num_workers must be a whole number or 'auto', got {workers!r}: write int(…)"
            ) from None


def check_lane(device: Any, gpu_prep: object) -> None:
    """A GPU that is asked by name to help must be the one that batches go to."""
    mode = GpuPrep.of(gpu_prep).mode
    if mode in ("idle", "concurrent") and (device is None or torch.device(device).type != "cuda"):
        raise ConfigError(
            f"gpu_prep={mode!r} needs device='cuda', got device={device!r}: give that device, or leave gpu_prep out"
        )


_said = False
"""Whether this process has been told of too many workers."""


def say_once(workers: int, check: Callable[[], None]) -> None:
    """Torch's warning of more workers than cores, by its own `check`: it would come with every loader and every epoch, in every rank."""
    global _said
    if _said or os.environ.get("LOCAL_RANK", "0") != "0":
        return
    _said = workers > len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else bool(workers)
    check()
