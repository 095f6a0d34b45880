"""Cores that move between the ranks of a machine, simulated: scripts/bench sim_ranks [--seeds 3] [--part rules|grid|figure]

Every rank has the engine's own core and the rules are those of the manager; workers, training and messages are played (see docs/benchmarks/ranks.md). Nothing
is measured here. Step times are divided by those of one ideal pool for all ranks of the machine, or compared with ranks that lend nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from _lines import append_line
from _rank_cases import FIGURE, GRID, RULES, WINDOWS

from penstock.sim.rank_load import RankLoad
from penstock.sim.ranks import mean_step_s, play
from penstock.sim.shared_pool import least_step_s, shared_pool

OUT = Path(__file__).parent / "results" / "ranks"
WARM = 0.25
"""Share of the steps before those that count."""
NAMES = ("never", "paper", "evened")
Row = dict[str, Any]


def rows(part: str, load: RankLoad, seeds: int) -> Iterator[Row]:
    """Play a case by all rules."""
    first = round(WARM * load.steps)
    for seed in range(seeds):
        drawn = replace(load, seed=seed)
        pool_s = mean_step_s(shared_pool(drawn), first)
        for rule in NAMES:
            begin_s = time.process_time()
            played = play(replace(drawn, rule=rule))
            yield {
                "part": part, "rule": rule, "pool_ms": 1e3 * pool_s, "least_ms": 1e3 * least_step_s(drawn),
                "step_ms": 1e3 * played.step_s(first), "moves_per_s": played.moves_per_s(first),
                "lent": played.lent_s / load.cores / played.ends_s[-1], "decisions": played.decisions,
                "cpu_s": time.process_time() - begin_s, "load": asdict(replace(drawn, rule=rule)),
            }  # fmt: skip


class Table:
    """Plays cases and keeps their rows."""

    def __init__(self, seeds: int, out: Path) -> None:
        self.seeds = seeds
        out.parent.mkdir(parents=True, exist_ok=True)
        self.out = out
        out.write_text("", "utf-8")

    def play(self, part: str, load: RankLoad) -> dict[str, list[Row]]:
        """Return the rows of a case by rule."""
        found: dict[str, list[Row]] = {name: [] for name in NAMES}
        for row in rows(part, load, self.seeds):
            found[row["rule"]].append(row)
            append_line(self.out, row)
        return found

    def rules(self) -> None:
        print(
            "| ranks x workers, samples | shared pool, ms | no lending | paper | ours | cores moved a second: paper | ours |"
        )
        print("|---|---|---|---|---|---|---|")
        for name, load in RULES.items():
            found = self.play("rules", load)
            pool = statistics.mean(row["pool_ms"] for row in found["never"])
            times = " | ".join(
                spread([row["step_ms"] / row["pool_ms"] for row in found[rule]]) for rule in NAMES
            )
            moves = " | ".join(
                f"{statistics.mean(row['moves_per_s'] for row in found[rule]):.0f}" for rule in NAMES[1:]
            )
            print(f"| {name} | {pool:.1f} | {times} | {moves} |", flush=True)

    def grid(self) -> None:
        print("| batch | " + " | ".join(f"{window} batches ahead" for window in WINDOWS) + " |")
        print("|---" * (1 + len(WINDOWS)) + "|")
        cells: dict[int, list[str]] = {}
        for (size, _), load in GRID.items():
            found = self.play("grid", load)
            both = (
                statistics.mean(row["step_ms"] / row["pool_ms"] for row in found[rule])
                for rule in ("never", "evened")
            )
            cells.setdefault(size, []).append(" → ".join(f"{ratio:.3f}" for ratio in both))
        for size, line in cells.items():
            print(f"| {size} | " + " | ".join(line) + " |", flush=True)

    def figure(self) -> None:
        print(
            "| training / preparation | batches ahead | shared pool | paper | ours |\n|---|---|---|---|---|"
        )
        for (share, window), load in FIGURE.items():
            found = self.play("figure", load)
            alone = [row["step_ms"] for row in found["never"]]
            pool = gain(alone, [row["pool_ms"] for row in found["never"]])
            gains = " | ".join(gain(alone, [row["step_ms"] for row in found[rule]]) for rule in NAMES[1:])
            print(f"| {share:g} | {window} | {pool} | {gains} |", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def gain(before: list[float], after: list[float]) -> str:
    gains = [one / other - 1 for one, other in zip(before, after, strict=True)]
    return f"{statistics.median(gains):+.1%} ({min(gains):+.1%} to {max(gains):+.1%})"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each case with other samples (3)")
    parser.add_argument("--part", choices=("rules", "grid", "figure"), help="one table only")
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder for the rows of each table, written anew"
    )
    options = parser.parse_args()
    begin_s = time.monotonic()
    for part in (options.part,) if options.part else ("rules", "grid", "figure"):
        table = Table(options.seeds, options.out / f"sim_{part}.jsonl")
        getattr(table, part)()
        print()
    print(f"simulated in {time.monotonic() - begin_s:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
