"""What benchmarks in rounds have in common: options, rows in a file, and lines about the machine."""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import _machine
from _harness import columns, progress, sharing, spread
from _lines import Row, append_line

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def options_of(doc: str | None, script: str, *, repeats: int, kept: str) -> argparse.ArgumentParser:
    """`kept`: where rows are kept, below the folder of results."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--repeats", type=int, help=f"rounds ({repeats}; 1 with --quick)")
    where = (RESULTS / kept).relative_to(ROOT)
    parser.add_argument(
        "--out", type=Path, help=f"rows are appended there, as JSON lines ({where}; out/ with --quick)"
    )
    parser.set_defaults(script=script, kept=kept, rounds=repeats)
    return parser


class Rows:
    """Rows of one run, appended to a file as they are made, with the machine and what others took of it meanwhile."""

    def __init__(self, options: argparse.Namespace) -> None:
        usual = ROOT / "out" / Path(options.kept).name if options.quick else RESULTS / options.kept
        self.out: Path = options.out or usual
        self.repeats: int = options.repeats or (1 if options.quick else options.rounds)
        self.command = shlex.join(["scripts/bench", options.script, *sys.argv[1:]])
        self.machine = _machine.describe(ROOT)
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self._began_s = time.monotonic()
        self._done = self._all = 0

    def expect(self, count: int) -> None:
        """Say how many measurements are to come."""
        self._all += count

    def measure(self, facts: Row, how: Callable[[], Row]) -> Row | None:
        """Make one measurement, and keep its row; a failure is kept as a line."""
        title = ", ".join(f"{name} {value}" for name, value in facts.items())
        left_s = (
            (time.monotonic() - self._began_s) / self._done * (self._all - self._done) if self._done else 0.0
        )
        progress(f"[{self._done + 1}/{self._all}] {title}" + (f", {left_s:.0f} s left" if self._done else ""))
        self._done += 1
        try:
            found = how()
        except RuntimeError as exc:
            self.failures.append(f"{title}: {exc}")
            progress(f"FAILED {self.failures[-1]}")
            return None
        row = {**facts, **found}
        self.rows.append(row)
        append_line(self.out, {**row, "command": self.command, "machine": self.machine})
        return row

    def of(self, **facts: Any) -> list[Row]:
        return [row for row in self.rows if all(row.get(name) == value for name, value in facts.items())]

    def values(self, figure: str, **facts: Any) -> list[float]:
        return [row[figure] for row in self.of(**facts) if row.get(figure) is not None]

    def ratios(self, figure: str, ours: Row, other: Row) -> list[float]:
        """Return ours by another's, inside each round."""
        pairs = (
            (a[figure], b[figure])
            for a in self.of(**ours)
            for b in self.of(**other)
            if a["round"] == b["round"]
        )
        return [a / b for a, b in pairs if b]

    def close(self) -> int:
        """Print the end of a report; return the exit status."""
        progress(f"{self._done} measurements in {time.monotonic() - self._began_s:.0f} s\n")
        for failure in self.failures:
            print(f"FAILED {failure}")
        if shares := [row["others_cpu_share"] for row in self.rows if "others_cpu_share" in row]:
            print(sharing(shares))
        print(", ".join(f"{name} {value}" for name, value in self.machine.items()))
        print(f"rows: {self.out}")
        return 1 if self.failures else 0


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return columns([list(header), *map(list, lines)])


def met(values: Sequence[float], goal: Callable[[float], bool]) -> str:
    """Say whether the median meets a goal."""
    if not values:
        return ""
    return f"{'yes' if goal(statistics.median(values)) else 'NO'} ({sum(map(goal, values))} of {len(values)})"


__all__ = ["Rows", "met", "options_of", "progress", "spread", "table"]
