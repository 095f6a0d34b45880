"""What the scripts train on: samples that show which index they are and how they were augmented."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch.utils.data import Dataset

SAMPLES = 23
BATCH = 3
KEYWORDS = {"on_error": "skip", "max_skipped": 7, "task_size": 2, "prefetch_batches": 3}


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index, "noise": random.random(), "x": torch.full((4,), float(index))}


def shown(batch: Any) -> list[Any]:
    return [batch["index"].tolist(), batch["noise"].tolist()]


def facts_of(loader: Any) -> dict[str, Any]:
    """Of a penstock loader: who delivered its batches, and the keywords it has."""
    stats = loader.stats()
    return {
        "engine": stats["engine"],
        "batches": stats["batches"],
        "worker_busy_s": sum(stats["worker_busy_s"]),
        "seed": loader.seed,
        "keywords": {name: getattr(loader, name) for name in KEYWORDS},
        "num_workers": loader.num_workers,
    }
