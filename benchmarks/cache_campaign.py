"""Faults at random moments of trainings with a cache: scripts/bench cache_campaign [--faults 500] [--jobs 2] [--out FILE]

Each seed is a run of `tests/fault/cache_schedules.py`: the cache's service, the node process, agents, workers and another rank are killed or stopped,
the disk tier's files are removed, cut or rot, epochs are left, the loader is resumed; every batch is compared with what one process alone
delivers. A row per run is appended to out/cache_faults.jsonl, so a campaign that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from _campaign import ROOT, Row, play
from _lines import read_lines

MODULE = "tests.fault.cache_schedules"
CHUNK = 2
"""Runs of one process."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=500, help="how many in all (500)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "cache_faults.jsonl")
    options = parser.parse_args()
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
    kinds, served = Counter[str](), Counter[str]()
    for row in rows:
        kinds.update(row.get("kinds", {}))
        served.update(row.get("served", {}))
    lines = ["", "| fault | times |", "|---|---:|"]
    lines += [f"| {kind} | {times:,} |" for kind, times in kinds.most_common()]
    lines += [f"| **all** | **{kinds.total():,}** |", ""]
    waits = sorted(row["longest_s"] for row in rows if row["ok"])
    if waits:
        lines.append(
            f"{len(rows):,} runs, {sum(not row['ok'] for row in rows):,} wrong; the longest wait for a batch in each: "
            f"median {waits[len(waits) // 2]} s, most {waits[-1]} s"
        )
    lines.append(
        f"{sum(row.get('living', 0) for row in rows):,} of the faults came when the cache was just seen to work"
    )
    lines.append(
        "samples by where they came from: " + ", ".join(f"{n:,} {where}" for where, n in served.most_common())
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
