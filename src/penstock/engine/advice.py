"""What a loader says of itself: `diagnose()` and `explain()`. They ask; what is said is decided in `policy.diagnosis` and `pipeline.explain`."""

from __future__ import annotations

from typing import Any

import torch

from penstock.config import GpuPrep
from penstock.engine.gpu_choice import keeps_on_device, lane_stats, missing_for_lane, why_not_auto
from penstock.engine.worker_count import count_workers
from penstock.gpu.queues import too_few
from penstock.lanes.seeding import generators_kept
from penstock.policy.diagnosis import diagnose


def advice(loader: Any) -> str:
    """One sentence: what limits its run, and what would help."""
    return advice_on(loader.stats(), gpu=could_be_asked(loader))


def advice_on(stats: dict[str, Any], *, gpu: bool = False) -> str:
    """The same, from the numbers alone. `gpu`: there is one that does not help to prepare, and may be able to."""
    # While a GPU lane works, workers leave it cores, whatever their number should be.
    beside_lane = stats["gpu"] is not None and stats["gpu"]["mode"] != "off"
    cores = count_workers(lane=beside_lane)
    return diagnose(stats, cores=cores, most=cores if beside_lane else None, gpu=gpu)


def could_be_asked(loader: Any) -> bool:
    """Whether there is a GPU that does not help to prepare, and may be able to."""
    if lane_stats(loader) is not None or not torch.cuda.is_available():
        return False
    from penstock.gpu.prep import unsuited

    return not unsuited(dataset_of(loader), loader.collate_fn)


def explanation(loader: Any) -> str:
    """What is done to a sample, piece by piece."""
    from penstock.pipeline.explain import explained

    with generators_kept():
        return explained(loader.dataset, lane=other_ways(loader))


def dataset_of(loader: Any) -> Any:
    """The dataset that its samples are prepared by."""
    return (loader._adopted() if loader.adopt else None) or loader.dataset


def other_ways(loader: Any) -> str:
    """For `explain()`: what could spare workers a part of all this."""
    reusing = loader._reusing
    kept = "" if reusing is None else f"\n  {reusing.line(reusing.source, loader._epochs.kept)}"
    return lane_line(loader) + kept


def lane_line(loader: Any) -> str:
    """Whether the GPU helps, could, or what keeps it from it."""
    from penstock.gpu.prep import looked, unsuited

    dataset = dataset_of(loader)
    look = unsuited(dataset, loader.collate_fn) or looked(dataset)
    if isinstance(look, str):
        return f"the GPU cannot help: {look}"
    if not torch.cuda.is_available():
        return "a GPU could help, and torch finds none here: it takes a CUDA device, torch built for CUDA, and pip install 'penstock[gpu]'"
    lacks = lacking(loader)
    if lacks:
        return f"the GPU could help, {lacks}"
    stats = lane_stats(loader)
    if stats is not None and stats["cannot"]:
        return f"the GPU does not help: {stats['cannot']}"
    mode = GpuPrep.of(loader.gpu_prep).mode
    helps = f"the GPU helps (gpu_prep, {mode}) with what is baseline JPEG and at most {look.room:,} bytes"
    return f"{helps}; {few}" if (few := too_few()) else helps


def lacking(loader: Any) -> str:
    """What a loader would need for its GPU to help; "" where it has all."""
    mode = GpuPrep.of(loader.gpu_prep).mode
    if loader.device is None or torch.device(loader.device).type != "cuda":
        return "with device='cuda'" + (" and gpu_prep='auto'" if mode == "off" else "")
    if mode == "off":
        return "with gpu_prep='auto', 'concurrent' or 'idle'"
    if missing := missing_for_lane():
        return f"but {missing}"
    if not loader.num_workers:
        return "with workers: give num_workers"
    why = why_not_auto(loader, shuffles=loader._epochs.source.shuffles) if mode == "auto" else ""
    if why and not keeps_on_device(loader):
        return f"but gpu_prep='auto' leaves it out: {why}. 'concurrent' and 'idle' ask for it by name"
    return ""
