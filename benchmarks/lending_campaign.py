"""Faults at random moments of jobs whose ranks lend cores to one another: scripts/bench lending_campaign [--faults 1000] [--jobs 2] [--out FILE]

Each seed is a job of two or three ranks (`tests/fault/lending_schedules.py`): the manager of cores, the node process, agents, workers and whole ranks are
killed, or stopped and continued; every batch is compared with what one process alone delivers. A row per job is appended to
results/lending/faults.jsonl, so a campaign that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from _campaign import ROOT, Row, play
from _lines import read_lines

MODULE = "tests.fault.lending_schedules"
CHUNK = 4
"""Jobs of one process."""
OUT = ROOT / "benchmarks" / "results" / "lending" / "faults.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=1000, help="how many in all (1000)")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at a time (2)")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    play(MODULE, options.faults, options.jobs, options.out, chunk=CHUNK)
    rows = read_lines(options.out)
    for line in table(rows):
        print(line)
    wrong = [row for row in rows if not row["ok"]]
    for row in wrong:
        print(json.dumps(row))
    return 1 if wrong else 0


def table(rows: list[Row]) -> list[str]:
    """Return a table of all jobs: their faults and outcomes."""
    kinds = Counter[str]()
    for row in rows:
        kinds.update(row.get("kinds", {}))
    fine = [row for row in rows if row["ok"]]
    lines = ["", "| fault | times |", "|---|---:|"]
    lines += [f"| {kind} | {times:,} |" for kind, times in kinds.most_common()]
    lines += [f"| **all** | **{kinds.total():,}** |", ""]
    lines.append(
        f"{len(rows):,} jobs, {len(rows) - len(fine):,} wrong; {total(fine, 'batches'):,} batches; {total(fine, 'moves'):,} moves of cores seen; "
        f"{total(fine, 'living'):,} of the faults came when cores had just moved"
    )
    lines.append(f"longest step of each job: {spread([row['longest_s'] for row in fine])}")
    back_s = [time_s for row in fine for time_s in row["back_s"]]
    lines.append(f"all ranks had another manager after a killed one: {spread(back_s)}")
    home_s = [row["home_s"] for row in fine if row["home_s"] is not None]
    lines.append(f"at the end of training all cores were back: {spread(home_s)}")
    return lines


def total(rows: Sequence[Row], key: str) -> int:
    return sum(row[key] for row in rows)


def spread(times_s: Sequence[float]) -> str:
    if not times_s:
        return "never seen"
    times_s = sorted(times_s)
    return f"median {times_s[len(times_s) // 2]} s, most {times_s[-1]} s"


if __name__ == "__main__":
    sys.exit(main())
