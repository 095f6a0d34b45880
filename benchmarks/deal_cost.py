"""How even the work of ranks is when global batches are dealt by cost, simulated: scripts/bench deal_cost [--ranks 2,8,64] [--photos FOLDER]

Costs are drawn from stated distributions; the plan is the loader's own. *slowest / mean*: the dearest rank's batch as a multiple of the mean of all ranks,
in the mean of all steps (and in the worst). A step takes as long as its slowest rank. *least possible*: no deal of batches of equal size can have less, because of
the dearest sample with the cheapest others. *chance*: the p-value of the chi-squared test that each sample is equally likely on each rank, over many epochs, for
all samples and for the dearest 5 %; below 0.001 would show that a rank gets dear samples more often.

With --photos, CPU time of each photo of a folder is measured instead, and batches are dealt by what is known beforehand: bytes, pixels, both (bytes + pixels / 4).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _lines import append_line
from _machine import describe
from numpy.typing import NDArray

from penstock import ImageFolder
from penstock import transforms as T  # noqa: N812
from penstock.dataset.offers import known_costs
from penstock.pipeline.header import read_header
from penstock.plan.deal_cost import SampleCosts
from penstock.plan.epoch import EpochPlan

ROOT = Path(__file__).resolve().parent.parent
STEPS = 40
EPOCHS, CHI_SAMPLES, CHI_BATCH = 4000, 512, 4
PHOTO_ROUNDS = 5
HEADER_BYTES = 64 << 10
DEALT_BY = ("bytes", "pixels", "both", "times")
Floats = NDArray[np.float64]


# ---- costs


def photos(rng: np.random.Generator, count: int) -> Floats:
    """Log-normal, with the coefficient of variation (0.67) of the bytes of 1,000 ImageNet photos."""
    return rng.lognormal(0.0, np.sqrt(np.log(1 + 0.67**2)), count)


def speech(rng: np.random.Generator, count: int) -> Floats:
    """Seconds like those of LibriSpeech's utterances: three quarters near 14.5 s, the others anywhere below; 12.5 s in the mean."""
    short = rng.random(count) < 0.25
    return np.clip(np.where(short, rng.uniform(1.5, 13.5, count), rng.normal(14.3, 1.5, count)), 1.4, 24.0)


def heavy(rng: np.random.Generator, count: int) -> Floats:
    """Pareto, alpha 1.5: the variance is infinite."""
    return rng.pareto(1.5, count) + 1.0


KINDS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "photos": photos,
    "speech": speech,
    "heavy tail": heavy,
}


# ---- figures


def plan_of(costs: SampleCosts, ranks: int, batch: int, epoch: int = 0) -> EpochPlan:
    return EpochPlan(
        length=len(costs.values),
        batch_size=batch,
        drop_last=True,
        shuffle=True,
        seed=0,
        epoch=epoch,
        world=ranks,
        deal=costs,
    )


def slowest(plan: EpochPlan, costs: Floats) -> tuple[list[float], list[float], list[float]]:
    """Of each step: slowest / mean, the least possible, and the milliseconds that the deal took."""
    found, least, took_ms = [], [], []
    for batch in range(plan.batches):
        began = time.perf_counter()
        positions, ranks = plan.dealt(batch)
        took_ms.append(1e3 * (time.perf_counter() - began))
        own = costs[plan.keys(positions)]
        sums = np.bincount(ranks, own, plan.world)
        cheapest = np.sort(own)[: plan.batch_size - 1].sum()
        found.append(float(sums.max() / sums.mean()))
        least.append(max(1.0, float((own.max() + cheapest) / sums.mean())))
    return found, least, took_ms


