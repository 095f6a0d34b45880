"""How long ranks wait for each other at a barrier, by where their bytes wait: scripts/bench cache_barrier [--ranks 4]

Real ranks on one emulated machine train in step: a step is a sleep, then a barrier. The source is throttled so that it serves what a subject misses in
`--load` of the training's time. Which samples are missed is chance, so ranks miss unevenly.

  node      one pool for all ranks: the cache as it is
  rank      a pool for each rank (its own node process, without peers), each with as much memory as *node* has in all: it misses as much
  rank-part likewise, with its part of that memory: it misses more
  blocking  no cache: workers read by themselves, a sample at a time
  idle      nothing is loaded: what the barrier takes by itself

Figures are the mean wait at the barrier over ranks and steps, without *idle*'s in the same round, and the time of a step over the training's alone; of
epochs after the first.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from _cache_samples import make, total_bytes
from _group import Group, Row
from _rows import Rows, met, options_of, spread, table

HERE = Path(__file__).resolve().parent
LIMIT_S = 600.0
SUBJECTS = ("node", "rank", "rank-part", "blocking", "idle")
GOAL = 3.0
"""Times that the mean wait is less with one pool than with one for each rank."""


def misses_of(subject: str, share: float, ranks: int) -> float:
    """Share of the bytes that a subject reads from the source, once it is warm."""
    held = {"node": share, "rank": share, "rank-part": share / ranks}
    return 1 - held.get(subject, 0.0)


def measured(group: Group, spec: Row, subject: str, options: Any) -> Row:
    data = total_bytes(spec["samples"], spec["mean"])
    per_step = spec["batch"] * group.world * data / spec["samples"]
    misses = misses_of(subject, options.share, group.world)
    rate = misses * per_step / (options.load * spec["step_ms"] / 1000)
    group.store.set(mb_per_s=rate / 1e6)
    memory = round(options.share * data / (group.world if subject == "rank-part" else 1))
    cache = {"memory": memory, "peers": "auto" if subject == "node" else "off"}
    asked = {**spec, "cache": None if subject in ("blocking", "idle") else cache, "idle": subject == "idle"}
    pools = "rank" if subject.startswith("rank") else "node"
    lines = group.run(HERE / "_cache_rank.py", asked, limit_s=LIMIT_S, pools=pools)[0]
    epochs = [row for row in lines if row["at"] == "epoch"][1:]
    steps = spec["samples"] / (spec["batch"] * group.world)
    return {
        "wait_ms": statistics.fmean(row["wait_ms"] for row in epochs),
        "wait_ms_p95": max(row["wait_ms_p95"] for row in epochs),
        "step_over_ideal": statistics.fmean(
            1000 * row["seconds"] / steps / spec["step_ms"] for row in epochs
        ),
        "served": statistics.fmean(row["served"] / data for row in epochs),
        "source_mb_per_s": rate / 1e6,
        "cache": epochs[-1]["cache"],
    }


def main() -> int:
    parser = options_of(__doc__, "cache_barrier", repeats=3, kept="cache/barrier.jsonl")
    parser.add_argument("--ranks", type=int, default=4, help="(4)")
    parser.add_argument("--share", type=float, default=0.7, help="of the data that the cache holds (0.7)")
    parser.add_argument("--load", type=float, default=0.9, help="of the source (0.9)")
    parser.add_argument("--step-ms", type=float, default=60.0, help="of training (60)")
    parser.add_argument("--batch", type=int, default=16, help="samples of a rank's batch (16)")
    parser.add_argument("--kb", type=int, default=20, help="mean size of a sample (20)")
    parser.add_argument("--latency-ms", type=float, default=10.0, help="of the store (10)")
    parser.add_argument("--steps", type=int, help="of an epoch (100; 40 with --quick)")
    parser.add_argument("--prefetch", type=int, help="batches ahead; the loader's own choice by default")
    parser.add_argument("--only", default=",".join(SUBJECTS), help=f"subjects ({','.join(SUBJECTS)})")
    parser.add_argument("--loopback", action="store_true", help="no namespaces")
    options = parser.parse_args()
    rows = Rows(options)
    subjects = options.only.split(",")
    rows.expect(rows.repeats * len(subjects))
    steps = options.steps or (40 if options.quick else 100)
    spec = {
        "samples": steps * options.batch * options.ranks,
        "mean": 1000 * options.kb,
        "batch": options.batch,
        "epochs": 2 if options.quick else 3,
        "step_ms": options.step_ms,
        "prefetch": options.prefetch,
    }
    with tempfile.TemporaryDirectory(prefix="penstock-objects-") as folder:
        make(Path(folder), spec["samples"], spec["mean"])
        with Group(
            1, options.ranks, Path(folder), namespaces=not options.loopback, latency_ms=options.latency_ms
        ) as group:
            for number in range(rows.repeats):
                for subject in subjects if number % 2 == 0 else subjects[::-1]:
                    facts = {"subject": subject, "round": number, "ranks": options.ranks}
                    rows.measure(facts, partial(measured, group, spec, subject, options))
    report(rows, subjects)
    return rows.close()


def waits(rows: Rows, subject: str) -> dict[int, float]:
    """Return the mean wait of each round, without the barrier's own."""
    own = {row["round"]: row["wait_ms"] for row in rows.of(subject="idle")}
    return {
        row["round"]: max(0.01, row["wait_ms"] - own.get(row["round"], 0.0))
        for row in rows.of(subject=subject)
    }


def report(rows: Rows, subjects: list[str]) -> None:
    header = ["pools", "wait, ms", "by node's", "p95, ms", "step / ideal", "served", "goal", "met"]
    lines, node = [], waits(rows, "node")
    for subject in subjects:
        facts = {"subject": subject}
        own = waits(rows, subject) if subject != "idle" else {}
        ratios = [wait / node[number] for number, wait in own.items() if number in node]
        judged = subject == "rank"
        lines.append(
            [
                subject,
                spread(list(own.values()) or rows.values("wait_ms", **facts)),
                spread(ratios) if subject != "node" else "",
                spread(rows.values("wait_ms_p95", **facts)),
                spread(rows.values("step_over_ideal", **facts)),
                spread(rows.values("served", **facts)),
                f"≥ {GOAL:g}x" if judged else "",
                met(ratios, lambda ratio: ratio >= GOAL) if judged else "",
            ]
        )
    print(table(header, lines))


if __name__ == "__main__":
    sys.exit(main())
