"""Faults at random moments of trainings with a cache: scripts/bench cache_campaign [--faults 500] [--jobs 2] [--out FILE]

Each seed is a run of `tests/fault/cache_schedules.py`: the cache's service, the node process, agents, workers and another rank are killed or stopped,
the disk tier's files are removed, cut or rot, epochs are left, the loader is resumed; every batch is compared with what one process alone
delivers. A row per run is appended to out/cache_faults.jsonl, so a campaign that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from subprocess import Popen
from typing import IO

from _campaign import POLL_S, ROOT, Row, rows_of, start
from _lines import append_line, read_lines

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
    play(options.faults, options.jobs, options.out)
    rows = read_lines(options.out)
    for line in table(rows):
        print(line)
    wrong = [row for row in rows if not row["ok"]]
    for row in wrong:
        print(json.dumps(row))
    return 1 if wrong else 0


def play(faults: int, jobs: int, out: Path) -> None:
    """Play seeds that were not played, until there are so many faults."""
    done = {row["seed"] for row in read_lines(out)}
    running: list[tuple[Popen[str], IO[str], range]] = []
    at = 0
    while running or count(out) < faults:
        while len(running) < jobs and count(out) < faults:
            part = range(at, at + CHUNK)
            at += CHUNK
            if not done.issuperset(part):
                running.append((*start(MODULE, part), part))
        time.sleep(POLL_S)
        for process, said, part in [entry for entry in running if entry[0].poll() is not None]:
            running.remove((process, said, part))
            for row in rows_of(process, said, part):
                if row["seed"] not in done:
                    append_line(out, row)
            print(f"{count(out)} of {faults} faults", flush=True)


def count(out: Path) -> int:
    return sum(row.get("faults", 0) for row in read_lines(out))


def table(rows: list[Row]) -> list[str]:
    """What was done, and what came of it."""
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
