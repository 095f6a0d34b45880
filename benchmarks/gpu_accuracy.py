"""What the GPU lane costs in accuracy: scripts/bench gpu_accuracy --data cifar10.tar.xz --out found.json ...

CIFAR-10, enlarged to 128 pixels and encoded again so that decoding and resizing take part. Each seed is trained twice with the same first
weights, order and draws: with the lane and without. The result is the upper bound of the loss of accuracy, with 95 % confidence.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _machine
import torch
from _cifar import members
from _paired import rates_of, upper_bound
from _prepare_subjects import MEAN, STD, import_torchvision

from penstock import DataLoader, GpuPrep, ImageFolder
from penstock import transforms as T  # noqa: N812

ROOT = Path(__file__).resolve().parent.parent
GOAL_POINTS = 0.4
"""Accuracy in points of 100 that the lane may cost at most, with 95 % confidence."""
SIZE, QUALITY = 128, 90
"""Side in pixels and quality of the JPEG files (4:2:0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What two runs must have in common to be compared."""

    device: str
    epochs: int
    batch: int
    crop: int
    lr: float
    """The highest learning rate, reached after the first fifth."""
    share: float
    """Share of the samples that the lane decodes."""
    limit: int | None
    """Images of each class; None: all."""
    workers: int


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- data


def enlarged(archive: Path, work: Path, *, limit: int | None, say: Callable[[str], None]) -> Path:
    """A folder with `train` and `test`, made from the archive once: a stamp says that it is complete."""
    root = work / f"cifar10-{SIZE}-q{QUALITY}{'' if limit is None else f'-{limit}'}"
    stamp = root / ".whole"
    if stamp.exists():
        return root
    jobs = ((root / name, data) for name, data in members(archive, limit))
    with multiprocessing.Pool(_machine.cores()) as pool:
        count = sum(pool.imap_unordered(enlarge, jobs, chunksize=100))
    if not count:
        raise SystemExit(f"{archive}: no files like train/CLASS/NAME.jpg in it")
    stamp.write_text(f"{count}\n")
    say(f"{count} images enlarged")
    return root


def enlarge(job: tuple[Path, bytes]) -> int:
    from PIL import Image

    path, data = job
    path.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(io.BytesIO(data)) as image:
        larger = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    larger.save(path, "JPEG", quality=QUALITY, subsampling=2)
    return 1


def chain(crop: int, *, train: bool) -> Any:
    tail = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    if not train:
        return T.Compose([T.Resize(round(crop / 0.88)), T.CenterCrop(crop), *tail])
    moved = [T.RandomResizedCrop(crop, scale=(0.35, 1.0)), T.RandomHorizontalFlip()]
    return T.Compose([*moved, T.RandAugment(2, 9), *tail])


def lane_mode(share: float | None, device: str) -> dict[str, Any]:
    """Keywords of the loader; None: no lane. Without a GPU there is no lane, and the rest can still be tried."""
    if share is None or device == "cpu":
        return {"gpu_prep": "off"}
    return {"gpu_prep": GpuPrep(mode="concurrent", share=share), "deterministic": True}


def loader_of(root: Path, settings: Settings, *, train: bool, seed: int = 0, lane: bool = False) -> Any:
    return DataLoader(
        ImageFolder(root / ("train" if train else "test"), chain(settings.crop, train=train)),
        batch_size=settings.batch,
        shuffle=train,
        seed=seed,
        num_workers=settings.workers,
        persistent_workers=train,
        drop_last=train,
        device=settings.device,
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
        **lane_mode(settings.share if lane else None, settings.device),
    )


# ---- training


def schedule(seeds: int) -> list[tuple[int, bool]]:
    """(seed, lane on) of each run. Who goes first alternates, so that neither always has the warm machine."""
    return [
        (seed, lane) for seed in range(seeds) for lane in ((True, False) if seed % 2 == 0 else (False, True))
    ]


def trained(
    root: Path,
    test: Sequence[tuple[torch.Tensor, torch.Tensor]],
    settings: Settings,
    seed: int,
    *,
    lane: bool,
) -> dict[str, Any]:
    began, name = time.monotonic(), f"seed {seed} lane {'on' if lane else 'off'}"
    torch.manual_seed(seed)  # first weights are made on the CPU, so that all devices agree
    model = import_torchvision().models.resnet18(num_classes=10, zero_init_residual=True)
    model = model.to(settings.device, memory_format=torch.channels_last)
    loader, iterator = loader_of(root, settings, train=True, seed=seed, lane=lane), None
    if not len(loader):
        raise SystemExit(f"{len(loader.dataset)} images are less than a batch of {settings.batch}")
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.lr, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    rates = rates_of(len(loader) * settings.epochs, settings.lr)
    try:
        for epoch in range(settings.epochs):
            iterator, total = iter(loader), torch.zeros((), device=settings.device)
            for images, targets in iterator:
                optimizer.param_groups[0]["lr"] = next(rates)
                with torch.autocast(images.device.type, torch.bfloat16):
                    loss = torch.nn.functional.cross_entropy(model(images), targets, label_smoothing=0.1)
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(loss)
                optimizer.step()
                total += loss.detach()
            say(f"  {name} epoch {epoch}: loss {total.item() / len(loader):.3f}")
        gpu = loader.stats().get("gpu") or {}
    finally:
        if iterator is not None:
            iterator.close()
    did = {what: gpu.get(what, 0) for what in ("samples", "packed", "by_cpu")}
    points, seconds = accuracy_of(model, test), time.monotonic() - began
    say(f"{name}: {points:.2f} % in {seconds:.1f} s, {did}")
    return {"seed": seed, "lane": lane, "accuracy": points, "seconds": seconds, "lane_did": did}


@torch.no_grad()
def accuracy_of(model: Any, test: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """In points of 100."""
    model.eval()
    right = []
    for images, targets in test:
        with torch.autocast(images.device.type, torch.bfloat16):
            right.append(model(images).argmax(1) == targets)
    return 100 * torch.cat(right).double().mean().item()


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The complete pairs and their loss (off minus on, in points)."""
    found = {(run["seed"], run["lane"]): run["accuracy"] for run in runs}
    seeds = sorted(seed for seed, lane in found if lane and (seed, False) in found)
    losses = [found[seed, False] - found[seed, True] for seed in seeds]
    bound = upper_bound(losses)
    samples = sum(run["lane_did"]["samples"] for run in runs if run["lane"])
    made = sum(run["lane_did"]["packed"] - run["lane_did"]["by_cpu"] for run in runs if run["lane"])
    return {
        "seeds": seeds,
        "accuracy_on": [found[seed, True] for seed in seeds],
        "accuracy_off": [found[seed, False] for seed in seeds],
        "losses_points": losses,
        "mean_loss_points": statistics.fmean(losses) if losses else None,
        "bound_points": bound,
        "met": None if bound is None or not made else bound <= GOAL_POINTS,
        "lane_share": made / max(1, samples),
    }


# ---- the program


def resumed(out: Path, settings: Settings) -> list[dict[str, Any]]:
    """Runs of an earlier call with the same settings; the number of workers may differ."""
    before = json.loads(out.read_text()) if out.exists() else {"settings": asdict(settings), "runs": []}
    if before["settings"] | {"workers": settings.workers} != asdict(settings):
        raise SystemExit(f"{out.name} is of other settings ({before['settings']}): take another --out")
    return list(before["runs"])


def options(argv: Sequence[str]) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add(
        "--data",
        type=Path,
        required=True,
        help="CIFAR-10 as JPEG files in a tar: train/CLASS/NAME.jpg, test/...",
    )
    add("--out", type=Path, required=True, help="JSON, written after each run; runs in it are not made again")
    add("--work", type=Path, default=ROOT / ".cache" / "accuracy", help="folder for the enlarged images")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--limit", type=int, help="images of each class; default: all")
    add("--workers", type=int, default=max(1, _machine.cores() - 1))
    add("--seeds", type=int, default=5, help="pairs of runs")
    add("--epochs", type=int, default=12)
    add("--batch", type=int, default=512)
    add("--crop", type=int, default=96, help="pixels that the network sees")
    add("--lr", type=float, default=0.2, help="the highest learning rate")
    add("--share", type=float, default=0.5, help="share of the samples that the lane decodes")
    add("--stop-after", type=float, default=math.inf, help="seconds; begin no run that may end later")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    args = options(argv)
    settings = Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})
    runs = resumed(args.out, settings)
    root = enlarged(args.data, args.work, limit=args.limit, say=say)
    torch.backends.cudnn.benchmark = True
    test = list(loader_of(root, settings, train=False))
    if args.device == "cpu":
        say("no GPU, so no lane: runs called 'on' are off too")
    machine = {"gpu": torch.cuda.get_device_name() if args.device != "cpu" else "none"}
    began, longest = time.monotonic(), 0.0
    for seed, lane in schedule(args.seeds):
        if (seed, lane) in {(run["seed"], run["lane"]) for run in runs}:
            continue
        if time.monotonic() - began + longest > args.stop_after:
            say("out of time: the same command does the rest")
            break
        runs.append(trained(root, test, settings, seed, lane=lane))
        longest = max(longest, runs[-1]["seconds"])
        found = {"machine": machine | _machine.describe(ROOT), "settings": asdict(settings), "runs": runs}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({**found, "summary": summary(runs)}, indent=1) + "\n")
    print(json.dumps(summary(runs), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
