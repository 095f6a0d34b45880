"""The order of an epoch: what planning and seeking cost, ours and a materialised shuffle.

    python benchmarks/order.py [--indices 100000000] [--repeats 3]

Every number is measured in a process of its own: CPU seconds and the growth of its peak resident memory.
*Planning* reads the whole order once, a million indices at a time; *seeking* makes the plan and reads one batch of
256 in the middle.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from _machine import describe

ROOT = Path(__file__).resolve().parent.parent
CHUNK = 1_000_000
BATCH = 256


def ours_plan(n: int) -> Iterator[np.ndarray]:
    from penstock.plan.epoch import EpochPlan

    plan = EpochPlan(length=n, batch_size=CHUNK, drop_last=False, shuffle=True, seed=0, epoch=1)
    return (plan.keys(plan.positions(batch)) for batch in range(plan.batches))


def ours_seek(n: int) -> Iterator[np.ndarray]:
    from penstock.plan.epoch import EpochPlan

    plan = EpochPlan(length=n, batch_size=BATCH, drop_last=False, shuffle=True, seed=0, epoch=1)
    yield plan.keys(plan.positions(plan.batches // 2))


def randperm_plan(n: int) -> Iterator[np.ndarray]:
    import torch

    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).numpy()
    return (order[first : first + CHUNK] for first in range(0, n, CHUNK))


def randperm_seek(n: int) -> Iterator[np.ndarray]:
    import torch

    yield torch.randperm(n, generator=torch.Generator().manual_seed(0)).numpy()[n // 2 : n // 2 + BATCH]


CASES: dict[str, tuple[str, Callable[[int], Iterator[np.ndarray]]]] = {
    "ours-plan": ("penstock, plan", ours_plan),
    "randperm-plan": ("torch.randperm, plan", randperm_plan),
    "ours-seek": ("penstock, seek", ours_seek),
    "randperm-seek": ("torch.randperm, seek", randperm_seek),
}


def measure(case: str, n: int) -> None:
    """Run one case here, in this process, and print what it cost."""
    run = CASES[case][1]
    for _ in run(1000):  # imports are not part of an order's cost
        pass
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started_s, count = time.process_time(), 0
    for indices in run(n):
        count += indices.size
    took_s = time.process_time() - started_s
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    print(json.dumps({"took_s": took_s, "grown_mib": grown_kib / 1024, "count": count}))


def in_process(case: str, n: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--case", case, "--indices", str(n)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def readable(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description="What the order of an epoch costs.")
    parser.add_argument("--indices", type=int, default=100_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", choices=sorted(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        measure(options.case, options.indices)
        return
    rounds = [{case: in_process(case, options.indices) for case in CASES} for _ in range(options.repeats)]
    print(
        f"{options.indices:,} indices, median (least to most) of {options.repeats} interleaved runs, one core;"
    )
    print(", ".join(f"{name} {value}" for name, value in describe(ROOT).items()), end="\n\n")
    print("| order | CPU time | memory |")
    print("|---|---:|---:|")
    for case, (name, _) in CASES.items():
        took = sorted(each[case]["took_s"] for each in rounds)
        grown_mib = statistics.median(each[case]["grown_mib"] for each in rounds)
        spread = f"{readable(statistics.median(took))} ({readable(took[0])} to {readable(took[-1])})"
        print(f"| {name} | {spread} | {grown_mib:,.0f} MiB |")


if __name__ == "__main__":
    main()
