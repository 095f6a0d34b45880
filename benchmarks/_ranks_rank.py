"""One rank of a training in step: `torchrun … _ranks_rank.py '{…}'` (see `ranks.py`).

A step is: take a batch, train (a sleep), meet the other ranks. Rank 0 prints one JSON line with the time of a step, and what the ranks and the node
process have used of the cores.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from typing import Any

import psutil
import torch
import torch.distributed as dist
from _ranks_samples import Spec, dataset_of
from torch.utils.data import DataLoader, DistributedSampler

import penstock


def loader(spec: Spec, rank: int, world: int) -> Any:
    data = dataset_of(spec, world)
    if spec.subject == "torch":
        sampler = DistributedSampler(data, world, rank, shuffle=False)
        factor = {"prefetch_factor": max(1, round(spec.ahead / spec.workers))} if spec.ahead else {}
        return DataLoader(data, batch_size=spec.batch, sampler=sampler, num_workers=spec.workers, **factor)
    on_gpu = {"device": "cuda", "gpu_prep": spec.lane} if spec.lane != "off" else {}
    ahead = {"prefetch_batches": spec.ahead} if spec.ahead else {}
    return penstock.DataLoader(
        data, batch_size=spec.batch, shard=(rank, world), num_workers=spec.workers, **on_gpu, **ahead
    )


def size_of(batch: Any) -> int:
    """Return the samples of a batch, once they are there."""
    images = batch if isinstance(batch, torch.Tensor) else batch[0]
    if images.is_cuda:
        torch.cuda.synchronize()
    return len(images)


def used_s(stats: dict[str, Any]) -> float:
    """CPU seconds of this rank's processes, and on rank 0 of the node process and its services."""
    mine = resource.getrusage(resource.RUSAGE_SELF)
    total = mine.ru_utime + mine.ru_stime
    trees = [psutil.Process()]
    manager = (stats.get("node") or {}).get("manager_pid")
    if manager and os.environ["RANK"] == "0":
        node = psutil.Process(manager).parent()
        trees += [node] if node is not None else []
        total += sum(node.cpu_times()[:2]) if node is not None else 0.0
    for tree in trees:
        total += sum(sum(child.cpu_times()[:2]) for child in tree.children(recursive=True))
    return total


def main() -> None:
    spec = Spec(**json.loads(sys.argv[1]))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    loaded = loader(spec, rank, world)
    seen, began_s, cpu_s, waited_s = 0, 0.0, 0.0, 0.0
    batches = iter(loaded)
    for step in range(spec.steps + spec.warm):
        if step == spec.warm:
            began_s, waited_s = time.perf_counter(), 0.0
            cpu_s = used_s(loaded.stats() if spec.subject != "torch" else {})
        at_s = time.perf_counter()
        seen += size_of(next(batches))
        waited_s += time.perf_counter() - at_s
        time.sleep(spec.train_ms / 1000)
        dist.barrier()
    passed_s = time.perf_counter() - began_s
    stats = loaded.stats() if spec.subject != "torch" else {}
    figures = torch.tensor([float(seen), used_s(stats) - cpu_s], dtype=torch.float64)
    dist.all_reduce(figures)
    if rank == 0:
        node = stats.get("node") or {}
        row = {
            "step_ms": 1000 * passed_s / spec.steps,
            "waited_ms": 1000 * waited_s / spec.steps,
            "samples": int(figures[0]),
            "cpu_ms": 1000 * figures[1].item() / spec.steps,
            "moves_per_s": node.get("moves", 0) / max(1e-9, node.get("for_s", 0.0) or 1e9),
        }
        print(json.dumps(row), flush=True)
    del batches
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
