"""A training script as users write them: dataset, collate and worker_init_fn in `__main__`, one file, no package.

Prints what each loader delivered under each start method, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

PREPARED: list[int] = []


class Squares(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, key: int) -> dict[str, Any]:
        if key == 6:
            raise Refused("six is refused")
        return {"x": torch.tensor([key, key * key]), "prepared": len(PREPARED)}


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Any:
        info = get_worker_info()
        return iter(range(info.id * 10, info.id * 10 + 3) if info else range(3))


class Refused(Exception):
    pass


def prepare(worker_id: int) -> None:
    PREPARED.append(worker_id)


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"x": torch.stack([s["x"] for s in samples]), "prepared": max(s["prepared"] for s in samples)}


def run(loader_class: Any, method: str) -> list[object]:
    settings: dict[str, Any] = {
        "num_workers": 2 if method == "fork" else 1,
        "multiprocessing_context": method,
    }
    events: list[object] = []
    iterator = iter(loader_class(Squares(), 2, collate_fn=collate, worker_init_fn=prepare, **settings))
    while True:
        try:
            batch = next(iterator)
            events.append([batch["x"].tolist(), batch["prepared"]])
        except StopIteration:
            break
        except Refused as exc:
            events.append(["refused", "six is refused" in str(exc)])
    if method == "fork":
        events.extend(batch.tolist() for batch in loader_class(Numbers(), 2, **settings))
    return events


if __name__ == "__main__":
    ours: Any = DataLoader
    if sys.argv[1] != "torch":
        from penstock import DataLoader as Ours

        ours = Ours
    outcome = {
        name: {method: run(loader_class, method) for method in ("fork", "spawn")}
        for name, loader_class in (("torch", DataLoader), ("ours", ours))
    }
    print(json.dumps(outcome))