def chance(counts: NDArray[np.int64]) -> float:
    """The p-value of the chi-squared test that each sample (row) is equally likely on each rank (column)."""
    expected = counts.sum(axis=1, keepdims=True) / counts.shape[1]
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = counts.shape[0] * (counts.shape[1] - 1)
    halves = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def chances(costs: Floats, ranks: int) -> tuple[float, float]:
    """The p-values of all samples and of the dearest 5 %."""
    known = SampleCosts.of(costs)
    counts = np.zeros((len(costs), ranks), np.int64)
    for epoch in range(EPOCHS):
        plan = plan_of(known, ranks, CHI_BATCH, epoch)
        for batch in range(plan.batches):
            positions, who = plan.dealt(batch)
            counts[plan.keys(positions), who] += 1
    dear = np.argsort(-costs, kind="stable")[: len(costs) // 20]
    return chance(counts), chance(counts[dear])


def cell(kind: str, ranks: int, batch: int, seed: int) -> dict[str, Any]:
    costs = KINDS[kind](np.random.default_rng(seed), ranks * batch * STEPS)
    plan = plan_of(SampleCosts.of(costs), ranks, batch)
    as_is, _, _ = slowest(replace(plan, deal=None), costs)
    dealt, least, took_ms = slowest(plan, costs)
    return {
        "kind": kind,
        "ranks": ranks,
        "batch": batch,
        "steps": plan.batches,
        "shuffled": float(np.mean(as_is)),
        "shuffled_worst": max(as_is),
        "dealt": float(np.mean(dealt)),
        "dealt_worst": max(dealt),
        "least": float(np.mean(least)),
        "over_least": max(one / other for one, other in zip(dealt, least, strict=True)),
        "deal_ms": float(np.median(took_ms)),
    }


# ---- photos of a folder


def measured(folder: Path) -> dict[str, Floats]:
    """CPU microseconds of each photo, and what is known of it beforehand."""
    chain = [
        T.RandomResizedCrop(224),
        T.RandomHorizontalFlip(),
        T.ToImage(),
        T.ToDtype(torch.float32, scale=True),
    ]
    dataset = ImageFolder(folder, T.Compose(chain))
    torch.set_num_threads(1)
    took = np.empty((PHOTO_ROUNDS, len(dataset)))
    for row in took:
        for index in range(len(dataset)):
            began = time.thread_time()
            dataset[index]
            row[index] = 1e6 * (time.thread_time() - began)
    known = known_costs(dataset)
    assert known is not None
    began = time.perf_counter()
    sizes = np.array(list(known.of(range(len(dataset)))), np.float64)
    sized = time.perf_counter()
    pixels = np.array([pixels_of(path) for path, _ in dataset.samples], np.float64)
    for name, seconds in {"sizes": sized - began, "headers": time.perf_counter() - sized}.items():
        print(f"{name} of files, in the page cache: {1e6 * seconds / len(dataset):.1f} µs each")
    return {"times": np.median(took, axis=0), "bytes": sizes, "pixels": pixels, "both": sizes + pixels / 4}


def pixels_of(path: str) -> int:
    with Path(path).open("rb") as file:
        return read_header(file.read(HEADER_BYTES)).pixels


def predicted(facts: dict[str, Floats], ranks: int, batch: int) -> dict[str, Any]:
    """Deal photos, drawn with repetition, by each of the facts; judge by their times."""
    drawn = np.random.default_rng(0).integers(0, len(facts["times"]), ranks * batch * STEPS)
    times = facts["times"][drawn]
    row: dict[str, Any] = {"kind": "measured photos", "ranks": ranks, "batch": batch}
    for name, costs in facts.items():
        plan = plan_of(SampleCosts.of(costs[drawn]), ranks, batch)
        row[name] = float(np.mean(slowest(plan, times)[0]))
        row[f"r2_{name}"] = float(np.corrcoef(costs, facts["times"])[0, 1] ** 2)
    row["shuffled"] = float(np.mean(slowest(replace(plan, deal=None), times)[0]))
    row["mean_us"] = float(facts["times"].mean())
    return row


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def simulated(options: argparse.Namespace, done: Callable[[dict[str, Any]], None]) -> None:
    print(f"{STEPS} steps; slowest / mean: in the mean (worst)")
    print("| costs | ranks | batch | shuffled | dealt | least possible | dealt / least, worst | deal, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for ranks in options.ranks:
            for batch in options.batches:
                row = cell(kind, ranks, batch, options.seed)
                done(row)
                shuffled, dealt = (
                    f"{row['shuffled']:.3f} ({row['shuffled_worst']:.3f})",
                    f"{row['dealt']:.4f}",
                )
                print(
                    f"| {kind} | {ranks} | {batch} | {shuffled} | {dealt} ({row['dealt_worst']:.4f}) | {row['least']:.4f} | "
                    f"{row['over_least']:.4f} | {row['deal_ms']:.2f} |",
                    flush=True,
                )
    print(f"\n{EPOCHS} epochs of {CHI_SAMPLES} samples")
    print("| costs | ranks | chance, all samples | dearest 5 % |\n|---|---|---|---|")
    for kind, draw in KINDS.items():
        costs = draw(np.random.default_rng(options.seed), CHI_SAMPLES)
        for ranks in options.ranks:
            every, dear = chances(costs, ranks)
            done({"kind": kind, "ranks": ranks, "epochs": EPOCHS, "p_all": every, "p_dear": dear})
            print(f"| {kind} | {ranks} | {every:.4f} | {dear:.4f} |", flush=True)


def of_photos(options: argparse.Namespace, done: Callable[[dict[str, Any]], None]) -> None:
    facts = measured(options.photos)
    cells = [(ranks, batch) for ranks in options.ranks for batch in options.batches]
    found = [predicted(facts, ranks, batch) for ranks, batch in cells]
    print("| dealt by | R² | " + " | ".join(f"{ranks} x {batch}" for ranks, batch in cells) + " |")
    print("|---" * (2 + len(cells)) + "|")
    for name in ("shuffled", *DEALT_BY):
        r2 = f"{found[0][f'r2_{name}']:.2f}" if name in DEALT_BY else ""
        print(f"| {name} | {r2} | " + " | ".join(f"{row[name]:.3f}" for row in found) + " |")
    for row in found:
        done(row)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=numbers, default=[2, 8, 64], help="(2,8,64)")
    parser.add_argument(
        "--batches", type=numbers, default=[32, 256], help="samples of a rank's batch (32,256)"
    )
    parser.add_argument("--photos", type=Path, help="measure those of a folder with one folder per class")
    parser.add_argument("--seed", type=int, default=1, help="of the costs (1)")
    parser.add_argument("--out", type=Path, help="rows are appended there")
    options = parser.parse_args()
    machine = describe(ROOT)

    def done(row: dict[str, Any]) -> None:
        if options.out is not None:
            append_line(options.out, row | {"command": "scripts/bench deal_cost", "machine": machine})

    (simulated if options.photos is None else of_photos)(options, done)
    print(f"\n{machine}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
