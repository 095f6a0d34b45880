"""The augmentation kernels alone, after decode: images/s, launches per task and the time of each, on the GPU here.

    python benchmarks/gpu_kernels.py [--chain w1] [--task 16] [--out kernels.json]

Images are noise of ImageNet's usual sizes, already on the device, as a decoder leaves them (uint8, planar); every sample has a draw of
its own. Tables go to the device with every task. "with layout" also turns each program into its table in this thread.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from penstock import transforms
from penstock.kernels.layout import lay_out
from penstock.kernels.run import Executor, Limits
from penstock.kernels.table import Sample
from penstock.pipeline.chain import Chain

SIZES = [
    (375, 500),
    (500, 375),
    (333, 500),
    (500, 333),
    (500, 500),
    (480, 640),
    (400, 500),
    (768, 1024),
    (213, 320),
    (1200, 1600),
]
WEIGHTS = [35, 14, 12, 5, 4, 6, 4, 4, 4, 2]
CLOSING = [
    transforms.ToImage(),
    transforms.ToDtype(torch.float32, scale=True),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]
CHAINS: dict[str, list[Any]] = {
    "w1": [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.RandAugment(2, 9),
    ],
    "w2": [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()],
    "w3": [
        transforms.RandAugment(2, 9),
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
    ],
    "autoaugment": [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.AutoAugment(),
    ],
    "augmix": [transforms.RandomResizedCrop(224), transforms.AugMix()],
    "jitter": [
        transforms.RandomResizedCrop(224),
        transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
        transforms.GaussianBlur(23),
    ],
}


def tasks_of(chain: Chain, *, task: int, count: int) -> list[tuple[list[Any], list[torch.Tensor]]]:
    """(programs, images) of each task."""
    rng = random.Random(0)
    images = {size: torch.randint(0, 256, (8, 3, *size), dtype=torch.uint8, device="cuda") for size in SIZES}
    found = []
    for number in range(count):
        sizes = rng.choices(SIZES, WEIGHTS, k=task)
        programs = [chain.draw(number * task + at, size) for at, size in enumerate(sizes)]
        found.append((programs, [images[size][rng.randrange(8)] for size in sizes]))
    return found


def timed(work: Callable[[], None], repeats: int) -> list[float]:
    """Seconds of each repeat, from before the first launch until the device is done."""
    work()
    torch.cuda.synchronize()
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return found


def kernel_times(executor: Executor, tasks: Sequence[list[Sample]], batch: torch.Tensor) -> dict[str, float]:
    """Microseconds of each launch of a task, on average over tasks, on a device that does nothing else."""
    from torch.profiler import ProfilerActivity, profile

    graphs, executor.graphs = executor.graphs, {}
    spent: dict[str, list[float]] = {}
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for samples in tasks:
            executor.run(samples, batch)
        torch.cuda.synchronize()
    executor.graphs = graphs
    at = 0
    for event in sorted(
        (e for e in profiler.events() if e.device_type.name == "CUDA"), key=lambda e: e.time_range.start
    ):
        at = 0 if event.name == "prepare" else at + 1
        label = f"round {at - 1}" if event.name == "run_round" else event.name
        spent.setdefault(label, []).append(event.time_range.elapsed_us())
    return {name: sum(times) / len(tasks) for name, times in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chain", choices=CHAINS, default="w1")
    parser.add_argument("--task", type=int, default=16)
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--block", type=int, default=Limits().block)
    parser.add_argument("--warps", type=int, default=Limits().warps)
    parser.add_argument("--programs", type=int, default=Limits().programs)
    parser.add_argument("--out", default="")
    chosen = parser.parse_args()

    chain = Chain.of([*CHAINS[chosen.chain], *CLOSING])
    tasks = tasks_of(chain, task=chosen.task, count=chosen.tasks)
    batch = torch.empty(chosen.task, 3, 224, 224, dtype=torch.bfloat16, device="cuda").to(
        memory_format=torch.channels_last
    )
    rows = chosen.task * (5 if chosen.chain == "augmix" else 1)
    limits = Limits(
        rows=rows, scratch_bytes=512 << 20, block=chosen.block, warps=chosen.warps, programs=chosen.programs
    )

    def laid_out(programs: list[Any], images: list[torch.Tensor]) -> list[Sample]:
        return [
            Sample(lay_out(program, (image.shape[1], image.shape[2])), image, at)
            for at, (program, image) in enumerate(zip(programs, images, strict=True))
        ]

    ready = [laid_out(*task) for task in tasks]
    rounds = sorted({max(sample.layout.rounds for sample in samples) for samples in ready})
    with torch.cuda.stream(torch.cuda.Stream()):
        executor = Executor(batch, chain.tail, limits)
        begin = time.perf_counter()
        executor.warm_up(rounds, [rows])
        torch.cuda.synchronize()
        warm_s = time.perf_counter() - begin
        launches = [executor.run(samples, batch) for samples in ready]

        def kernels() -> None:
            for samples in ready:
                executor.run(samples, batch)

        def with_layout() -> None:
            for task in tasks:
                executor.run(laid_out(*task), batch)

        images = chosen.task * chosen.tasks
        alone, whole = timed(kernels, chosen.repeats), timed(with_layout, max(2, chosen.repeats // 4))
        print(
            f"{images / statistics.median(alone):,.0f} images/s, launches {min(launches)} to {max(launches)}"
        )
        parts = kernel_times(executor, ready, batch)
    result = {
        "chain": chosen.chain,
        "task": chosen.task,
        "device": torch.cuda.get_device_name(),
        "images_per_s": images / statistics.median(alone),
        "images_per_s_range": [images / max(alone), images / min(alone)],
        "with_layout_images_per_s": images / statistics.median(whole),
        "device_only_images_per_s": chosen.task / (sum(parts.values()) * 1e-6),
        "launches_per_task": [min(launches), max(launches)],
        "kernel_us_per_task": parts,
        "warm_up_s": warm_s,
        "static_bytes": executor.static_bytes,
        "block_warps_programs": [chosen.block, chosen.warps, chosen.programs],
    }
    print(json.dumps(result, indent=1))
    if chosen.out:
        Path(chosen.out).write_text(json.dumps(result, indent=1), "utf-8")


if __name__ == "__main__":
    main()
