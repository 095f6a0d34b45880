"""Interleaved measurements of two subjects, and what may be said about them.

Rule 1: every measurement runs in a fresh process, so that none inherits another's caches, threads or descriptors.
Rule 2: one round measures every case once for every subject, back to back; the subjects swap places each round. Ratios are
        taken inside a round, so slow drift of the machine cancels.
Rule 3: a figure is a median with its least and greatest value. A single number is never printed.
Rule 4: what other programs used of the machine meanwhile is measured too, and printed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import _machine

OURS = "ours"
PEER = "torch"
LIMIT = "limit"
FAILED_LINES = 12
SETTLE_STEP_S = 0.5
SHARED_MACHINE = 0.05
"""Share of the cores' time used by others above which the results are marked."""
IDLE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on our own figure ("value") or on ours divided by the peer's in the same round ("ratio")."""

    of: Literal["value", "ratio"]
    sense: Literal[">=", "<="]
    bound: float

    def __str__(self) -> str:
        sign = {">=": "≥", "<=": "≤"}[self.sense]
        return f"{sign} {self.bound:,g}{'x' if self.of == 'ratio' else ''}"

    def met_by(self, value: float) -> bool:
        return value >= self.bound if self.sense == ">=" else value <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement: a function of `_measures` with its parameters; its result is a mapping of figures."""

    name: str
    measure: str
    params: Mapping[str, object]
    limit_measure: str | None = None
    """The measurement of what the hardware allows, where there is one; it takes the same parameters."""

    with_peer: bool = True
    """False for what the peer has no counterpart of."""

    @property
    def subjects(self) -> list[str]:
        return [OURS, *([PEER] if self.with_peer else []), *([LIMIT] if self.limit_measure else [])]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: one figure of one case."""

    line: str
    title: str
    case: str
    figure: str
    unit: str
    goal: Goal | None = None
    has_limit: bool = False
    """Whether the case's limit speaks of this figure."""


