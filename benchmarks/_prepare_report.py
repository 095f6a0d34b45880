"""What `scripts/bench prepare` measured, as tables and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import _machine
from _harness import Goal, Results, columns, judgement, sharing, spread

BASE = "torch_torchvision"
OURS = ("ours", "ours_fast", "adopted")
GOALS = {"ours": Goal("ratio", ">=", 2.0), "ours_fast": Goal("ratio", ">=", 2.4)}
"""Against torch's loader with torchvision and Pillow."""
BEST_PEER = Goal("ratio", ">=", 1.4)
"""Ours without antialias, against the best of the others."""


@dataclass(frozen=True, slots=True)
class Report:
    results: Results
    workloads: Sequence[str]
    titles: Mapping[str, tuple[str, bool]]
    """Of each subject its title, and whether it antialiases."""

    def text(self, facts: Mapping[str, Any]) -> str:
        parts = [self._table(workload) for workload in self.workloads]
        parts += [self._goals(), *(f"{name}: {why}" for name, why in facts["absent"].items())]
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
            busy = self.results.values(workload, name, "cores_busy")
            possible = [_machine.cores() * 1000 / each for each in cpu]
            ratios = spread(self.ratios(workload, name, BASE)) if name != BASE else ""
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
            if name not in OURS
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
                    cells = [spread(rates), judgement(goal, rates), spread(cpu), judgement(goal, cpu)]
                    lines.append([title, workload, str(goal), *cells])
        return columns(lines) if len(lines) > 1 else ""
