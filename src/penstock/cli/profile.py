"""`penstock profile train.py …`: measure what training and its workers can do, each alone; list and forget what is stored."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from penstock.cli.program import Program
from penstock.cli.ranks import this_rank
from penstock.cli.table import aligned
from penstock.errors import ConfigError
from penstock.measure.metric_store import MetricStore, StoredMetrics

ALL = "all"
SHOWN_KEY = 8
ABOUT = """\
Runs a program in a process of its own until its loop is steady, and measures there, each alone: training on batches that are
ready, local workers, and remote ones (remote=penstock.Remote(…)). Then ends it, says whether remote workers pay, and stores the result for
later runs. No weights are changed but the process's own, which end with it. Files that the program itself writes up to then are written.
What stands behind the script belongs to the script."""
EPILOG = """\
examples:
  penstock profile train.py --epochs 3
  penstock profile --seconds 30 --model resnet50 train.py
  penstock profile --list
  penstock profile --forget 1f3a"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledRun:
    """How to profile."""

    seconds: float
    model: str


def add_profile(commands: Any) -> None:
    """Add the command and its options."""
    command = commands.add_parser(
        "profile",
        help="measure what training, local and remote workers can do, each alone",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--seconds", type=seconds, default=10.0, metavar="S", help="measure for about so long (10)"
    )
    command.add_argument(
        "--model", default="", metavar="NAME", help="name of the model, to store the result under"
    )
    command.add_argument("--list", action="store_true", help="show what is stored")
    command.add_argument(
        "--forget", metavar="KEY", help=f"drop stored rows whose key begins so, or {ALL!r} of them"
    )
    command.add_argument("-m", dest="module", action="store_true", help="the script is a module's name")
    command.add_argument("script", nargs="?", help="a Python file, or with -m a module")
    command.add_argument("args", nargs=argparse.REMAINDER, metavar="…", help="arguments of the script")
    command.set_defaults(act=act)


def seconds(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def act(options: argparse.Namespace) -> int:
    if options.forget is not None:
        return forget(options.forget)
    if options.list:
        return show()
    if options.script is None:
        raise ConfigError("give a script, --list or --forget: see penstock profile --help")
    program = Program(script=options.script, args=tuple(options.args), module=options.module)
    return run(program, ProfiledRun(seconds=options.seconds, model=options.model))


def run(program: Program, job: ProfiledRun) -> int:
    """Run the program until it is measured. Rank 0 alone prints what it found."""
    from penstock.cli.watched import TAIL_LINES, child

    rank = this_rank()
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile("w+") as output,
        child(program, job, output, "penstock.cli.profiled") as (process, messages),
    ):
        with os.fdopen(os.dup(messages)) as lines:
            for line in lines:
                found |= json.loads(line)
                if not rank.number and "stage" in found:
                    print(f"penstock: measuring {found.pop('stage')}", file=sys.stderr, flush=True)
        code = process.wait()
        output.seek(0)
        tail = "".join(output.readlines()[-TAIL_LINES:]).rstrip()
    if "profile" in found:
        if not rank.number:
            print(found["profile"])
        return 0
    raise ConfigError(problem(program.script, found, code, tail))


def problem(script: str, found: dict[str, Any], code: int, tail: str) -> str:
    """Say why there is no profile."""
    if "error" in found:
        return f"{script} cannot be profiled: {found['error']}"
    if code:
        return f"{script} failed before it was measured (exit code {code}):\n{tail}"
    taken = found.get("batches", 0)
    if not taken:
        return f"{script} took no batch from a torch.utils.data.DataLoader: there is nothing to profile"
    return f"{script} ended after {taken} batches, before it was measured: give it more batches or epochs, or fewer --seconds"


def show() -> int:
    store = MetricStore()
    rows = store.rows()
    if not rows:
        print(f"nothing is stored in {store.path}")
        return 0
    head = ["key", "age", "how", "training/s", "local/s", "remote/s", "workers", "model", "what"]
    print("\n".join(aligned([head, *map(listed, rows)], "<><>>>><<")))
    return 0


def listed(row: StoredMetrics) -> list[str]:
    metrics, workload = row.metrics, row.workload
    rates = ["", "", ""]
    if metrics is not None:
        best = max((plan.remote for plan in metrics.plans), default=None)
        rates = [
            f"{rate:,.1f}" if rate is not None else "" for rate in (metrics.training, metrics.local, best)
        ]
    hours = max(0.0, time.time() - row.made_s) / 3600
    age = f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.0f} d"
    workers = f"{workload.get('workers', '?')}+{workload.get('remote_workers', '?')}"
    how = row.how if metrics is not None else "another version"
    names = [str(workload.get("model", ""))[:12], str(workload.get("chain", ""))[:60]]
    return [row.key[:SHOWN_KEY], age, how, *rates, workers, *names]


def forget(key: str) -> int:
    dropped = MetricStore().forget("" if key == ALL else key)
    if key != ALL and not dropped:
        raise ConfigError(f"no stored key begins with {key!r}: see penstock profile --list")
    print(f"forgot {dropped} row{'s' * (dropped != 1)}")
    return 0
