"""Does the GPU lane change what a model learns? scripts/bench gpu_accuracy accuracy|outputs|diversity ...

accuracy: CIFAR-10, enlarged to 128 pixels and encoded again so that decoding and resizing take part, trained on in pairs: for
each seed the same first weights, order and draws, once with the lane and once without. What counts is the bound that the loss of
accuracy stays below with 95 % confidence.

outputs: one network looks at the same images with the same draws, prepared by workers and by the lane: how far apart are pixels
and logits?

diversity: draws that several samples share (FusionFlow, section 4.3 and figure 6) beside draws for each sample, which are ours.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _machine
import torch
from _gpu_cifar import Fed, Settings, chain, enlarged, fed_from, lane_figures, lane_mode, train_loader
from _gpu_diversity import drawn, found_of
from _paired import rates_of, upper_bound
from _prepare_data import photos
from _prepare_subjects import STD, import_torchvision

from penstock import DataLoader, ImageFolder, accel

ROOT = Path(__file__).resolve().parent.parent
GOAL_POINTS = 0.4
"""The accuracy, in points of 100, that the lane may cost at most, with 95 % confidence."""


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- accuracy


def schedule(seeds: int) -> list[tuple[int, bool]]:
    """(seed, lane on) of each run. Who goes first changes from pair to pair, so that neither has the warm machine."""
    return [
        (seed, lane) for seed in range(seeds) for lane in ((True, False) if seed % 2 == 0 else (False, True))
    ]


def network(seed: int, device: str, **options: bool) -> Any:
    """The seed decides the first weights; they are made on the CPU, where it does so everywhere alike."""
    torch.manual_seed(seed)
    model = import_torchvision().models.resnet18(num_classes=10, **options)
    return model.to(device, memory_format=torch.channels_last)


def trained(fed: Fed, settings: Settings, seed: int, *, lane: bool) -> tuple[Any, dict[str, Any]]:
    """One training from beginning to end: the model, and how it went."""
    began, name = time.monotonic(), f"seed {seed} lane {'on' if lane else 'off'}"
    model = network(seed, settings.device, zero_init_residual=True)  # so that a short warm-up suffices
    loader = train_loader(fed, settings, seed, lane=lane)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.lr, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    rates, losses, iterator = rates_of(len(loader) * settings.epochs, settings.lr), [], None
    try:
        for epoch in range(settings.epochs):
            before, iterator = time.monotonic(), iter(loader)
            loss = torch.zeros((), device=settings.device)
            for images, targets in iterator:
                optimizer.param_groups[0]["lr"] = next(rates)
                loss += taught(model, optimizer, images, targets)
            losses.append(loss.item() / len(loader))
            rate = len(loader) * settings.batch / (time.monotonic() - before)
            say(f"  {name} epoch {epoch}: loss {losses[-1]:.3f}, {rate:,.0f} images/s")
        did = lane_figures(loader)
    finally:
        if iterator is not None:
            iterator.close()
    points, seconds = accuracy_of(model, fed.test), time.monotonic() - began
    say(f"{name}: {points:.2f} % in {seconds:.1f} s, {did}")
    run = {"seed": seed, "lane": lane, "accuracy": points, "losses": losses}
    return model, run | {"seconds": seconds, "lane_did": did}


def taught(model: Any, optimizer: Any, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    with torch.autocast(images.device.type, torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), targets, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach()


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
    """The pairs that are complete, and what they say about the loss (off minus on, in points)."""
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
        "goal_points": GOAL_POINTS,
        "met": None if bound is None or not made else bound <= GOAL_POINTS,
        "lane_share": made / max(1, samples),
        "seconds": sum(run["seconds"] for run in runs),
    }


def resumed(out: Path, settings: Settings, *, resume: bool) -> list[dict[str, Any]]:
    """Runs of an earlier call with the same settings; how many workers there were does not matter."""
    if not resume or not out.exists():
        return []
    before = json.loads(out.read_text())
    if before["settings"] | {"workers": settings.workers} != asdict(settings):
        raise SystemExit(f"{out.name} is of other settings ({before['settings']}): take another --out")
    return list(before["runs"])


def accuracy(args: argparse.Namespace) -> dict[str, Any]:
    settings = Settings(**{name: getattr(args, name) for name in Settings.__dataclass_fields__})
    runs = resumed(args.out, settings, resume=args.resume)
    done = {(run["seed"], run["lane"]) for run in runs}
    todo, began = [each for each in schedule(args.seeds) if each not in done], time.monotonic()
    root = enlarged(args.data, args.work, limit=args.limit, processes=_machine.cores(), say=say)
    torch.backends.cudnn.benchmark = True
    fed = fed_from(root, settings)
    if len(fed.train) < settings.batch:
        raise SystemExit(f"{len(fed.train)} images are less than a batch of {settings.batch}")
    say(f"{len(fed.train)} images, ready after {time.monotonic() - began:.0f} s; {len(todo)} runs")
    if args.device == "cpu":
        say("no GPU, so no lane: runs called 'on' are off too")
    found = report(args, settings=asdict(settings), runs=runs, summary=summary(runs))
    for seed, lane in todo:
        longest = max((run["seconds"] for run in runs), default=0.0)
        if time.monotonic() - began + longest > args.stop_after:
            say(f"stopped after {time.monotonic() - began:.0f} s; --resume does the rest")
            break
        model, run = trained(fed, settings, seed, lane=lane)
        runs.append(run)
        if args.save_weights and not lane:
            torch.save(model.state_dict(), args.save_weights)
        found["summary"] = summary(runs)
        write(args.out, found)
    return found


# ---- outputs


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly from all of them."""
    count = min(count, len(items))
    return [items[at * len(items) // count] for at in range(count)]


def prepared(
    root: Path, args: argparse.Namespace, share: float | None
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The images as the network gets them, with the lane or (None) without; draws and order are the same each time."""
    dataset = ImageFolder(root, chain(args.crop, train=True))
    dataset.samples = spread(dataset.samples, args.images)
    dataset.length = len(dataset.samples)
    loader: Any = DataLoader(
        dataset,
        batch_size=min(args.batch, len(dataset)),
        shuffle=True,
        seed=1,
        num_workers=args.workers,
        drop_last=True,
        device=args.device,
        **lane_mode(share, args.device),
    )
    iterator = iter(loader)  # kept, and with it the lane's numbers
    images = torch.cat([batch[0] for batch in iterator])
    return images, lane_figures(loader)


@torch.no_grad()
def fixed_network(images: torch.Tensor, args: argparse.Namespace) -> Any:
    """Trained weights, or random ones whose normalisation has seen the images: without that, logits hardly depend on them."""
    model = network(0, args.device)
    if args.weights:
        model.load_state_dict(torch.load(args.weights, map_location=args.device))
        return model.eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the plain mean of all batches
    model.train()
    for part in torch.split(images, args.batch):
        model(part)
    return model.eval()


def apart(
    ours: torch.Tensor, theirs: torch.Tensor, logits: torch.Tensor, others: torch.Tensor
) -> dict[str, Any]:
    """How far two preparations of the same images are apart: pixels in levels of 255, logits in standard deviations (over the
    images, of each class). Means are over the images that differ."""
    scale = 255 * torch.tensor(STD, device=ours.device).view(3, 1, 1)
    differs = (ours != theirs).flatten(1).any(1)
    levels = ((ours - theirs).abs() * scale)[differs]
    change = (logits - others).abs()[differs]
    std = (others - others.mean(0)).std().item()
    found: dict[str, Any] = {"images": len(ours), "differ": int(differs.sum()), "logits_std": std}
    if not len(levels):
        return found
    return found | {
        "levels_largest": levels.max().item(),
        "levels_mean": levels.mean().item(),
        "levels_above": {
            f"{least}": (levels > least + 0.01).float().mean().item() for least in (0, 1, 4, 16)
        },
        "logits_largest": change.max().item() / std,
        "logits_mean": change.mean().item() / std,
        "same_prediction": (logits.argmax(1) == others.argmax(1))[differs].float().mean().item(),
    }


def outputs(args: argparse.Namespace) -> dict[str, Any]:
    if args.data:
        root = enlarged(args.data, args.work, limit=args.limit, processes=_machine.cores(), say=say) / "test"
    else:
        root = photos(args.photos, args.images, say)
    # Rounding of the network's own must not hide or add anything.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    plain, _ = prepared(root, args, None)
    model = fixed_network(plain, args)
    logits = looked_at(model, plain, args.batch)
    subjects: dict[str, float | None] = {"off again": None, "half by the lane": 0.5, "all by the lane": 1.0}
    if args.device == "cpu":
        say("no GPU, so no lane: workers are compared with themselves")
    found = {}
    for name, share in subjects.items():
        images, did = prepared(root, args, share)
        seen = looked_at(model, images, args.batch)
        found[name] = {"lane_did": did, **apart(images, plain, seen, logits)}
        say(f"{name}: {json.dumps(found[name])}")
    return report(args, images=len(plain), crop=args.crop, trained=bool(args.weights), found=found)


@torch.no_grad()
def looked_at(model: Any, images: torch.Tensor, batch: int) -> torch.Tensor:
    return torch.cat([model(part) for part in torch.split(images, batch)])


# ---- diversity


def diversity(args: argparse.Namespace) -> dict[str, Any]:
    found = found_of(args.runs, say)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".svg").write_text(drawn(found["paper"]["curves"]) + "\n")
    return report(args, **found)


# ---- the program


def report(args: argparse.Namespace, **found: Any) -> dict[str, Any]:
    """What was found, with the machine it was found on."""
    machine: dict[str, Any] = _machine.describe(ROOT)
    if torch.cuda.is_available():
        machine["gpu"] = torch.cuda.get_device_name()
    machine["compiled_loops"] = accel.compiled() is not None
    return {"what": args.what, "machine": machine, **found}


def write(path: Path, found: Mapping[str, Any]) -> None:
    """All of it or nothing: a run that is stopped leaves the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partly = path.with_name(f"{path.name}.part")
    partly.write_text(json.dumps(found, indent=1) + "\n")
    partly.replace(path)


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parts = parser.add_subparsers(dest="what", required=True)
    titles = {accuracy: "train in pairs", outputs: "compare pixels and logits", diversity: "shared draws"}
    for function, title in titles.items():
        part = parts.add_parser(function.__name__, help=title)
        part.set_defaults(function=function)
        part.add_argument(
            "--out", type=Path, required=True, metavar="FILE", help="JSON; written after each run"
        )
        if function is diversity:
            part.add_argument("--runs", type=int, default=4000, help="of each simulation")
            continue
        part.add_argument(
            "--work", type=Path, default=ROOT / ".cache" / "accuracy", help="enlarged images lie here"
        )
        part.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        part.add_argument("--limit", type=int, metavar="N", help="only so many images of each class")
        part.add_argument("--workers", type=int, default=max(1, _machine.cores() - 1))
        data = "CIFAR-10 as JPEG files in a tar: train/CLASS/NAME.jpg, test/CLASS/NAME.jpg"
        (accuracy_options if function is accuracy else outputs_options)(part, data)
    return parser.parse_args(argv)


def accuracy_options(part: argparse.ArgumentParser, data: str) -> None:
    part.add_argument("--data", type=Path, required=True, metavar="TAR", help=data)
    part.add_argument("--seeds", type=int, default=5, help="pairs of runs")
    part.add_argument("--epochs", type=int, default=12)
    part.add_argument("--batch", type=int, default=512)
    part.add_argument("--crop", type=int, default=96, help="pixels that the network sees")
    part.add_argument("--lr", type=float, default=0.2, help="the highest learning rate")
    part.add_argument("--share", type=float, default=0.5, help="of samples that the lane gets")
    part.add_argument("--resume", action="store_true", help="keep the runs in --out and do the rest")
    part.add_argument(
        "--stop-after", type=float, default=math.inf, metavar="S", help="start no run that may end later"
    )
    part.add_argument("--save-weights", type=Path, metavar="FILE", help="of the last run without the lane")


def outputs_options(part: argparse.ArgumentParser, data: str) -> None:
    source = part.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="TAR", help=data)
    source.add_argument("--photos", metavar="DIR|TAR", help="photos of any size in its place")
    part.add_argument("--images", type=int, default=512, help="how many to compare")
    part.add_argument("--batch", type=int, default=64)
    part.add_argument("--crop", type=int, default=96, help="pixels that the network sees")
    part.add_argument("--weights", type=Path, metavar="FILE", help="as accuracy --save-weights leaves them")


def main(argv: Sequence[str] | None = None) -> int:
    args = options(argv)
    found = args.function(args)
    write(args.out, found)
    print(json.dumps(found.get("summary", found.get("found")), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
