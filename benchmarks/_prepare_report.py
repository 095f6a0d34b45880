"""What was measured by `scripts/bench prepare`, as a table, as JSON and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _machine
from _harness import Goal, Results, Spread, figure, progress

BASE = "torch_torchvision"
FLOOR = "floor"
OURS = ("ours", "ours_fast", "adopted")
GOALS = {"ours": Goal("ratio", ">=", 2.0), "ours_fast": Goal("ratio", ">=", 2.4)}
"""Against torch's loader with torchvision and Pillow."""
BEST_PEER = Goal("ratio", ">=", 1.4)
"""Ours without antialias, against the best of the others."""
SHARED_MACHINE = 0.05
"""Share of the cores' time used by others above which the results are marked."""


@dataclass(frozen=True, slots=True)
class Report:
    results: Results
    workloads: Sequence[str]
    titles: Mapping[str, tuple[str, bool]]
    """Of each subject its title, and whether it antialiases."""

    def text(self, facts: Mapping[str, Any]) -> str:
        parts = [self._table(workload) for workload in self.workloads]
        parts += [self._goals(), self._floor(), *(f"{name}: {why}" for name, why in facts["absent"].items())]
        parts.append(
            f"{facts['command']}\n{facts['photos']}, 2 workers, batches of 64, float32; {facts['repeats']} rounds, each measurement "
            f"in a fresh process; median [least-greatest].\n"
            "CPU is of the whole process tree. 'free cores' is what that CPU would allow if nobody else used the cores.\n"
            + ", ".join(f"{name} {value}" for name, value in facts["machine"].items())
            + f"\n{sharing(self.results.others_cpu_share)}"
        )
        return "\n\n".join(part for part in parts if part)

    def _table(self, workload: str) -> str:
        header = [
            workload,
            "antialias",
            "samples/s",
            "/ torchvision",
            "CPU ms/sample",
            "cores busy",
            "free cores",
        ]
        lines = [header]
        for name, (title, antialias) in self.titles.items():
            rates = self.results.values(workload, name, "samples_per_s")
            if not self.results.rounds.get((workload, name)):
                continue
            cpu = self.results.values(workload, name, "cpu_ms_per_sample")
            busy = [] if name == FLOOR else self.results.values(workload, name, "cores_busy")
            possible = [_machine.cores() * 1000 / each for each in cpu]
            ratios = spread(self.ratios(workload, name, BASE)) if name not in (BASE, FLOOR) else ""
            cells = [
                spread(rates) if rates else "failed",
                ratios,
                spread(cpu),
                spread(busy),
                spread(possible),
            ]
            lines.append([title, "yes" if antialias else "no", *cells])
        return columns(lines)

    def ratios(self, workload: str, ours: str, theirs: str, what: str = "samples_per_s") -> list[float]:
        """Inside each round in which both succeeded."""
        rounds = self.results.rounds
        pairs = zip(rounds.get((workload, ours), ()), rounds.get((workload, theirs), ()), strict=False)
        return [mine[what] / other[what] for mine, other in pairs if mine and other]

    def best_peer(self, workload: str) -> str | None:
        """Of those that are not ours and do not antialias, by its median."""
        rates = {
            name: statistics.median(values)
            for name, (_, antialias) in self.titles.items()
            if name not in (*OURS, FLOOR)
            and not antialias
            and (values := self.results.values(workload, name, "samples_per_s"))
        }
        return max(rates, key=lambda name: rates[name]) if rates else None

    def _goals(self) -> str:
        lines = [["goal", "workload", "wanted", "by samples/s", "met", "by CPU per sample", "met"]]
        for workload in self.workloads:
            pairs = [
                (f"{self.titles[name][0]} / torchvision", name, BASE, goal)
                for name, goal in GOALS.items()
                if name in self.titles
            ]
            best = self.best_peer(workload)
            if best and "ours_fast" in self.titles:
                title = f"{self.titles['ours_fast'][0]} / best other ({self.titles[best][0]})"
                pairs.append((title, "ours_fast", best, BEST_PEER))
            for title, mine, other, goal in pairs:
                rates = self.ratios(workload, mine, other)
                cpu = self.ratios(workload, other, mine, "cpu_ms_per_sample")
                if rates:
                    cells = [spread(rates), verdict(goal, rates), spread(cpu), verdict(goal, cpu)]
                    lines.append([title, workload, str(goal), *cells])
        return columns(lines) if len(lines) > 1 else ""

    def _floor(self) -> str:
        """The bare steps, and how near ours comes to their sum."""
        lines = []
        for workload in self.workloads:
            rounds = [figures for figures in self.results.rounds.get((workload, FLOOR), ()) if figures]
            if not rounds:
                continue
            steps = [name for name in rounds[0] if name.endswith("_us")]
            medians = (figure(statistics.median(each[name] for each in rounds)) for name in steps)
            said = ", ".join(
                f"{name.removesuffix('_us')} {value}" for name, value in zip(steps, medians, strict=True)
            )
            shares = [
                f"{self.titles[name][0]} {figure(statistics.median(cpu))}"
                for name in OURS
                if (cpu := self.ratios(workload, FLOOR, name, "cpu_ms_per_sample"))
            ]
            reached = f"; reached, by CPU: {', '.join(shares)}" if shares else ""
            lines.append(f"floor of {workload}, µs on one core: {said}{reached}")
        return "\n".join(lines)

    def as_json(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Everything measured, for machines."""
        return {
            **facts,
            "others_cpu_share": self.results.others_cpu_share,
            "failures": self.results.failures,
            "figures": [
                {"workload": workload, "subject": subject, "rounds": rounds}
                for (workload, subject), rounds in self.results.rounds.items()
            ],
        }

    def plot(self, path: Path) -> str:
        """Bars with their spread, one panel per workload; says what it did."""
        try:
            import matplotlib as mpl
        except ImportError:
            return "no plot: matplotlib is not installed"
        mpl.use("Agg")
        from matplotlib import pyplot as plt

        shown = (("samples_per_s", "samples/s"), ("cpu_ms_per_sample", "CPU ms per sample"))
        names = [name for name in self.titles if name != FLOOR][::-1]
        size = (4.2 * len(self.workloads), 1.2 + 0.6 * len(names))
        drawing, panels = plt.subplots(
            len(shown), len(self.workloads), figsize=size, sharey=True, squeeze=False
        )
        for row, (what, label) in zip(panels, shown, strict=True):
            for panel, workload in zip(row, self.workloads, strict=True):
                for at, name in enumerate(names):
                    if values := self.results.values(workload, name, what):
                        found = Spread.of(values)
                        error = [[found.median - found.low], [found.high - found.median]]
                        colour = "#1f6f8b" if name in OURS else "#b0b0b0"
                        panel.barh(at, found.median, color=colour, xerr=error, error_kw={"lw": 1})
                panel.set_title(workload)
                panel.set_xlabel(label)
                panel.set_yticks(range(len(names)), [self.titles[name][0] for name in names])
        drawing.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
        return f"plot: {path}\n"


def profile(root: Path, workloads: Sequence[str]) -> int:
    """Where our own time goes, printed."""
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    import _prepare_floor
    from _prepare_subjects import Setting

    found = {}
    for workload in workloads:
        setting = Setting(workload=workload, root=str(root), batch_size=64, workers=2)
        for fast in (False, True):
            progress(f"profiling {workload}, fast={fast}")
            title = f"{workload}{', fast' if fast else ''}"
            found[title] = _prepare_floor.profile(setting, fast=fast)
    names = sorted(
        {name for parts in found.values() for name in parts}, key=lambda n: (n.startswith("op"), n)
    )
    lines = [["µs of CPU per sample, one core", *found]]
    lines += [[name, *(figure(parts.get(name, 0.0)) for parts in found.values())] for name in names]
    lines.append(["sum", *(figure(sum(parts.values())) for parts in found.values())])
    print(columns(lines))
    return 0


def verdict(goal: Goal, values: Sequence[float]) -> str:
    if not values:
        return ""
    met = goal.met_by(statistics.median(values))
    return f"{'yes' if met else 'NO'} ({sum(map(goal.met_by, values))} of {len(values)})"


def spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    found = Spread.of(values)
    return f"{figure(found.median)} [{figure(found.low)}-{figure(found.high)}]"


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
