"""One rank of a training in step: `torchrun … _ranks_rank.py '{…}'` (see `ranks.py`).

A step is: take a batch, train (a sleep), meet the other ranks. Rank 0 prints one JSON line with the time of a step, and what the ranks and the node
process have used of the cores.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import torch.distributed as dist
from _workloads import burn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import penstock


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    subject: str
    costs: str
    """`dear`: the samples of rank 0 are three times as dear as others; `spread`: the same work, the same for all samples; `random`: log-normal;
    `equal`: all alike."""
    sleeps: bool
    """Whether samples sleep instead of using a core."""
    workers: int
    batch: int
    sample_ms: float
    """Mean over all samples."""
    train_ms: float
    steps: int
    warm: int
    """Steps before the measured ones."""


class Costly(Dataset[torch.Tensor]):
    """Samples whose cost follows from their index. With a world of w, rank r gets the indices r, r + w, ..."""

    def __init__(self, spec: Spec, world: int) -> None:
        self.spec, self.world = spec, world

    def __len__(self) -> int:
        return (self.spec.steps + self.spec.warm) * self.spec.batch * self.world

    def cost(self, index: int) -> float:
        """In seconds."""
        mean_s = self.spec.sample_ms / 1000
        if self.spec.costs == "dear":
            return mean_s * (3 if index % self.world == 0 else 1) * self.world / (self.world + 2)
        if self.spec.costs == "random":
            drawn = torch.randn(1, generator=torch.Generator().manual_seed(index)).item()
            return mean_s * math.exp(SPREAD * drawn - SPREAD**2 / 2)
        return mean_s

    def __getitem__(self, index: int) -> torch.Tensor:
        (time.sleep if self.spec.sleeps else burn)(self.cost(index))
        return torch.tensor(index)


SPREAD = 0.8
"""Of the logarithm of random costs: RandAugment's ops differ by more than ten times, a chain of two and a crop by less."""


def loader(spec: Spec, data: Costly, rank: int, world: int) -> Any:
    if spec.subject == "torch":
        sampler = DistributedSampler(data, world, rank, shuffle=False)
        return DataLoader(data, batch_size=spec.batch, sampler=sampler, num_workers=spec.workers)
    return penstock.DataLoader(data, batch_size=spec.batch, shard=(rank, world), num_workers=spec.workers)


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
    loaded = loader(spec, Costly(spec, world), rank, world)
    seen, began_s, cpu_s, waited_s = 0, 0.0, 0.0, 0.0
    batches = iter(loaded)
    for step in range(spec.steps + spec.warm):
        if step == spec.warm:
            began_s, waited_s = time.perf_counter(), 0.0
            cpu_s = used_s(loaded.stats() if spec.subject != "torch" else {})
        at_s = time.perf_counter()
        seen += len(next(batches))
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
