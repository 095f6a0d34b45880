"""The paper's division of batches beside ours, simulated: scripts/bench sim_division [--jobs 1000] [--batches 120] [--out FILE]

Each job is random (`penstock.sim.division_jobs`) and played with every rule, in idle and in concurrent mode. Times are over the least possible.
Nothing is measured here. `--from FILE` prints the tables of earlier rows. Rows that are in `--out` already are not played again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from penstock.policy.sharing import Sharing
from penstock.sim.division import DivisionTimes, Rule, play
from penstock.sim.division_jobs import BATCHES, CostSpread, draw_job

Row = dict[str, Any]
MODES = (Sharing.IDLE, Sharing.CONCURRENT)
DIFFERS = 0.02
"""Difference of two times that counts as one being better."""
BEST = "best"
"""The mode in which a rule is faster, as both systems choose it by measurement."""


def row_of(seed: int, batches: int = BATCHES) -> Row:
    job = draw_job(seed, batches=batches)
    return {
        "seed": seed,
        "workers": [job.workers, job.workers_later],
        "batch": job.batch,
        "tiny": job.tiny,
        "window": job.window,
        "costs": job.costs,
        "alone_over_training": round(job.alone_over_training, 3),
        "speed": round(job.speed, 2),
        "launch_samples": round(job.launch_samples, 2),
        "beside": round(job.beside, 2),
        "burden": round(job.burden, 2),
        **{mode: {rule: [round(one, 4) for one in play(job, rule, mode)] for rule in Rule} for mode in MODES},
    }


def times(row: Row, mode: str, rule: Rule, what: str) -> float:
    at = DivisionTimes._fields.index(what)
    modes = MODES if mode == BEST else (mode,)
    return float(min(row[one][rule][at] for one in modes))


def is_steady(row: Row) -> bool:
    return bool(row["workers"][0] == row["workers"][1])


KINDS: list[tuple[str, str, str, Callable[[Row], bool]]] = [
    ("all", BEST, "settled", is_steady),
    ("in idle mode", "idle", "settled", is_steady),
    ("in concurrent mode", "concurrent", "settled", is_steady),
    ("workers suffice (below 0.9)", BEST, "settled", lambda row: is_steady(row) and row["alone_over_training"] < 0.9),
    ("balanced (0.9 to 1.5)", BEST, "settled", lambda row: is_steady(row) and 0.9 <= row["alone_over_training"] < 1.5),
    ("workers short (1.5 to 3)", BEST, "settled", lambda row: is_steady(row) and 1.5 <= row["alone_over_training"] < 3),
    ("workers far short (above 3)", BEST, "settled", lambda row: is_steady(row) and row["alone_over_training"] >= 3),
    *((f"costs: {costs}", BEST, "settled", lambda row, costs=costs: is_steady(row) and row["costs"] == costs) for costs in CostSpread),
    ("launch below 1 sample", BEST, "settled", lambda row: is_steady(row) and row["launch_samples"] < 1),
    ("launch above 1 sample", BEST, "settled", lambda row: is_steady(row) and row["launch_samples"] >= 1),
    ("1 to 4 workers", BEST, "settled", lambda row: is_steady(row) and row["workers"][0] <= 4),
    ("5 to 16 workers", BEST, "settled", lambda row: is_steady(row) and row["workers"][0] > 4),
    ("the first quarter of the batches", BEST, "early", is_steady),
    ("all batches", BEST, "whole", is_steady),
    ("workers change, all batches", BEST, "whole", lambda row: not is_steady(row)),
    ("… to fewer", BEST, "whole", lambda row: row["workers"][1] < row["workers"][0]),
    ("… to more", BEST, "whole", lambda row: row["workers"][1] > row["workers"][0]),
]  # fmt: skip


def spread(values: Sequence[float]) -> str:
    """Return the median and the 10th and 90th percentile."""
    low, high = (sorted(values)[int(share * (len(values) - 1))] for share in (0.1, 0.9))
    return f"{median(values):.3f} [{low:.2f}-{high:.2f}]"


def table(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"| jobs | | {' | '.join(Rule)} | ours better, worse than ahead |",
        "|---|" + "---:|" * (len(Rule) + 2),
    ]
    for name, mode, what, belongs in KINDS:
        some = [row for row in rows if belongs(row)]
        if not some:
            continue
        cells = [spread([times(row, mode, rule, what) for row in some]) for rule in Rule]
        ratios = [times(row, mode, Rule.OURS, what) / times(row, mode, Rule.AHEAD, what) for row in some]
        better = sum(ratio < 1 / (1 + DIFFERS) for ratio in ratios) / len(some)
        worse = sum(ratio > 1 + DIFFERS for ratio in ratios) / len(some)
        lines.append(f"| {name} | {len(some)} | {' | '.join(cells)} | {better:.0%}, {worse:.0%} |")
    return lines


def read(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000, help="random jobs to play (1000)")
    parser.add_argument("--batches", type=int, default=BATCHES, help=f"batches of a job ({BATCHES})")
    parser.add_argument(
        "--out", type=Path, help="add rows to this file of JSON lines, and go on where it ends"
    )
    parser.add_argument("--from", dest="rows", type=Path, help="print the tables of these rows; play nothing")
    options = parser.parse_args()
    if options.rows:
        print("\n".join(table(read(options.rows))))
        return 0
    rows, begin_s = read(options.out) if options.out else [], time.monotonic()
    for seed in range(len(rows), options.jobs):
        rows.append(row_of(seed, options.batches))
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1], separators=(",", ":")) + "\n")
        if sys.stderr.isatty():
            print(f"\r{len(rows)} of {options.jobs}", end="", file=sys.stderr, flush=True)
    print("\n".join(table(rows)))
    print(f"simulated in {time.monotonic() - begin_s:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
