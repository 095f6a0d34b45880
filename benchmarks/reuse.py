"""Partly prepared samples used several times: scripts/bench reuse [--data DIR|tar] [--workloads W3,W1] [--times 2,3,5] [--stores memory,disk] ...

For each workload, in turns: torch's DataLoader with torchvision/PIL, ours without reuse ("standard"), and ours with samples used 2, 3 and 5
times, split by "auto" or by --splits, kept in memory or on disk. The first epoch, which prepares everything, is not timed; whole rounds of
`times` epochs after it are. Workers stay from one epoch to the next, in torch's loader too. Every measurement has a process of its own.
Ideal: the cost of a sample without reuse over final + partial / times + copy, the costs of the chain's parts in one process.

W1: RandomResizedCrop(224), flip, RandAugment(2, 9). W3: RandAugment on the whole photo first. RandAugment stands as two ops of one layer,
so that it can be split between them. layers: crop, flip and three layers (--times 3 --splits 4,3,2 repeats Revamper's Figure 12).
audio: generated recordings to log-mel spectra with SpecAugment.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for place in (ROOT / "src", Path(__file__).resolve().parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

import _machine  # noqa: E402
from _harness import columns, spread  # noqa: E402

WORKLOADS = ("W3", "W1")
BATCH = 64


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    add = parser.add_argument
    add("--workloads", type=words, default=list(WORKLOADS), help="of W3, W1, layers, audio")
    add("--times", type=words, default=["2", "3", "5"], help="uses of each kept sample")
    add("--splits", type=words, default=["auto"], help="auto, or numbers of ops in the partial part")
    add("--stores", type=words, default=["memory"], help="memory, disk")
    add("--path", help="folder for the store on disk; by default a temporary one")
    add("--no-torch", action="store_true", help="leave torch's DataLoader out")
    add("--samples", type=int, default=1200, help="of an epoch: the photos again and again")
    add("--workers", type=int, default=_machine.cores())
    add("--seconds", type=float, default=6.0, help="of each measurement, at least")
    add("--rounds", type=int, default=3)
    add("--max-bytes", default="8GiB")
    add("--data", help="photos: a folder or a tar file; by default generated")
    add("--generate", type=int, default=400, help="photos, without --data")
    add("--out", type=Path, help="JSON")
    add("--measured", help=argparse.SUPPRESS)  # the one subject that this process measures
    return parser.parse_args(arguments)


# ---- one measurement, in a process of its own


def loader_of(args: argparse.Namespace, subject: dict[str, Any], root: Path) -> Any:
    from _gpu_chains import Repeated, torchvision_dataset

    if subject["kind"] == "torch":
        from torch.utils.data import DataLoader

        theirs = torchvision_dataset(root, subject["workload"])
        theirs.samples = Repeated(theirs.samples.items, args.samples)
        return DataLoader(
            theirs, BATCH, shuffle=True, num_workers=args.workers, persistent_workers=args.workers > 0
        )
    from _reuse_workloads import dataset_of

    import penstock

    dataset = dataset_of(subject["workload"], root, args.samples)
    reuse = None
    if subject["times"] > 1:
        split = subject["split"] if subject["split"] == "auto" else int(subject["split"])
        where: dict[str, Any] = {"path": kept_in(args.path)} if subject["store"] == "disk" else {}
        reuse = penstock.Reuse(
            times=subject["times"], split=split, max_bytes=args.max_bytes, store=subject["store"], **where
        )
    how: dict[str, Any] = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    return penstock.DataLoader(dataset, BATCH, shuffle=True, seed=0, reuse=reuse, **how)


def kept_in(path: str | None) -> str:
    """A folder of this process's own, below a path or where temporary files are; it goes when the process ends."""
    if path is not None:
        Path(path).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="penstock-reuse-", dir=path)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def cpu_s() -> float:
    """Of this process and all workers, which stay for all epochs."""
    return sum(_machine.cpu_clocks(_machine.process_tree(os.getpid())).values())


def measured(args: argparse.Namespace) -> dict[str, Any]:
    subject = json.loads(args.measured)
    loader = loader_of(args, subject, root_of(args, subject))
    found: dict[str, Any] = {}
    if subject["kind"] == "ours" and subject["times"] > 1:
        found["ideal"], found["split"] = ideal_of(loader, subject["times"])
    for _ in loader:
        pass
    started, cpu, images, epochs = time.perf_counter(), cpu_s(), 0, 0
    while time.perf_counter() - started < args.seconds or epochs % subject["times"]:
        images += sum(len(batch[0]) for batch in loader)
        epochs += 1
    took = time.perf_counter() - started
    found |= {
        "images_per_s": images / took,
        "epochs": epochs,
        "cpu_s_per_1000": 1e3 * (cpu_s() - cpu) / images,
    }
    if found.get("ideal"):
        found["store"] = loader.stats()["reuse"]
    return found


