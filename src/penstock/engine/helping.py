"""Whether the GPU helps a loader to prepare its batches: asked for by name it must be possible, otherwise it is silently not done."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from penstock.errors import ConfigError
from penstock.lanes.prepare import Recipe

log = logging.getLogger("penstock")

GPU_PREP = ("off", "auto", "concurrent")


def check_gpu_prep(mode: Any) -> None:
    if mode not in GPU_PREP:
        raise ConfigError(f"gpu_prep must be one of {', '.join(map(repr, GPU_PREP))}, got {mode!r}")


def helped(loader: Any, recipe: Recipe, *, shuffles: bool) -> tuple[Recipe, Any]:
    """The recipe for workers, and the lane that finishes their batches on the device (`gpu.lane.GpuLane`); or as it was, and None."""
    mode, asked = loader.gpu_prep, loader.gpu_prep == "concurrent"
    device = None if loader.device is None else torch.device(loader.device)
    if device is None or device.type != "cuda":
        if asked:
            raise ConfigError(f"gpu_prep={mode!r} needs device='cuda'")
        return recipe, None
    from penstock.gpu.cuda import prep_for

    # An evaluation wants the same pixels each time, whoever has time to make them.
    helps = asked or (mode == "auto" and shuffles)

    deterministic = loader.deterministic
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    prep = prep_for(
        recipe.dataset,
        recipe.collate_fn,
        device,
        helps=helps,
        dtype=loader.dtype,
        memory_format=loader.memory_format,
        deterministic=deterministic,
    )
    if not isinstance(prep, str):
        return replace(recipe, dataset=prep.dataset), prep.lane
    if asked:
        raise ConfigError(f"gpu_prep={mode!r} is not possible: {prep}")
    log.info("the GPU does not help to prepare: %s", prep)
    return recipe, None
