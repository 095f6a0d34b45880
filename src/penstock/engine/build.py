"""From a loader's attributes to what an engine is built from."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import torch.multiprocessing
from torch.utils.data import IterableDataset

from penstock.config import Options
from penstock.engine.agent_config import AgentConfig
from penstock.engine.epochs import Epochs
from penstock.engine.session import Blueprint
from penstock.engine.state import CoreConfig
from penstock.engine.worker_count import enough_of, lane_keeps_cores, local_world
from penstock.errors import ConfigError
from penstock.lanes.kinds import Kind
from penstock.lanes.prepare import Recipe
from penstock.lanes.worker import WorkerSpec
from penstock.measure import host
from penstock.policy.workers import arena_limit
from penstock.store.arena import board_bytes, board_rows

ONE_TASK = 1 << 30
"""Task size that makes every batch one task: for datasets that want a whole batch's keys at once."""


def kind_of(recipe: Recipe, *, streams: bool) -> Kind:
    """How batches are made, before anything is known of the samples."""
    if streams:
        return Kind.STREAM
    if recipe.stacks:
        return Kind.SLOTS
    return Kind.PARTS if recipe.auto_collation and not recipe.batched else Kind.WHOLE


def blueprint_of(
    loader: Any,
    options: Options,
    recipe: Recipe,
    *,
    base_seed: int,
    follows: bool,
    epochs: Epochs,
) -> Blueprint:
    if multiprocessing.current_process().daemon:
        raise AssertionError("daemonic processes are not allowed to have children")
    streams = isinstance(loader.dataset, IterableDataset)
    if streams and options.on_error != "raise":
        raise ConfigError("on_error needs a map-style dataset: an iterable one cannot go on behind a failure")
    ranks = local_world()
    limit = options.slab_bytes or arena_limit(memory_bytes=host.memory_limit(), local_world=ranks)
    shares = epochs.shares(loader.num_workers)
    core = CoreConfig(
        workers=loader.num_workers,
        kind=kind_of(recipe, streams=streams),
        task_size=ONE_TASK if recipe.batched else options.task_size,
        in_order=loader.in_order,
        limit_bytes=limit,
        enough=enough_of(loader, recipe),
        base=board_bytes(board_rows(loader.num_workers)),
        first_worker=shares.next,
        trims=loader.device is None,
        hang_s=options.hang_s or float(loader.timeout),
        poison_raises=options.on_error == "raise",
        repeatable=recipe.repeatable,
    )
    agent = AgentConfig(
        core=core,
        parent=os.getpid(),
        worker_memory=options.worker_memory,
        local_world=ranks,
        has_gpu_lane=lane_keeps_cores(loader.device, loader.gpu_prep),
        follows=follows and not streams,
        spans=loader._counters.trace,
        record=os.environ.get("PENSTOCK_RECORD", ""),
    )
    spec = WorkerSpec(
        recipe=recipe,
        workers=loader.num_workers,
        base_seed=base_seed,
        init_fn=loader.worker_init_fn,
        streams=streams,
        drop_last=loader.drop_last,
        places=shares.places,
        epoch=epochs.upcoming,
        keyed=epochs.keyed,
        snapshot_every=loader.snapshot_every_n_steps or 0,
    )
    context = loader.multiprocessing_context
    if context is None:
        context = torch.multiprocessing.get_context()
    return Blueprint(agent=agent, spec=spec, context=context, limit_bytes=limit)