@dataclass(slots=True)
class Results:
    """Figures by case and subject, one mapping per round; None where the measurement failed."""

    rounds: dict[tuple[str, str], list[dict[str, float] | None]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    others_cpu_share: list[float] = field(default_factory=list)

    def add(self, case: str, subject: str, outcome: Outcome) -> None:
        self.rounds.setdefault((case, subject), []).append(outcome.figures)
        self.others_cpu_share.append(outcome.others_cpu_share)
        if outcome.figures is None:
            self.failures.append(f"{case}, {subject}: {outcome.error}")

    def values(self, case: str, subject: str, figure: str) -> list[float]:
        return [figures[figure] for figures in self.rounds.get((case, subject), ()) if figures is not None]

    def ratios(self, case: str, figure: str) -> list[float]:
        """Ours divided by the peer's, for each round in which both succeeded."""
        pairs = zip(self.rounds.get((case, OURS), ()), self.rounds.get((case, PEER), ()), strict=False)
        return [ours[figure] / peer[figure] for ours, peer in pairs if ours and peer and peer[figure]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one measurement."""

    figures: dict[str, float] | None
    error: str
    others_cpu_share: float
    """Part of all cores' time that went to processes not ours while it ran."""


class Runner(Protocol):
    """Makes one measurement. Called from one thread, one call at a time."""

    def __call__(self, case: Case, subject: str) -> Outcome: ...


def schedule(cases: Sequence[Case], rounds: int) -> list[tuple[Case, str]]:
    """All measurements in the order they are made."""
    order: list[tuple[Case, str]] = []
    for number in range(rounds):
        for case in cases:
            subjects = case.subjects if number % 2 == 0 else case.subjects[::-1]
            order.extend((case, subject) for subject in subjects)
    return order


def run_all(cases: Sequence[Case], rounds: int, run: Runner, report: Callable[[str], None]) -> Results:
    """Every measurement of every round; `report` is told about each before it is made.

    An interrupt ends the run early: what has been measured is worth as much as before.
    """
    results = Results()
    order = schedule(cases, rounds)
    started_s = time.monotonic()
    for done, (case, subject) in enumerate(order):
        left_s = (time.monotonic() - started_s) / done * (len(order) - done) if done else 0.0
        report(
            f"[{done + 1}/{len(order)}] {case.name}: {subject}" + (f", {left_s:.0f} s left" if done else "")
        )
        try:
            results.add(case.name, subject, run(case, subject))
        except KeyboardInterrupt:
            results.failures.append(f"interrupted after {done} of {len(order)} measurements")
            break
    return results


@dataclass(frozen=True, slots=True)
class FreshProcess:
    """The runner of rule 1. `modules` says which module's DataLoader stands for which subject."""

    script: Path
    modules: Mapping[str, str]
    timeout_s: float
    settle_s: float = 0.0
    """How long to wait, before a measurement, for other programs to leave the machine alone."""

    def __call__(self, case: Case, subject: str) -> Outcome:
        _settle(self.settle_s)
        measure = case.limit_measure if subject == LIMIT else case.measure
        spec = {"measure": measure, "module": self.modules.get(subject), "params": dict(case.params)}
        busy_s, used_s, started_s = _machine.busy_cpu_s(), _children_cpu_s(), time.monotonic()
        figures, error = self._call(json.dumps(spec))
        others_s = _machine.busy_cpu_s() - busy_s - (_children_cpu_s() - used_s)
        available_s = (time.monotonic() - started_s) * _machine.cores()
        return Outcome(figures, error, max(0.0, others_s / available_s))

    def _call(self, spec: str) -> tuple[dict[str, float] | None, str]:
        command = [sys.executable, str(self.script), spec]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            out, err = child.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            return None, f"no result after {self.timeout_s:.0f} s"
        finally:
            # Its own session keeps an interrupt of ours from it, so it is ended here, with all that it started.
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if child.returncode != 0:
            return None, f"exit status {child.returncode}\n" + "\n".join(err.splitlines()[-FAILED_LINES:])
        figures: dict[str, float] = json.loads(out.splitlines()[-1])
        return figures, ""


def _settle(patience_s: float) -> None:
    """Wait until the machine is idle but for this process, or patience ends."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        busy_s = _machine.busy_cpu_s()
        time.sleep(SETTLE_STEP_S)
        if _machine.busy_cpu_s() - busy_s <= IDLE_SHARE * SETTLE_STEP_S * _machine.cores():
            return


def progress(line: str) -> None:
    """One changing line on a terminal, one line per measurement in a log."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
    else:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def figure(value: float) -> str:
    """A number with the digits that mean something: three, or all that stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def table(rows: Sequence[Row], results: Results) -> str:
    """The rows in columns, with the goals and whether they are met."""
    header = ["", "what", "unit", "ours", "torch", "ours / torch", "goal", "met", "limit"]
    return columns([header, *(_cells(row, results) for row in rows)])


def columns(lines: list[list[str]]) -> str:
    """Cells under each other, with a rule under the header."""
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    ruled = [lines[0], ["─" * width for width in widths], *lines[1:]]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in ruled)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def sharing(shares: Sequence[float]) -> str:
    """What other programs took of the machine meanwhile, in words."""
    if not shares:
        return "Nothing was measured."
    worst, mean = (f"{figure(share * 100)} %" for share in (max(shares), statistics.fmean(shares)))
    if max(shares) <= SHARED_MACHINE:
        return f"Others used at most {worst} of the cores meanwhile."
    return f"The machine was shared: others used {mean} of the cores on average, {worst} at worst."


def as_json(results: Results, **facts: object) -> dict[str, object]:
    """Everything measured, for machines."""
    return {
        **facts,
        "others_cpu_share": results.others_cpu_share,
        "failures": results.failures,
        "figures": [
            {"case": case, "subject": subject, "rounds": rounds}
            for (case, subject), rounds in results.rounds.items()
        ],
    }


def judged(row: Row, results: Results) -> list[float]:
    """The values that the row's goal speaks of."""
    if row.goal is None:
        return []
    if row.goal.of == "ratio":
        return results.ratios(row.case, row.figure)
    return results.values(row.case, OURS, row.figure)


def _cells(row: Row, results: Results) -> list[str]:
    return [
        row.line,
        row.title,
        row.unit,
        spread(results.values(row.case, OURS, row.figure)) or "—",
        spread(results.values(row.case, PEER, row.figure)) or "—",
        spread(results.ratios(row.case, row.figure)) or "—",
        str(row.goal) if row.goal else "",
        judgement(row.goal, judged(row, results)) if row.goal else "",
        spread(results.values(row.case, LIMIT, row.figure)) if row.has_limit else "",
    ]


def judgement(goal: Goal, values: Sequence[float]) -> str:
    """Whether the median meets the goal, and how many rounds do."""
    if not values:
        return ""
    met = goal.met_by(statistics.median(values))
    return f"{'yes' if met else 'NO'} ({sum(map(goal.met_by, values))} of {len(values)})"


def spread(values: Sequence[float]) -> str:
    """Median [least-greatest]; nothing of no values."""
    if not values:
        return ""
    median, low, high = (figure(value) for value in (statistics.median(values), min(values), max(values)))
    return f"{median} [{low}-{high}]"


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
