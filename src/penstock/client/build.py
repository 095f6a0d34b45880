"""Build an engine's blueprint from a loader's settings."""

from __future__ import annotations

import multiprocessing
import os
from functools import partial

import torch.multiprocessing
from torch.utils.data import IterableDataset

from penstock.agent.capacity import affinity_of
from penstock.agent.config import AgentConfig
from penstock.client.arguments import TorchArguments, check_on_error
from penstock.client.cache_side import CacheSide
from penstock.client.lending_side import side_of as lending_side_of
from penstock.client.remote_side import RemoteSide
from penstock.client.session import Blueprint
from penstock.client.worker_count import enough_of, lane_keeps_cores
from penstock.client.workload import workload_of
from penstock.config import LoaderConfig
from penstock.core.state import CoreConfig
from penstock.epochs.epochs import Epochs
from penstock.measure import host
from penstock.measure.launch import local_world, ranks_sharing
from penstock.policy.workers import arena_limit
from penstock.wire.arena import board_bytes, board_rows
from penstock.wire.kinds import Kind
from penstock.worker.loop import WorkerSpec
from penstock.worker.prepare import Recipe

ONE_TASK = 1 << 30
"""Task size that makes each batch one task, for datasets that fetch a whole batch at once."""


def kind_of(recipe: Recipe, *, streams: bool) -> Kind:
    """Choose how batches are made, before any sample has been seen."""
    if streams:
        return Kind.STREAM
    if recipe.stacks:
        return Kind.SLOTS
    return Kind.PARTS if recipe.auto_collation and not recipe.batched else Kind.WHOLE


def blueprint_of(
    config: LoaderConfig,
    given: TorchArguments,
    recipe: Recipe,
    *,
    base_seed: int,
    follows: bool,
    spans: bool,
    epochs: Epochs,
    remote: RemoteSide | None = None,
    cache: CacheSide | None = None,
) -> Blueprint:
    if multiprocessing.current_process().daemon:  # guard: daemonic
        raise AssertionError("daemonic processes are not allowed to have children")
    streams = isinstance(given.dataset, IterableDataset)
    check_on_error(config, streams=streams)
    limit = config.arena_bytes or arena_limit(memory_bytes=host.memory_limit(), local_world=local_world())
    shares = epochs.shares(given.num_workers)
    core = CoreConfig(
        workers=given.num_workers,
        kind=kind_of(recipe, streams=streams),
        task_size=ONE_TASK if recipe.batched else config.task_samples,
        in_order=given.in_order,
        limit_bytes=limit,
        enough=enough_of(config, given, recipe),
        base=board_bytes(board_rows(given.num_workers)),
        first_worker=shares.next,
        trims=config.device is None,
        hang_s=float(config.hang_timeout or given.timeout),
        poison_raises=config.on_error == "raise",
        repeatable=recipe.repeatable,
        beside=() if remote is None or streams else (remote.pool(recipe),),
    )
    agent = AgentConfig(
        core=core,
        parent=os.getpid(),
        worker_memory=config.worker_bytes,
        ranks=ranks_sharing(len(affinity_of(os.getpid()))),
        has_gpu_lane=lane_keeps_cores(config),
        follows=follows and not streams,
        spans=spans,
        record=os.environ.get("PENSTOCK_RECORD", ""),
        plans=() if remote is None or streams else remote.candidates(recipe),
        remote_workers=0 if remote is None else remote.count,
        remote_share=None if remote is None else remote.share,
    )
    if remote is not None and agent.steers and not remote.record.course:
        remote.record.course = remote.record.metrics.recalled(
            lambda: workload_of(config, given, remote), agent.terms
        )
    spec = WorkerSpec(
        recipe=recipe,
        workers=given.num_workers,
        base_seed=base_seed,
        init_fn=given.worker_init_fn,
        streams=streams,
        drop_last=given.drop_last,
        places=shares.places,
        epoch=epochs.upcoming,
        keyed=epochs.keyed,
        snapshot_every=config.snapshot_every_n_steps or 0,
    )
    context = given.multiprocessing_context
    if context is None:
        context = torch.multiprocessing.get_context()
    return Blueprint(
        agent=agent,
        spec=spec,
        context=context,
        limit_bytes=limit,
        remote=None if streams else remote,
        cache=None if streams else cache,
        lends=partial(lending_side_of, epochs.source, auto=follows),
    )
