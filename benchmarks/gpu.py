"""Training fed from photos on one GPU: scripts/bench gpu [--data DIR|tar] [--quick] ...

For each model and workload, in turns and several times: the limit (training on one batch that stays on the device), torch's
DataLoader with torchvision/PIL, ours with the GPU lane off, ours with it on. Images/s, share of the limit, what the lane took,
how long the loop waited, CPU seconds per 1,000 images. JSON goes to --out.

W1: crop, flip, RandAugment(2, 9), normalise. W2: W1 without RandAugment. W3: RandAugment on the whole photo, then crop, flip.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _prepare_data import photos
from _prepare_subjects import MEAN, STD, Setting, import_torchvision

MODELS = {"resnet18": 512, "resnet50": 256, "vit_b_16": 256}
REPEATED = 100_000
"""Samples of an epoch: the photos again and again, by index."""


def chain_of(T: Any, setting: Setting, tail: list[Any]) -> Any:  # noqa: N803
    crop = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    return T.Compose(setting.arranged(crop, [T.RandAugment(2, 9)], tail))


def our_loader(setting: Setting, gpu_prep: str, workers: int, **options: Any) -> Any:
    import penstock
    from penstock import transforms as T  # noqa: N812

    tail = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    dataset = penstock.ImageFolder(setting.root, chain_of(T, setting, tail), fast_decode=True)
    dataset.samples = dataset.samples * (REPEATED // len(dataset.samples))
    dataset.length = len(dataset.samples)
    return penstock.DataLoader(
        dataset,
        batch_size=setting.batch_size,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        device="cuda",
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
        gpu_prep=gpu_prep,
        seed=0,
        **options,
    )


def torchs_loader(setting: Setting, workers: int) -> Any:
    torchvision = import_torchvision()
    T = torchvision.transforms  # noqa: N806
    dataset = torchvision.datasets.ImageFolder(
        setting.root, chain_of(T, setting, [T.ToTensor(), T.Normalize(MEAN, STD)])
    )
    dataset.samples = dataset.samples * (REPEATED // len(dataset.samples))
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=setting.batch_size,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        pin_memory=True,
    )


class Training:
    """A model that trains on whatever comes, in bf16 and channels-last."""

    def __init__(self, name: str) -> None:
        torchvision = import_torchvision()
        torch.backends.cudnn.benchmark = True
        self.model = getattr(torchvision.models, name)().cuda().to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.loss = torch.nn.CrossEntropyLoss()

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        images = images.to("cuda", torch.bfloat16, non_blocking=True, memory_format=torch.channels_last)
        targets = targets.to("cuda", non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.loss(self.model(images), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


def cpu_s() -> float:
    """Of this process and those that it has waited for; live workers are added by their files."""
    own = sum(os.times()[:4])
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == os.getpgrp():
                own += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own


def measured(
    training: Training, batches: Iterator[Any], *, warmup_s: float, seconds: float
) -> dict[str, float]:
    """Train for a while and say how it went."""
    torch.cuda.synchronize()
    end = time.perf_counter() + warmup_s
    while time.perf_counter() < end:
        training.step(*next(batches))
    torch.cuda.synchronize()
    start, cpu, waits, images = time.perf_counter(), cpu_s(), [], 0
    while time.perf_counter() < start + seconds:
        before = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - before)
        training.step(*batch)
        images += len(batch[0])
    torch.cuda.synchronize()
    took = time.perf_counter() - start
    waits.sort()
    return {
        "images_per_s": images / took,
        "wait_p50_ms": 1e3 * waits[len(waits) // 2],
        "wait_p99_ms": 1e3 * waits[int(len(waits) * 0.99)],
        "cpu_s_per_1000": 1e3 * (cpu_s() - cpu) / images,
    }


def resident(batch_size: int) -> Iterator[Any]:
    images = torch.randn(batch_size, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    batch = images.to(memory_format=torch.channels_last), torch.randint(1000, (batch_size,), device="cuda")
    while True:
        yield batch


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="photos: a folder or a tar file; by default they are generated")
    parser.add_argument("--models", default="resnet18", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--workloads", default="W1,W3")
    parser.add_argument("--subjects", default="limit,torch,off,on")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    root = photos(args.data, None if args.data else 1000, lambda said: print(said, file=sys.stderr))
    rows: list[dict[str, Any]] = []
    for name in args.models.split(","):
        training, size = Training(name), MODELS[name]
        for _ in range(args.repeats):
            for workload in args.workloads.split(","):
                setting = Setting(workload=workload, root=str(root), batch_size=size, workers=args.workers)
                for subject in args.subjects.split(","):
                    rows.append(one(training, setting, subject, name, args))
                    print(json.dumps(rows[-1]), flush=True)
    summarise(rows)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))
    return 0


def one(training: Training, setting: Setting, subject: str, model: str, args: Any) -> dict[str, Any]:
    loader = None
    if subject == "limit":
        batches = resident(setting.batch_size)
    elif subject == "torch":
        loader = torchs_loader(setting, args.workers)
    else:
        loader = our_loader(setting, "off" if subject == "off" else "concurrent", args.workers)
    if loader is not None:
        batches = iter(loader)
    found: dict[str, Any] = {"model": model, "workload": setting.workload, "subject": subject}
    found |= measured(training, batches, warmup_s=args.warmup, seconds=args.seconds)
    lane = getattr(getattr(batches, "_mover", None), "lane", None)
    if lane is not None:
        found["lane_share"] = lane.packed / max(1, lane.samples)
    if hasattr(batches, "close"):
        batches.close()
    del batches, loader
    return found


def summarise(rows: list[dict[str, Any]]) -> None:
    cells: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        cells.setdefault((row["model"], row["workload"], row["subject"]), []).append(row["images_per_s"])
    for (model, workload, subject), values in cells.items():
        limit = statistics.median(cells.get((model, workload, "limit"), [float("nan")]))
        median = statistics.median(values)
        spread = f"[{min(values):,.0f}-{max(values):,.0f}]"
        print(
            f"{model:10} {workload} {subject:6} {median:9,.0f} {spread:18} {median / limit:.2f} of the limit"
        )


if __name__ == "__main__":
    sys.exit(main())
