"""Bytes that the source serves per epoch, by policy, cache size and number of machines: scripts/bench cache_traffic [--nodes 1,2,4]

Each cell is a training of its own: real ranks on emulated machines (namespaces with addresses of their own; where those are not allowed, processes on the
loopback interface), over objects of a store that counts what it serves. Machines share a store and nothing else. Every sample is checked, and that it came
once. Figures are bytes served in an epoch / bytes of all samples: *first* of the first epoch, *later* the mean of the others.

The bound: a permutation uses each sample once per epoch, so a source must serve max(0, 1 - N (c - r)) of it, if each of N machines has room for the share c,
less the ring r for what passes through. Goals are for the policy "auto": later <= 1.01 x bound + 0.01, first <= 1.001.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from _cache_samples import make, total_bytes
from _group import Group, Row
from _rows import Rows, met, options_of, table

HERE = Path(__file__).resolve().parent
POLICIES = "auto,lobster,lobster-guarded,lru,no-evict"
LIMIT_S = 600.0
LEAST_BYTES = 1 << 20
"""Of a cache."""


def bound(nodes: int, share: float, ring: float) -> float:
    return max(0.0, 1 - nodes * (share - ring))


def measured(group: Group, spec: Row, policy: str, share: float) -> Row:
    """Train once; return shares of the data that the source served."""
    data = total_bytes(spec["samples"], spec["mean"])
    memory = max(LEAST_BYTES, round(share * data))
    spec = {**spec, "cache": None if policy == "none" else {"memory": memory, "policy": policy}}
    epochs = [
        row for row in group.run(HERE / "_cache_rank.py", spec, limit_s=LIMIT_S)[0] if row["at"] == "epoch"
    ]
    shares = [row["served"] / data for row in epochs]
    cache = epochs[-1]["cache"] or {}
    ring = cache.get("ring_bytes", 0) / data
    return {
        "first": shares[0],
        "later": statistics.fmean(shares[1:]),
        "epochs": shares,
        "ring": ring,
        "bound": bound(group.nodes, share, ring),
        "seconds": [row["seconds"] for row in epochs],
        "cache": cache,
        "emulated": group.is_emulated,
    }


def cells(options: Any) -> Iterator[tuple[str, float]]:
    for share in map(float, options.shares.split(",")):
        for policy in options.policies.split(","):
            yield policy, share
    yield "none", 0.0


def main() -> int:
    parser = options_of(__doc__, "cache_traffic", repeats=1, kept="cache/traffic.jsonl")
    parser.add_argument("--nodes", default="1,2,4", help="numbers of machines (1,2,4)")
    parser.add_argument("--ranks", type=int, default=1, help="per machine (1)")
    parser.add_argument("--shares", default="0.1,0.25,0.5", help="of the data that a machine's memory holds")
    parser.add_argument("--policies", default=POLICIES, help=f"({POLICIES})")
    parser.add_argument("--samples", type=int, help="(4000; 800 with --quick)")
    parser.add_argument("--kb", type=int, default=20, help="mean size of a sample (20)")
    parser.add_argument("--batch", type=int, default=4, help="samples of a rank's batch (4)")
    parser.add_argument("--epochs", type=int, help="(4; 3 with --quick)")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="of the store (0)")
    parser.add_argument("--loopback", action="store_true", help="no namespaces")
    options = parser.parse_args()
    rows = Rows(options)
    samples = options.samples or (800 if options.quick else 4000)
    counts = [int(count) for count in options.nodes.split(",")]
    todo = list(cells(options))
    rows.expect(rows.repeats * len(counts) * len(todo))
    with tempfile.TemporaryDirectory(prefix="penstock-objects-") as folder:
        make(Path(folder), samples, 1000 * options.kb)
        for nodes in counts:
            with Group(
                nodes,
                options.ranks,
                Path(folder),
                namespaces=not options.loopback,
                latency_ms=options.latency_ms,
            ) as group:
                if not group.is_emulated:
                    print(f"machines share the loopback interface: {group.why_not}")
                spec = {
                    "samples": samples - samples % (nodes * options.ranks * options.batch),
                    "mean": 1000 * options.kb,
                    "batch": options.batch,
                    "epochs": options.epochs or (3 if options.quick else 4),
                }
                for number in range(rows.repeats):
                    for policy, share in todo if number % 2 == 0 else todo[::-1]:
                        facts = {"nodes": nodes, "share": share, "policy": policy, "round": number}
                        rows.measure(facts, partial(measured, group, spec, policy, share))
    report(rows, counts, todo)
    return rows.close()


def report(rows: Rows, counts: list[int], todo: list[tuple[str, float]]) -> None:
    header = ["machines", "c", "policy", "first", "later", "bound", "ring", "first met", "later met"]
    lines = []
    for nodes in counts:
        for policy, share in todo:
            facts = {"nodes": nodes, "share": share, "policy": policy}
            if not (found := rows.of(**facts)):
                continue
            over = [row["later"] - 1.01 * row["bound"] for row in found]
            judged = policy == "auto"
            lines.append(
                [
                    str(nodes),
                    f"{share:g}",
                    policy,
                    *(
                        shares([row[figure] for row in found])
                        for figure in ("first", "later", "bound", "ring")
                    ),
                    met([row["first"] for row in found], lambda first: first <= 1.001) if judged else "",
                    met(over, lambda more: more <= 0.01) if judged else "",
                ]
            )
    print(table(header, lines))


def shares(values: list[float]) -> str:
    """Median, and the least and greatest, with the digits that the goals need."""
    median, low, high = (f"{value:.4f}" for value in (statistics.median(values), min(values), max(values)))
    return median if len(values) == 1 else f"{median} [{low}-{high}]"


if __name__ == "__main__":
    sys.exit(main())
