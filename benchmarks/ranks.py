"""Ranks that train in step, and whose samples cost different: scripts/bench ranks [--case 2x1,…]

Real ranks (torchrun, gloo) with a barrier in every step. Subjects:

  ours    cores go where they are needed
  alone   ours, with PENSTOCK_LENDING=0: every rank has its own workers for good
  paper   ours, with the paper's rule
  torch   torch's DataLoader
  spread  ours alone, with the same work spread evenly over all samples: what cannot be beaten where costs are known

Cases: `NxW` ranks and workers; `-cpu` samples use a core, `-sleep` they sleep (for more ranks than there are cores), `-W2` and `-W3` are photos (crop
and flip; RandAugment before that), `-pillow` W3 by torchvision's ops, `-lane` the GPU helps; `dear`: the samples of one rank are three times as dear;
`random`: costs differ by chance; `equal`: all alike, and training waits; `ahead`: all alike, and it does not.

With `random` photos, ours is compared with what the simulator of ranks makes of the costs that were measured before the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from _lines import Row
from _prepare_data import photos
from _ranks_samples import Photos, Spec, timed_photos
from _rows import Rows, met, options_of, progress, spread, table

from penstock.sim.rank_load import RankLoad
from penstock.sim.ranks import play

HERE = Path(__file__).resolve().parent
LIMIT_S = 300.0
SUBJECTS = ("ours", "alone", "paper", "torch", "spread")
ENVIRONMENT = {
    "alone": {"PENSTOCK_LENDING": "0"},
    "spread": {"PENSTOCK_LENDING": "0"},
    "paper": {"PENSTOCK_LENDING_RULE": "paper"},
}


class Goal(NamedTuple):
    over: str
    """Whose step time ours is divided by."""
    figure: str
    most: float


class Case(NamedTuple):
    ranks: int
    workers: int
    samples: str
    costs: str
    train_ms: float = 5.0
    sample_ms: float = 4.0
    ahead: int = 0
    lane: str = "off"
    goals: tuple[Goal, ...] = ()


EVEN = (Goal("spread", "step_ms", 1.1),)
FREE = (Goal("alone", "step_ms", 1.01), Goal("alone", "cpu_ms", 1.01))
CASES = {
    "2x1-cpu-dear": Case(2, 1, "burn", "dear", goals=EVEN),
    "4x1-sleep-dear": Case(4, 1, "sleep", "dear", goals=EVEN),
    "4x3-sleep-dear": Case(4, 3, "sleep", "dear", goals=EVEN),
    "4x3-cpu-dear": Case(4, 3, "burn", "dear", goals=EVEN),
    "4x3-W2-dear": Case(4, 3, "W2", "dear", goals=EVEN),
    "4x3-W2-dear-lane": Case(4, 3, "W2", "dear", lane="concurrent", goals=EVEN),
    "2x1-cpu-random": Case(2, 1, "burn", "random"),
    "4x3-sleep-random": Case(4, 3, "sleep", "random"),
    "4x3-cpu-random": Case(4, 3, "burn", "random"),
    "4x3-W3-random": Case(4, 3, "W3", "random", train_ms=0.0),
    "4x3-W3-random-1": Case(4, 3, "W3", "random", train_ms=0.0, ahead=1),
    "4x3-W3-random-2": Case(4, 3, "W3", "random", train_ms=0.0, ahead=2),
    "4x3-W3-random-lane": Case(4, 3, "W3", "random", train_ms=0.0, lane="concurrent"),
    "4x3-pillow-random": Case(4, 3, "pillow", "random", train_ms=0.0),
    "4x3-pillow-random-1": Case(4, 3, "pillow", "random", train_ms=0.0, ahead=1),
    "4x3-pillow-random-2": Case(4, 3, "pillow", "random", train_ms=0.0, ahead=2),
    "2x1-cpu-equal": Case(2, 1, "burn", "equal", goals=FREE[:1]),
    "2x1-cpu-ahead": Case(2, 1, "burn", "equal", train_ms=60.0, sample_ms=1.0, goals=FREE),
    "4x3-cpu-ahead": Case(4, 3, "burn", "equal", train_ms=60.0, sample_ms=3.0, goals=FREE),
    "1x1-cpu-equal": Case(1, 1, "burn", "equal", goals=FREE[:1]),
}
HERE_NOW = (
    "2x1-cpu-dear",
    "4x3-sleep-dear",
    "2x1-cpu-random",
    "4x3-sleep-random",
    "2x1-cpu-equal",
    "2x1-cpu-ahead",
)
PREDICTIONS = 3
"""Simulated runs of a case."""
WARM, WARM_LANE = 10, 150
"""Steps before the measured ones. A lane first compiles its kernels and finds its share."""


class Source:
    """Photos by their cost, found out once for each workload."""

    def __init__(self, options: Namespace, folder: Path) -> None:
        self._data, self._count, self._folder = options.data, options.photos, folder
        self._found: dict[Path, Photos] = {}

    def photos(self, workload: str, ranks: int) -> tuple[Photos, Path]:
        path = self._folder / f"{workload}-{ranks}.json"
        if path not in self._found:
            root = photos(self._data, self._count, progress)
            self._found[path] = timed_photos(root, workload, ranks, progress)
            path.write_text(json.dumps(self._found[path]), "utf-8")
        return self._found[path], path


def measured(case: Case, subject: str, steps: int, batch: int, source: Source) -> Row:
    spec = Spec(
        subject=subject,
        samples=case.samples,
        costs="spread" if subject == "spread" else case.costs,
        workers=case.workers,
        batch=batch,
        sample_ms=case.sample_ms,
        train_ms=case.train_ms,
        steps=steps,
        warm=WARM if case.lane == "off" else WARM_LANE,
        ahead=case.ahead,
        lane=case.lane,
        photos="",
    )
    if spec.of_photos:
        spec = replace(spec, photos=str(source.photos(case.samples, case.ranks)[1]))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks),
        str(HERE / "_ranks_rank.py"), json.dumps(asdict(spec)),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **ENVIRONMENT.get(subject, {})}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end within {LIMIT_S:.0f} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-12:]))
    row: Row = json.loads(lines[-1])
    if row["samples"] != spec.length(case.ranks):
        raise RuntimeError(f"{row['samples']} samples came, not {spec.length(case.ranks)}")
    return row


def main() -> int:
    parser = options_of(__doc__, "ranks", repeats=5, kept="lending/ranks.jsonl")
    parser.add_argument(
        "--case", default=",".join(HERE_NOW), help=f"some of {', '.join(CASES)} ({','.join(HERE_NOW)})"
    )
    parser.add_argument("--only", default=",".join(SUBJECTS), help=f"subjects ({','.join(SUBJECTS)})")
    parser.add_argument("--steps", type=int, help="measured (80; 20 with --quick)")
    parser.add_argument("--batch", type=int, default=16, help="samples of a rank's batch (16)")
    parser.add_argument("--data", help="folder or tar of photos; generated ones by default")
    parser.add_argument("--photos", type=int, default=240, help="how many of them (240)")
    options = parser.parse_args()
    rows = Rows(options)
    cases, subjects = options.case.split(","), options.only.split(",")
    if unknown := {*cases} - {*CASES} | {*subjects} - {*SUBJECTS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    steps = options.steps or (20 if options.quick else 80)
    with tempfile.TemporaryDirectory(prefix="penstock-ranks-") as folder:
        source = Source(options, Path(folder))
        taken = {
            name: [one for one in subjects if one != "spread" or CASES[name].costs == "dear"]
            for name in cases
        }
        rows.expect(rows.repeats * sum(map(len, taken.values())))
        for number in range(rows.repeats):
            for name, those in taken.items():
                for subject in those if number % 2 == 0 else those[::-1]:
                    facts = {"case": name, "subject": subject, "round": number}
                    rows.measure(facts, partial(measured, CASES[name], subject, steps, options.batch, source))
        report(rows, cases, subjects)
        for name in cases:
            if CASES[name].samples in ("W3", "pillow") and CASES[name].lane == "off":
                predict(rows, name, options.batch, source)
    return rows.close()


def predict(rows: Rows, name: str, batch: int, source: Source) -> None:
    """Say what the simulator makes of the same costs."""
    case = CASES[name]
    costs_s = source.photos(case.samples, case.ranks)[0].costs_s
    gains = []
    for seed in range(PREDICTIONS):
        load = RankLoad(
            seed=seed,
            ranks=case.ranks,
            workers=case.workers,
            batch_size=batch,
            steps=120,
            window=case.ahead or 2 * case.workers,
            train_s=case.train_ms / 1000,
            measured_s=tuple(costs_s),
        )
        never, ours = (play(replace(load, rule=rule)).step_s(30) for rule in ("never", "evened"))
        gains.append(never / ours - 1)
    facts = {"case": name}
    real = [
        1 / one - 1
        for one in rows.ratios("step_ms", {**facts, "subject": "ours"}, {**facts, "subject": "alone"})
    ]
    mean_ms = 1000 * statistics.mean(costs_s)
    print(
        f"{name}: samples of {mean_ms:.2f} ms, spread {statistics.stdev(costs_s) * 1000 / mean_ms:.2f} of it; "
        f"throughput over no lending: simulated {percent(gains)}, measured {percent(real)}"
    )


def percent(gains: list[float]) -> str:
    if not gains:
        return "-"
    return f"{statistics.median(gains):+.1%} [{min(gains):+.1%} to {max(gains):+.1%}]"


def report(rows: Rows, cases: list[str], subjects: list[str]) -> None:
    header = [
        "case",
        "subject",
        "step, ms",
        "ours by it",
        "CPU per step, ms",
        "ours by it",
        "moves per s",
        "goal",
        "met",
    ]
    lines = []
    for case in cases:
        for subject in subjects:
            facts: dict[str, Any] = {"case": case, "subject": subject}
            ours = {"case": case, "subject": "ours"}
            ratios = {figure: rows.ratios(figure, ours, facts) for figure in ("step_ms", "cpu_ms")}
            goals = [goal for goal in CASES[case].goals if goal.over == subject]
            lines.append(
                [
                    case,
                    subject,
                    spread(rows.values("step_ms", **facts)),
                    spread(ratios["step_ms"]) if subject != "ours" else "",
                    spread(rows.values("cpu_ms", **facts)),
                    spread(ratios["cpu_ms"]) if subject != "ours" else "",
                    spread(rows.values("moves_per_s", **facts)) if subject in ("ours", "paper") else "",
                    ", ".join(f"{goal.figure} ≤ {goal.most:g}x" for goal in goals),
                    ", ".join(met(ratios[goal.figure], goal.most.__ge__) for goal in goals),
                ]
            )
    print(table(header, lines))


if __name__ == "__main__":
    sys.exit(main())
