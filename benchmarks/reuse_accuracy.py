"""What reuse costs in accuracy: scripts/bench reuse_accuracy --data cifar10.tar.xz --out rows.jsonl ...

CIFAR-10 with two layers of RandAugment, then a random crop and a flip, prepared by our loader, as in Revamper (sections 7.1 and 7.4).
Variants: standard keeps nothing. r2, r3 use the output of both layers 2 or 3 times (`split="auto"`). echo3 keeps the finished sample
and uses it 3 times (data echoing). simplified has crop and flip only, one_layer one layer of RandAugment.

All variants of a seed have the same first weights, learning rates and number of steps; differences are taken within a seed. All networks
of a seed train on the same batches. Each training is a line of JSON in --out; the same command makes only those that are missing.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _machine
import torch
from _cifar import Arrays, arrays_of
from _cifar_networks import NETWORKS, Learner
from _lines import append_line
from _paired import rates_of
from _reuse_results import key_of, read_rows, table
from _reuse_variants import DEFAULT, VARIANTS, Settings, loader_of, split_of

ROOT = Path(__file__).resolve().parent.parent
TEST_BATCH = 1000


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def test_batches(arrays: Arrays, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The test images on the device: the same for every training."""
    images = torch.from_numpy(arrays.test).permute(0, 3, 1, 2).contiguous().to(device)
    labels = torch.from_numpy(arrays.test_labels).to(device)
    return list(zip(torch.split(images, TEST_BATCH), torch.split(labels, TEST_BATCH), strict=True))


def trained(variant: str, seed: int, arrays: Arrays, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One training of each network on the same batches: a row for each."""
    settings, began = settings_of(args), time.monotonic()
    loader = loader_of(variant, arrays, settings, seed=seed, workers=args.workers, device=args.device)
    learners = [Learner(name, args.device, args.weight_decay, seed) for name in args.networks]
    losses: dict[str, list[float]] = {name: [] for name in args.networks}
    rates, iterator = rates_of(len(loader) * args.epochs, args.lr), None
    try:
        for epoch in range(args.epochs):
            iterator = iter(loader)
            for images, targets in iterator:
                rate = next(rates)
                for learner in learners:
                    learner.learn(images, targets, rate)
            for learner in learners:
                losses[learner.name].append(round(learner.loss.item() / len(loader), 4))
                learner.loss.zero_()
            said = ", ".join(f"{name} {values[-1]:.3f}" for name, values in losses.items())
            say(f"{time.monotonic() - began:6.1f} s  {variant} seed {seed} epoch {epoch}: {said}")
        split = split_of(loader)
    finally:
        if iterator is not None:
            iterator.close()
    gpu = "none" if args.device == "cpu" else torch.cuda.get_device_name()
    test = test_batches(arrays, args.device)
    common = {"variant": variant, "seed": seed, "split": split, "gpu": gpu, "settings": asdict(settings)}
    return [
        {
            "network": learner.name,
            **common,
            "accuracy": learner.accuracy(test),
            "losses": losses[learner.name],
            "seconds": round(time.monotonic() - began, 1),
        }
        for learner in learners
    ]


def to_do(args: argparse.Namespace) -> list[tuple[str, int]]:
    """Variant and seed of each training that is not in the file."""
    done = {key_of(row) for row in read_rows(args.out, asdict(settings_of(args)))}
    return [
        (variant, seed)
        for variant in args.variants
        for seed in range(args.seeds)
        if any((network, variant, seed) not in done for network in args.networks)
    ]


def run(args: argparse.Namespace) -> None:
    arrays = arrays_of(args.data, limit=args.limit)
    if len(arrays.train) < args.batch:
        raise SystemExit(f"{len(arrays.train)} images are less than a batch of {args.batch}")
    torch.backends.cudnn.benchmark = True
    if args.device == "cpu":
        torch.set_num_threads(1)  # the other cores are the workers'
    began, longest = time.monotonic(), 0.0
    for variant, seed in to_do(args):
        if time.monotonic() - began + longest > args.stop_after:
            say("out of time: the same command does the rest")
            return
        start = time.monotonic()
        done = {key_of(row) for row in read_rows(args.out, asdict(settings_of(args)))}
        for row in trained(variant, seed, arrays, args):
            if key_of(row) not in done:
                append_line(args.out, row)
        longest = max(longest, time.monotonic() - start)


def settings_of(args: argparse.Namespace) -> Settings:
    return Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="CIFAR-10 as JPEG files in a tar")
    add("--out", type=Path, required=True, help="a line of JSON for each training")
    add("--networks", type=words, default=["resnet18", "vgg16"], help=f"of {', '.join(NETWORKS)}")
    add("--variants", type=words, default=list(DEFAULT), help=f"of {', '.join(VARIANTS)}")
    add("--seeds", type=int, default=5)
    add("--epochs", type=int, default=30)
    add("--batch", type=int, default=512)
    add("--lr", type=float, default=0.2, help="the highest learning rate")
    add("--weight-decay", type=float, default=5e-4)
    add("--magnitude", type=int, default=10, help="of RandAugment, of 31")
    add("--padding", type=int, default=3, help="pixels, for the random crop")
    add("--limit", type=int, help="images of each class in each part; default: all")
    add("--workers", type=int, default=max(1, _machine.cores() - 1))
    add("--stop-after", type=float, default=math.inf, help="seconds; begin no training that may end later")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--report", action="store_true", help="only the table of what is in --out")
    args = parser.parse_args(arguments)
    for name, known in (("networks", NETWORKS), ("variants", VARIANTS)):
        unknown = [each for each in getattr(args, name) if each not in known]
        if unknown:
            parser.error(f"no {name}: {', '.join(unknown)}; there are {', '.join(known)}")
    return args


def main(arguments: Sequence[str]) -> int:
    args = parsed(arguments)
    if not args.report:
        run(args)
    rows = read_rows(args.out, asdict(settings_of(args)))
    print(table(rows, {name: variant.title for name, variant in VARIANTS.items()}))
    facts = {"gpu": ", ".join(sorted({row["gpu"] for row in rows})), **_machine.describe(ROOT)}
    print("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