def ideal_of(loader: Any, times: int) -> tuple[float, int]:
    """The speed-up that the costs of the chain's parts promise, and where it is split."""
    from penstock.pipeline.op_costs import cut_costs

    split, costs = loader.stats()["reuse"]["split"], cut_costs(loader.dataset, 48)
    reused = costs.final_s[split] + costs.partial_s[split] / times + costs.copy_s[split]
    return costs.whole_s / reused, split


# ---- all of them


def root_of(args: argparse.Namespace, subject: dict[str, Any]) -> Path:
    """Where a subject's samples lie. torchvision's environment has no use for what ours imports."""
    if subject["kind"] == "torch":
        from _gpu_chains import photo_root

        return photo_root(args.data, args.generate)
    from _reuse_workloads import root_of

    return root_of(subject["workload"], args.data, args.generate)


def subjects(args: argparse.Namespace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for workload in args.workloads:
        if not args.no_torch:
            found.append({"workload": workload, "kind": "torch", "times": 1, "split": "", "store": ""})
        found.append({"workload": workload, "kind": "ours", "times": 1, "split": "", "store": ""})
        found += [
            {"workload": workload, "kind": "ours", "times": int(times), "split": split, "store": store}
            for split in args.splits
            for times in args.times
            for store in args.stores
        ]
    return found


def name_of(subject: dict[str, Any]) -> str:
    if subject["times"] == 1:
        return {"torch": "torch, torchvision/PIL", "ours": "ours, standard"}[subject["kind"]]
    return f"ours, {subject['times']} times, split {subject['split']}, {subject['store']}"


def python_of(subject: dict[str, Any]) -> str:
    """torchvision has an environment of its own."""
    if subject["kind"] != "torch":
        return sys.executable
    from _prepare_envs import ENVIRONMENTS, make

    env = ENVIRONMENTS["torchvision"]
    reason = make(env, say)
    if reason:
        raise SystemExit(f"torchvision cannot be installed ({reason}): --no-torch leaves it out")
    return str(env.python)


def run(subject: dict[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    command = [python_of(subject), __file__, *arguments, "--measured", json.dumps(subject)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """Ratios are taken within a round."""
    header = ["images/s", "of standard", "ideal", "of the ideal", "CPU s/1000"]
    tables = []
    for workload in args.workloads:
        own = [row for row in rows if row["workload"] == workload]
        base = {row["round"]: row["images_per_s"] for row in own if row["name"] == "ours, standard"}
        lines = [[workload, *header]]
        for name in dict.fromkeys(row["name"] for row in own):
            good = [row for row in own if row["name"] == name]
            paired = [(row, row["images_per_s"] / base[row["round"]]) for row in good if row["round"] in base]
            cells = [[row["images_per_s"] for row in good], [ratio for _, ratio in paired]]
            cells += [[row["ideal"] for row in good if "ideal" in row]]
            cells += [[ratio / row["ideal"] for row, ratio in paired if "ideal" in row]]
            cells += [[row["cpu_s_per_1000"] for row in good]]
            lines.append([name, *map(spread, cells)])
        tables.append(columns(lines))
    return "\n\n".join(tables)


def main(arguments: Sequence[str]) -> int:
    args = parsed(arguments)
    if args.measured:
        print(json.dumps(measured(args)))
        return 0
    rows: list[dict[str, Any]] = []
    every = [each for each in subjects(args) if each["kind"] != "torch" or each["workload"] in WORKLOADS]
    for place in dict.fromkeys(str(root_of(args, each)) for each in every):
        say(f"samples: {place}")
    for number in range(args.rounds):
        for subject in every if number % 2 == 0 else reversed(every):
            found = run(subject, arguments)
            said = {key: found[key] for key in ("images_per_s", "ideal", "error") if key in found}
            say(f"round {number + 1} {subject['workload']} {name_of(subject)}: {said}")
            if "error" not in found:
                rows.append({**subject, "name": name_of(subject), "round": number, **found})
    print(report(rows, args))
    facts = _machine.describe(ROOT)
    print("\n" + ", ".join(f"{name} {value}" for name, value in facts.items()))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            json.dumps({"machine": facts, "arguments": list(arguments), "rows": rows}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
