"""Training fed from photos on one GPU: scripts/bench gpu [--part main,defaults,rivals,memory,workers,reuse] [--data DIR|tar] ...

Parts:
  main      our own chains in each mode of the GPU lane, the limit (training on one batch that stays on the device), torch's DataLoader with
            torchvision/PIL, and DALI where it is installed
  defaults  torchvision's dataset with no keyword but device and num_workers (0: "auto"), beside each mode by itself
  rivals    DALI in several tunings, timm, torchvision on the GPU, SPDL where it is installed, and ours with its defaults
  memory    the largest batch that trains in 24 GB, and training with 1 % of the card to spare (--groups fit,tight)
  workers   their number changes while training
  reuse     partly prepared samples used several times (--groups paper,workers,lane, see _gpu_reuse.py)

Each measurement is one line of JSON in --out; --resume makes only those that are not there. A subject that fails, hangs or
crashes is a line with an "error", and the campaign goes on in a fresh process. Workloads: see _gpu_chains.py. Ours
decodes with fast_decode=True, DALI crops without antialiasing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
for place in (ROOT / "src", Path(__file__).resolve().parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

import _gpu_report  # noqa: E402
import _machine  # noqa: E402
from _gpu_plan import (  # noqa: E402
    MODELS,
    PARTS,
    SUBJECTS,
    WORKLOADS,
    Choice,
    Job,
    estimate_s,
    expected_s,
)
from _gpu_rows import append_row, pending, read_rows  # noqa: E402

DEFAULT_MODELS = {"main": "resnet18,resnet50,vit_b_16", "reuse": ""}
DEFAULT_WORKLOADS: dict[str, list[str]] = {"main": list(WORKLOADS), "reuse": []}
"""Nothing: those of each group."""
GO_ON = 75
"""The measuring process ends with this when it has written down a failure after which its device cannot be used."""
ENOUGH = 76
"""... when --stop-after has passed."""
IN_VAIN = 3
"""Processes in a row that ended without a measurement: then something is wrong with all of it."""


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--part", type=words, default=["main"], help=f"of {', '.join(PARTS)}; several with commas")
    add("--models", help=f"of {', '.join(MODELS)}; by default those of the part")
    add("--workloads", type=words, help=f"of {', '.join(WORKLOADS)}; default: all for main, W1 otherwise")
    add("--subjects", type=words, default=[], help=f"of {', '.join(SUBJECTS)}; default: those of the part")
    groups = "memory: fit,tight; reuse: paper,workers,lane"
    add("--groups", type=words, default=[], help=groups)
    add("--workers", type=numbers, help="default: all cores but one, and 4; reuse: those of the group")
    add("--samples", type=int, default=12_288, help="of an epoch of the part reuse")
    add("--batch", type=int, default=0, help="instead of the model's own batch size")
    add("--crew", type=numbers, default=[4, 8, 12, 8, 4], help="workers, one number after the other")
    add("--period", type=float, default=8.0, help="seconds for each of --crew")
    add("--steps", type=int, default=1000, help="of --groups tight")
    add("--seconds", type=float, default=6.0)
    add("--warmup", type=float, default=5.0)
    add("--repeats", type=int, default=2)
    add("--device", default="cuda", help="cpu: everything but the lane, to try the script out")
    add("--data", help="photos: a folder (flat or of class folders) or a tar file; by default generated")
    add("--generate", type=int, default=1000, help="photos, without --data")
    add("--cold", action="store_true", help="drop the photos from the page cache before each subject")
    add("--out", type=Path, default=ROOT / ".cache" / "gpu" / "rows.jsonl")
    add(
        "--resume",
        action="store_true",
        help="keep what is in --out, failures too; to repeat one, delete its line",
    )
    add("--stop-after", type=float, default=float("inf"), help="seconds; begin nothing that would end later")
    add("--plan", action="store_true", help="only say what would be measured")
    add("--report", action="store_true", help="only tables of what is in --out")
    add("--measuring", type=int, help=argparse.SUPPRESS)  # from this byte of --out on
    return parser.parse_args(arguments)


def has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def choice_of(args: argparse.Namespace, part: str) -> Choice:
    models = words(args.models or DEFAULT_MODELS.get(part, "resnet18"))
    cores = os.cpu_count() or 2
    return Choice(
        models=models,
        workloads=args.workloads or DEFAULT_WORKLOADS.get(part, ["W1"]),
        subjects=args.subjects,
        workers=args.workers or ([] if part == "reuse" else [max(1, cores - 1), 4]),
        groups=args.groups,
        repeats=args.repeats,
        batch=args.batch,
        seconds=args.seconds,
        warmup=args.warmup,
        period=args.period,
        crew=args.crew,
        steps=args.steps,
        dali=has("nvidia.dali"),
        spdl=has("spdl.io"),
        samples=args.samples,
        cores=cores,
    )


def planned(args: argparse.Namespace) -> list[Job]:
    return [job for part in args.part for job in PARTS[part](choice_of(args, part))]


def to_do(args: argparse.Namespace, since: int) -> list[Job]:
    return pending(planned(args), read_rows(args.out, since))


def whole_s(args: argparse.Namespace, jobs: list[Job]) -> float:
    return sum(
        estimate_s([job for job in jobs if job.part == part], choice_of(args, part)) for part in args.part
    )


# ---- the process that measures


def measure(args: argparse.Namespace) -> int:
    """Everything that is left to do; a device that is beyond use ends the process."""
    from _gpu_run import Bench

    bench = Bench(args)
    for job in to_do(args, args.measuring):
        chosen = choice_of(args, job.part)
        if time.time() + expected_s(job, chosen) > args.stop_after:
            return ENOUGH
        say(f"{time.strftime('%H:%M:%S')} {job}")
        found = bench.made(job, chosen)
        append_row(args.out, job, found)
        say(f"    {bench.said(found)}")
        if not bench.usable():
            return GO_ON
    return 0


# ---- the process that watches


def watch(arguments: list[str], args: argparse.Namespace, since: int) -> None:
    """Start the measuring process, again and again while anything is left; what it died of is an error of what it was doing."""
    ends_at, in_vain = time.time() + args.stop_after, 0
    while (jobs := to_do(args, since)) and in_vain < IN_VAIN:
        command = [sys.executable, __file__, *arguments, "--measuring", str(since)]
        code = ran([*command, "--out", str(args.out), "--stop-after", str(ends_at)])
        left = to_do(args, since)
        if code == ENOUGH:
            say(f"{len(left)} measurements are left: --resume makes them")
            return
        in_vain = in_vain + 1 if len(left) == len(jobs) else 0
        if code not in (0, GO_ON) and left:
            append_row(
                args.out, left[0], {"error": f"the process ended with {code}: hung, crashed or killed"}
            )
            say(f"    {left[0]}: the process ended with {code}")


def ran(command: list[str]) -> int:
    """The exit code; whatever the process leaves behind in its group ends with it."""
    with subprocess.Popen(command, process_group=0) as child:
        try:
            return child.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def report(arguments: list[str], args: argparse.Namespace, since: int) -> None:
    rows = read_rows(args.out, since)
    print(_gpu_report.text(rows))
    gpus = sorted({row["gpu"] for row in rows if "gpu" in row})
    facts = {"gpu": ", ".join(gpus), **_machine.describe(ROOT)}
    print(f"\nscripts/bench gpu {shlex.join(arguments)}\nmedians [least-greatest]; ", end="")
    print(", ".join(f"{name} {value}" for name, value in facts.items()))


def main(arguments: list[str]) -> int:
    args = parsed(arguments)
    if args.measuring is not None:
        return measure(args)
    since = args.out.stat().st_size if args.out.exists() and not (args.resume or args.report) else 0
    if not args.report:
        jobs = to_do(args, since)
        minutes = whole_s(args, jobs) / 60
        say(
            f"{len(jobs)} measurements, about {minutes:.1f} minutes{'' if has('nvidia.dali') else '; DALI is not installed'}"
        )
        if args.plan:
            print("\n".join(map(str, jobs)))
            return 0
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        watch(arguments, args, since)
    report(arguments, args, since)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
