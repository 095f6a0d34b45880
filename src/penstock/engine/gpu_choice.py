"""Whether the GPU helps a loader to prepare its batches.

Asked for by name ("concurrent", "idle") it must be possible. With "auto" it is left out where it is not possible, or not wanted: `explain()`
says why.
"""

from __future__ import annotations

import logging
import sys
import warnings
from dataclasses import replace
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch

from penstock.config import GpuPrep
from penstock.engine.worker_count import may_have_lane
from penstock.errors import ConfigError, MissingExtra
from penstock.gpu.queues import too_few
from penstock.lanes.prepare import Recipe
from penstock.lanes.seeding import generators_kept
from penstock.measure.host import say_once

log = logging.getLogger("penstock")

_kept: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""What each loader's last iterator had: workers come anew with every epoch, the lane need not."""


def helped(loader: Any, recipe: Recipe, *, shuffles: bool) -> tuple[Recipe, Any]:
    """The recipe for workers, and the lane that finishes their batches on the device (`gpu.lane.GpuLane`); or as it was, and None."""
    wanted, on_device = GpuPrep.of(loader.gpu_prep), keeps_on_device(loader)
    asked = wanted.mode in ("idle", "concurrent") or on_device
    device = None if loader.device is None else torch.device(loader.device)
    if device is None or device.type != "cuda":
        if asked:
            raise ConfigError(f"gpu_prep={wanted.mode!r} needs device='cuda'")
        return recipe, None
    from penstock.gpu.cuda import prep_for

    deterministic = is_deterministic(loader)
    if loader.on_error != "raise":
        # What cannot be decoded must be found out by a worker, while it can still be left out or replaced.
        wanted = replace(wanted, share=0.0)
    if wanted.mode == "auto" and not on_device and why_not_auto(loader, shuffles=shuffles):
        wanted = replace(wanted, mode="off")
    with generators_kept():
        prep = prep_for(
            recipe.dataset,
            recipe.collate_fn,
            device,
            wanted=wanted,
            dtype=loader.dtype,
            memory_format=loader.memory_format,
            deterministic=deterministic,
            kept=_kept.get(loader),
        )
    if not isinstance(prep, str):
        if _kept.get(loader) is None and wanted.mode != "off" and (few := too_few()):
            log.warning("gpu_prep: %s", few)
        _kept[loader] = prep
        return replace(recipe, dataset=prep.dataset), prep.lane
    if asked:
        raise ConfigError(f"gpu_prep={wanted.mode!r} is not possible: {prep}")
    log.info("the GPU does not help to prepare: %s", prep)
    return recipe, None


def is_deterministic(loader: Any) -> bool:
    if loader.deterministic is None:
        return torch.are_deterministic_algorithms_enabled()
    return bool(loader.deterministic)


def why_not_auto(loader: Any, *, shuffles: bool) -> str:
    """Why gpu_prep="auto" leaves everything to workers, whatever the chain; empty where it does not."""
    if not shuffles:
        return "the loader does not shuffle, and an evaluation wants the same pixels each time"
    if loader.on_error != "raise":
        return f"on_error={loader.on_error!r}: workers must find out what cannot be decoded"
    if is_deterministic(loader) and GpuPrep.of(loader.gpu_prep).share is None:
        return "determinism was asked for, and who prepares a sample would depend on the moment"
    if missing := missing_for_lane():
        say_once(f"gpu_prep: {missing}")
    return missing


@cache
def missing_for_lane() -> str:
    """The package that the lane lacks here."""
    from penstock.gpu.nvjpeg import library
    from penstock.kernels.run import require_triton

    try:
        require_triton()
        library()
    except MissingExtra as exc:
        return str(exc)
    return ""


def refuse_without_workers(loader: Any) -> None:
    wanted = GpuPrep.of(loader.gpu_prep)
    if wanted.mode in ("idle", "concurrent") or keeps_on_device(loader):
        raise ConfigError(f"gpu_prep={wanted.mode!r} needs workers to help: give num_workers")


def lane_stats(loader: Any) -> dict[str, Any] | None:
    """Numbers of the lane that a loader has, or had last."""
    kept = _kept.get(loader)
    return None if kept is None else kept.lane.stats()


def reusing_of(loader: Any) -> Any:
    """What a loader with `reuse=` has (`engine.reusing.Reusing`); None without."""
    if loader.reuse is None:
        return None
    if sys.platform != "linux":
        raise ConfigError("reuse needs Linux: what is kept is shared by processes in ways that only it has")
    from penstock.engine.reusing import reusing  # it imports much

    lane = GpuPrep.of(loader.gpu_prep) if may_have_lane(loader.device, loader.gpu_prep) else None
    found = reusing(loader.reuse, staged_of(loader), lane, shared=loader.shard is not None)
    if found is not None and loader.reuse.persistent and loader.seed is None:
        warnings.warn(
            "Reuse(persistent=True) without seed=: runs find what others have kept only where their seeds are the same. Without one each draws "
            "its own, finds nothing, and leaves a whole store behind. Give seed=, or leave persistent out",
            stacklevel=3,
        )
    return found


def staged_of(loader: Any) -> Any:
    """A loader's dataset, in the form that can be kept half done where it is torchvision's and adopted."""
    adopted = loader._adopted() if loader.adopt else None
    if adopted is None:
        return loader.dataset
    from penstock.pipeline.adopted_images import AdoptedImages

    return AdoptedImages(adopted)


def keeps_on_device(loader: Any) -> bool:
    """Whether samples are kept on the device, for its lane to finish."""
    return loader._reusing is not None and loader._reusing.wanted.store == "device"
