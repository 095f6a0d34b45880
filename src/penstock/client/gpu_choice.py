"""Decide whether the GPU helps to prepare batches.

"concurrent" and "idle" demand it, and fail if it is impossible. "auto" leaves it out if it is impossible or unwanted; `explain()` says why.
"""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from penstock.client.arguments import on_cuda
from penstock.client.places import DeviceSide
from penstock.client.worker_count import may_have_lane
from penstock.config import LoaderConfig
from penstock.dataset.seeding import generators_kept
from penstock.errors import ConfigError, MissingExtra
from penstock.gpu.queues import too_few
from penstock.measure.host import say_once
from penstock.worker.prepare import Recipe

if TYPE_CHECKING:
    from penstock.gpu.lane import GpuLane
    from penstock.reuse.setup import Reusing

log = logging.getLogger("penstock")


def helped(
    config: LoaderConfig, recipe: Recipe, held: DeviceSide, *, shuffles: bool
) -> tuple[Recipe, GpuLane | None]:
    """Return the workers' recipe and the lane that finishes batches on the device, or the recipe unchanged and None. `held`: from earlier epochs."""
    wanted, on_device = config.gpu, config.keeps_on_device
    asked = wanted.mode in ("idle", "concurrent") or on_device
    if not on_cuda(config):
        if asked:
            raise ConfigError(f"gpu_prep={wanted.mode!r} needs device='cuda'")
        return recipe, None
    from penstock.gpu.cuda import prep_for

    if config.on_error != "raise":
        # A worker must find samples that cannot be decoded, while they can still be skipped or replaced.
        wanted = replace(wanted, share=0.0)
    if wanted.mode == "auto" and not on_device and why_not_auto(config, shuffles=shuffles):
        wanted = replace(wanted, mode="off")
    with generators_kept():
        prep = prep_for(
            recipe.dataset,
            recipe.collate_fn,
            torch.device(config.device),
            wanted=wanted,
            dtype=config.dtype,
            memory_format=config.memory_format,
            deterministic=is_deterministic(config),
            kept=held.prep,
        )
    if not isinstance(prep, str):
        if held.prep is None and wanted.mode != "off" and (few := too_few()):
            log.warning("gpu_prep: %s", few)
        held.prep = prep
        return replace(recipe, dataset=prep.dataset), prep.lane
    if asked:
        raise ConfigError(f"gpu_prep={wanted.mode!r} is not possible: {prep}")
    log.info("the GPU does not help to prepare: %s", prep)
    return recipe, None


def is_deterministic(config: LoaderConfig) -> bool:
    if config.deterministic is None:
        return torch.are_deterministic_algorithms_enabled()
    return bool(config.deterministic)


def why_not_auto(config: LoaderConfig, *, shuffles: bool) -> str:
    """Say why gpu_prep="auto" leaves all work to workers, whatever the chain; "" if it does not."""
    if not shuffles:
        return "the loader does not shuffle, and an evaluation wants the same pixels each time"
    if config.on_error != "raise":
        return f"on_error={config.on_error!r}: workers must find out what cannot be decoded"
    if is_deterministic(config) and config.gpu.share is None:
        return "determinism was asked for, and who prepares a sample would depend on the moment"
    if missing := missing_for_lane():
        say_once(f"gpu_prep: {missing}")
    return missing


@cache
def missing_for_lane() -> str:
    """Name the package that the lane lacks; "" if none."""
    from penstock.gpu.nvjpeg import library
    from penstock.kernels.run import require_triton

    try:
        require_triton()
        library()
    except MissingExtra as exc:
        return str(exc)
    return ""


def refuse_without_workers(config: LoaderConfig) -> None:
    mode = config.gpu.mode
    if mode in ("idle", "concurrent") or config.keeps_on_device:
        raise ConfigError(f"gpu_prep={mode!r} needs workers to help: give num_workers")
    if config.remote is not None:
        raise ConfigError("remote= needs local workers beside the remote ones: give num_workers")
    if config.cache is not None:
        raise ConfigError("cache= brings bytes to workers: give num_workers")


def reusing_of(config: LoaderConfig, dataset: Any) -> Reusing | None:
    """Set up `reuse=`; None without it, or if each sample is used once."""
    if config.reuse is None:
        return None
    if sys.platform != "linux":
        raise ConfigError("reuse needs Linux: what is kept is shared by processes in ways that only it has")
    dataset = staged_of(config, dataset)
    if config.reuse.times == 1:
        return None
    from penstock.reuse.setup import Reusing  # it imports much

    lane = config.gpu if may_have_lane(config) else None
    found = Reusing(config.reuse, dataset, lane, shared=config.shard is not None)
    if config.reuse.persistent and config.seed is None:
        warnings.warn(
            "Reuse(persistent=True) without seed=: runs find what others have kept only where their seeds are the same. Without one each draws "
            "its own, finds nothing, and leaves a whole store behind. Give seed=, or leave persistent out",
            stacklevel=3,
        )
    return found


def adopted_of(config: LoaderConfig, dataset: Any) -> Any:
    """Return our dataset that reads the user's torchvision dataset, or None. Only users of torchvision datasets have loaded that module."""
    if not config.adopt or "torchvision.datasets" not in sys.modules:
        return None
    from penstock.pipeline.adopt import adopted

    return adopted(dataset, fast=config.adopt == "fast_decode")


def staged_of(config: LoaderConfig, dataset: Any) -> Any:
    """Return the dataset, in a form that can be cached half done if it is an adopted torchvision dataset."""
    adopted = adopted_of(config, dataset)
    if adopted is None:
        return dataset
    from penstock.pipeline.adopted_images import AdoptedImages

    return AdoptedImages(adopted)
