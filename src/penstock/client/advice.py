"""`diagnose()` and `explain()` of a loader. They gather facts; `policy.diagnosis` and `pipeline.explain` decide what to say."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset

from penstock.client.arguments import TorchArguments, on_cuda
from penstock.client.gpu_choice import adopted_of, missing_for_lane, why_not_auto
from penstock.client.places import DeviceSide
from penstock.client.worker_count import count_workers
from penstock.config import LoaderConfig
from penstock.dataset.offers import known_costs
from penstock.dataset.seeding import generators_kept
from penstock.gpu.queues import too_few
from penstock.measure import host
from penstock.policy.cache_text import explained_cache
from penstock.policy.diagnosis import diagnose
from penstock.policy.offload_text import explained_offload


def advice_on(stats: dict[str, Any], *, gpu: bool = False) -> str:
    """Return one sentence: the bottleneck of a run with these stats, and what would help. `gpu`: an unused GPU could help to prepare."""
    # An active GPU lane needs cores, so fewer are left for workers.
    beside_lane = stats["gpu"] is not None and stats["gpu"]["mode"] != "off"
    cores = count_workers(lane=beside_lane)
    most = cores if beside_lane else None
    return diagnose(stats, cores=cores, most=most, gpu=gpu, link_bytes_s=host.link_bytes_s())


def could_be_asked(config: LoaderConfig, given: TorchArguments, held: DeviceSide) -> bool:
    """Return whether an unused GPU could help to prepare."""
    if held.stats() is not None or not torch.cuda.is_available():
        return False
    from penstock.gpu.prep import unsuited

    return not unsuited(adopted_of(config, given.dataset) or given.dataset, given.collate_fn)


def explanation(
    config: LoaderConfig,
    given: TorchArguments,
    held: DeviceSide,
    *,
    shuffles: bool,
    reused: str = "",
    remote: Any = None,
    cache: Any = None,
) -> str:
    """Describe each step of preparing a sample. `reused`: the line about `reuse=`, or ""; `remote`, `cache`: the sides of remote workers and of the
    cache, or None."""
    from penstock.pipeline.explain import explained

    with generators_kept():
        lane = lane_line(config, given, held, shuffles=shuffles)
        streams = isinstance(given.dataset, IterableDataset)
        told = {} if remote is None else remote.record.stats
        offload = explained_offload(told, streams=streams) if config.remote or remote else ""
        said = explained(given.dataset, lane=f"{lane}\n  {reused}" if reused else lane)
        bytes_line = "" if config.cache is None else cache_line(cache)
        dealt = deal_line(given.dataset) if config.deal == "cost" else ""
        return "\n".join(line for line in (said, offload, bytes_line, dealt) if line)


def deal_line(dataset: Any) -> str:
    """Say by which costs batches are dealt."""
    known = known_costs(dataset)
    assert known is not None, "the loader has refused others"
    return f"deal: each global batch so that its ranks' costs are even; the cost of a sample is {known.says}"


def cache_line(cache: Any) -> str:
    """Say what the cache of bytes does, as far as is known before the first epoch."""
    if cache is None:
        return "cache: not in use yet, or not used (a warning said why); it begins with the first epoch"
    return explained_cache(cache.stats())


def lane_line(config: LoaderConfig, given: TorchArguments, held: DeviceSide, *, shuffles: bool) -> str:
    """Say whether the GPU helps, could help, or why it cannot."""
    from penstock.gpu.prep import looked, unsuited

    dataset = adopted_of(config, given.dataset) or given.dataset
    look = unsuited(dataset, given.collate_fn) or looked(dataset)
    if isinstance(look, str):
        return f"the GPU cannot help: {look}"
    if not torch.cuda.is_available():
        return "a GPU could help, and torch finds none here: it takes a CUDA device, torch built for CUDA, and pip install 'penstock[gpu]'"
    lacks = lacking(config, given.num_workers, shuffles=shuffles)
    if lacks:
        return f"the GPU could help, {lacks}"
    stats = held.stats()
    if stats is not None and stats["cannot"]:
        return f"the GPU does not help: {stats['cannot']}"
    helps = f"the GPU helps (gpu_prep, {config.gpu.mode}) with what is baseline JPEG and at most {look.room:,} bytes"
    return f"{helps}; {few}" if (few := too_few()) else helps


def lacking(config: LoaderConfig, workers: int, *, shuffles: bool) -> str:
    """Say what the GPU lane still needs; "" if nothing."""
    mode = config.gpu.mode
    if not on_cuda(config):
        return "with device='cuda'" + (" and gpu_prep='auto'" if mode == "off" else "")
    if mode == "off":
        return "with gpu_prep='auto', 'concurrent' or 'idle'"
    if missing := missing_for_lane():
        return f"but {missing}"
    if not workers:
        return "with workers: give num_workers"
    why = why_not_auto(config, shuffles=shuffles) if mode == "auto" else ""
    if why and not config.keeps_on_device:
        return f"but gpu_prep='auto' leaves it out: {why}. 'concurrent' and 'idle' ask for it by name"
    return ""
