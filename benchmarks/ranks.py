"""Ranks that train in step, and whose samples cost different: scripts/bench ranks [--case 2x1,…]

Real ranks (torchrun, gloo) with a barrier in every step. Subjects:

  ours    cores go where they are needed
  alone   ours, with PENSTOCK_LENDING=0: every rank has its own workers for good
  paper   ours, with the paper's rule
  torch   torch's DataLoader
  spread  ours alone, with the same work spread evenly over all samples: what cannot be beaten where costs are known

Cases: `NxW` ranks and workers; `-cpu` samples use a core, `-sleep` they sleep (for more ranks than there are cores); `dear`: the samples of one rank are
three times as dear; `random`: costs differ by chance; `equal`: all alike, and training waits; `ahead`: all alike, and it does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from _lines import Row
from _rows import Rows, met, options_of, spread, table

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
    costs: str
    sleeps: bool
    train_ms: float = 5.0
    sample_ms: float = 4.0
    goals: tuple[Goal, ...] = ()


EVEN = (Goal("spread", "step_ms", 1.1),)
FREE = (Goal("alone", "step_ms", 1.01), Goal("alone", "cpu_ms", 1.01))
CASES = {
    "2x1-cpu-dear": Case(2, 1, "dear", sleeps=False, goals=EVEN),
    "4x1-sleep-dear": Case(4, 1, "dear", sleeps=True, goals=EVEN),
    "4x3-sleep-dear": Case(4, 3, "dear", sleeps=True, goals=EVEN),
    "4x3-cpu-dear": Case(4, 3, "dear", sleeps=False, goals=EVEN),
    "2x1-cpu-random": Case(2, 1, "random", sleeps=False),
    "4x3-sleep-random": Case(4, 3, "random", sleeps=True),
    "4x3-cpu-random": Case(4, 3, "random", sleeps=False),
    "2x1-cpu-equal": Case(2, 1, "equal", sleeps=False, goals=FREE[:1]),
    "2x1-cpu-ahead": Case(2, 1, "equal", sleeps=False, train_ms=60.0, sample_ms=1.0, goals=FREE),
    "1x1-cpu-equal": Case(1, 1, "equal", sleeps=False, goals=FREE[:1]),
}
HERE_NOW = (
    "2x1-cpu-dear",
    "4x3-sleep-dear",
    "2x1-cpu-random",
    "4x3-sleep-random",
    "2x1-cpu-equal",
    "2x1-cpu-ahead",
)


def measured(case: Case, subject: str, steps: int, batch: int) -> Row:
    costs = "equal" if subject == "spread" else case.costs
    spec = {
        "subject": subject, "costs": costs, "sleeps": case.sleeps, "workers": case.workers, "batch": batch, "sample_ms": case.sample_ms,
        "train_ms": case.train_ms, "steps": steps, "warm": 10,
    }  # fmt: skip
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(case.ranks),
        str(HERE / "_ranks_rank.py"), json.dumps(spec),
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
    wanted = (steps + 10) * batch * case.ranks
    if row["samples"] != wanted:
        raise RuntimeError(f"{row['samples']} samples came, not {wanted}")
    return row


def main() -> int:
    parser = options_of(__doc__, "ranks", repeats=5, kept="lending/ranks.jsonl")
    parser.add_argument(
        "--case", default=",".join(HERE_NOW), help=f"some of {', '.join(CASES)} ({','.join(HERE_NOW)})"
    )
    parser.add_argument("--only", default=",".join(SUBJECTS), help=f"subjects ({','.join(SUBJECTS)})")
    parser.add_argument("--steps", type=int, help="measured (80; 20 with --quick)")
    parser.add_argument("--batch", type=int, default=16, help="samples of a rank's batch (16)")
    options = parser.parse_args()
    rows = Rows(options)
    cases, subjects = options.case.split(","), options.only.split(",")
    if unknown := {*cases} - {*CASES} | {*subjects} - {*SUBJECTS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    steps = options.steps or (20 if options.quick else 80)
    rows.expect(rows.repeats * len(cases) * len(subjects))
    for number in range(rows.repeats):
        for name in cases:
            for subject in subjects if number % 2 == 0 else subjects[::-1]:
                facts = {"case": name, "subject": subject, "round": number}
                rows.measure(facts, partial(measured, CASES[name], subject, steps, options.batch))
    report(rows, cases, subjects)
    return rows.close()


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
