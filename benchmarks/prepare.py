"""Photos to float32 batches, ours beside other loaders, in one interleaved run: scripts/bench prepare [--data DIR|tar] ...

Workloads:
  W1  decode, RandomResizedCrop(224), flip, RandAugment(2, 9) per sample, normalise
  W2  the same without RandAugment
  W3  decode, RandAugment(2, 9) on the whole image, RandomResizedCrop(224), flip, normalise

JPEG files on disk, in memory after the first reading; 2 workers, batches of 64, each subject in a fresh process and, if it is a
peer, in an environment of its own under .cache/peers, which is made when first asked for. Without --data, photos are generated.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _machine
import _prepare_data
import _prepare_envs
import _prepare_report
from _harness import Case, FreshProcess, as_json, progress, run_all
from _prepare_envs import ENVIRONMENTS

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 240.0
WORKLOADS = ("W1", "W2", "W3")
BATCH_SIZE, WORKERS = 64, 2
GENERATED = 1000
FULL = {"repeats": 3, "warmup_s": 2.0, "seconds": 8.0}
QUICK = {"repeats": 1, "warmup_s": 1.0, "seconds": 3.0, "photos": 300}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    name: str
    """The function of _prepare_subjects or _prepare_peers that makes its batches."""
    title: str
    antialias: bool
    environment: str = ""
    peer: bool = True
    """Whether `--peers` decides about it."""


SUBJECTS = (
    Subject(name="ours", title="ours, exact", antialias=True, peer=False),
    Subject(name="ours_fast", title="ours, no antialias, fast_decode", antialias=False, peer=False),
    Subject(
        name="adopted",
        title="ours, torchvision's chain adopted",
        antialias=True,
        environment="torchvision",
        peer=False,
    ),
    Subject(
        name="torch_torchvision", title="torch + torchvision/PIL", antialias=True, environment="torchvision"
    ),
    Subject(name="torch_opencv", title="torch + OpenCV", antialias=False),
    Subject(
        name="torch_albumentations",
        title="torch + Albumentations",
        antialias=False,
        environment="albumentations",
    ),
    Subject(name="grain_opencv", title="Grain + OpenCV", antialias=False, environment="grain"),
    Subject(name="dali_cpu", title="DALI on the CPU", antialias=False, environment="dali"),
)


@dataclass(frozen=True, kw_only=True)
class Workload(Case):
    """One workload, and all who do it."""

    names: tuple[str, ...]

    @property
    def subjects(self) -> list[str]:
        return [*self.names]


def chosen(options: argparse.Namespace) -> tuple[list[Subject], dict[str, str]]:
    """Who takes part, and why the others do not."""
    wanted = options.peers.split(",")
    found, absent = [], {}
    for subject in SUBJECTS:
        if options.subjects and subject.name not in options.subjects.split(","):
            continue
        named = subject.name in wanted or subject.environment in wanted
        env = ENVIRONMENTS.get(subject.environment)
        if subject.peer and not named and wanted[0] not in ("installed", "all"):
            continue
        if env is None:
            found.append(subject)
        elif not (named or wanted[0] == "all" or _prepare_envs.installed(env)):
            absent[subject.title] = "not installed here: --peers all installs it"
        elif reason := _prepare_envs.make(env, progress):
            absent[subject.title] = f"does not install here: {reason}"
        else:
            found.append(subject)
    return found, absent


def workloads(subjects: list[Subject], options: argparse.Namespace, root: Path) -> list[Workload]:
    """The cases, in order."""

    def one(workload: str) -> Workload:
        params = {"workload": workload, "root": str(root), "batch_size": BATCH_SIZE, "workers": WORKERS}
        params |= {"warmup_s": options.warmup, "seconds": options.seconds}
        names = tuple(subject.name for subject in subjects)
        return Workload(name=workload, measure="throughput", params=params, names=names)

    return [one(workload) for workload in options.only.split(",")]


def main(argv: list[str] | None = None) -> int:
    options = _options(argv)
    os.environ["OMP_NUM_THREADS"] = (
        "1"  # as loaders do in their workers; peers that thread get their own setting
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    count = options.photos or (None if options.data else GENERATED)
    root = _prepare_data.photos(options.data, count, progress)
    subjects, absent = chosen(options)
    pythons = {
        s.name: str(ENVIRONMENTS[s.environment].python) if s.environment else sys.executable for s in subjects
    }
    modules = {name: f"{python}::{name}" for name, python in pythons.items()}
    run = FreshProcess(HERE / "_prepare_measure.py", modules, TIMEOUT_S, options.settle)
    machine = _machine.describe(HERE.parent)
    cases = workloads(subjects, options, root)
    started_s = time.monotonic()
    results = run_all(cases, options.repeats, run, progress)
    progress(f"{len(results.others_cpu_share)} measurements in {time.monotonic() - started_s:.0f} s\n")

    command = shlex.join(["scripts/bench", "prepare", *(sys.argv[1:] if argv is None else argv)])
    photos = sum(1 for _ in (root / "photos").iterdir())
    facts: dict[str, Any] = {
        "command": command,
        "photos": f"{photos:,} {'photos of --data' if options.data else 'generated photos'}",
        "repeats": options.repeats,
        "machine": machine,
        "absent": absent,
    }
    titles = {s.name: (s.title, s.antialias) for s in subjects}
    report = _prepare_report.Report(results, [case.name for case in cases], titles)
    print(report.text(facts))
    for failure, times in Counter(results.failures).items():
        print(f"FAILED {f'{times} times: ' if times > 1 else ''}{failure}")
    if options.json:
        Path(options.json).write_text(json.dumps(as_json(results, **facts), indent=1) + "\n")
    return 1 if results.failures else 0


def _options(argv: list[str] | None) -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", metavar="DIR|TAR", help="photos to prepare; without it, generated ones")
    parser.add_argument("--photos", type=int, help="how many of them; all, 1,000 generated, 300 with --quick")
    parser.add_argument(
        "--peers",
        default="installed",
        metavar="WHICH",
        help="none, installed (default), all (installs what is missing), or names with commas",
    )
    parser.add_argument("--subjects", metavar="A,B", help="only these of all that take part, by name")
    parser.add_argument("--only", default=",".join(WORKLOADS), metavar="W1,W2", help="only these workloads")
    parser.add_argument("--quick", action="store_true", help="one short round on a few photos")
    parser.add_argument("--repeats", type=int, help="rounds; 3, or 1 with --quick")
    parser.add_argument("--seconds", type=float, help="of each measurement; 8, or 3 with --quick")
    parser.add_argument("--warmup", type=float, metavar="S", help="before it; 2, or 1 with --quick")
    parser.add_argument("--settle", type=float, default=0.0, metavar="S", help="wait up to S s for quiet")
    parser.add_argument("--json", metavar="PATH", help="write everything measured there")
    options = parser.parse_args(argv)
    names = {subject.name for subject in SUBJECTS}
    _know(parser, "--peers", options.peers, names | {"none", "installed", "all"} | set(ENVIRONMENTS))
    _know(parser, "--subjects", options.subjects, names)
    _know(parser, "--only", options.only, set(WORKLOADS))
    size: dict[str, Any] = QUICK if options.quick else FULL
    options.repeats = options.repeats or size["repeats"]
    options.seconds = options.seconds or size["seconds"]
    options.warmup = size["warmup_s"] if options.warmup is None else options.warmup
    options.photos = options.photos or size.get("photos")
    return options


def _know(parser: argparse.ArgumentParser, option: str, said: str | None, known: set[str]) -> None:
    unknown = sorted(set(said.split(",")) - known) if said else []
    if unknown:
        parser.error(f"{option} {','.join(unknown)}: known are {', '.join(sorted(known))}")


if __name__ == "__main__":
    sys.exit(main())
