"""Remote workers beside as many local ones, in one interleaved run: scripts/bench remote [--part cost|adds] [--data TAR] …

cost  CPU time per sample of one local and one remote worker at work together (its sending apart), and of the ferry beside a bare
      receiving loop
adds  samples per second of mixed workers (1 + 1, 4 + 11) beside as many local ones; needs as many cores

Workloads: W1 and W3 as in `scripts/bench prepare`, and audio (FLAC, noise, LogMel, SpecAugment). Remote workers are processes of this
machine behind TCP connections. Rows are appended to --out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import _machine
from _harness import progress
from _lines import Row, append_line
from _reuse_workloads import root_of

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 300.0
SAMPLE_BYTES = {"W1": 3 * 224 * 224 * 4, "W3": 3 * 224 * 224 * 4, "audio": 80 * 801 * 4}
BATCH = {"W1": 64, "W3": 64, "audio": 32}


def measured(measure: str, **asked: Any) -> dict[str, float]:
    """Measure once, in a fresh process."""
    command = [sys.executable, str(HERE / "_remote_measure.py"), json.dumps({"measure": measure, **asked})]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{measure} {asked} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def cost(workload: str, options: argparse.Namespace, root: Path) -> Iterator[Row]:
    for _ in range(options.repeats):
        found = measured("rate", local=1, remote=1, **setting(workload, options, root))
        found |= measured("bare", sample_bytes=SAMPLE_BYTES[workload], seconds=options.seconds / 2)
        found["remote/local"] = found["remote_ms"] / found["local_ms"]
        found["ferry/bare"] = found["ferry_ms"] / found["bare_ms"]
        yield found


def adds(workload: str, options: argparse.Namespace, root: Path) -> Iterator[Row]:
    cases = [tuple(map(int, pair.split("+"))) for pair in options.cases.split(",")]
    for number in range(options.repeats):
        for local, remote in cases:
            both = [(local + remote, 0), (local, remote)]
            rates = {
                mixed: measured("rate", local=mixed[0], remote=mixed[1], **setting(workload, options, root))
                for mixed in (both if number % 2 else reversed(both))
            }
            alone, mixed = rates[both[0]], rates[both[1]]
            found: Row = {
                "case": f"{local}+{remote}",
                "local": alone["samples_per_s"],
                "mixed": mixed["samples_per_s"],
            }
            found["mixed/local"] = found["mixed"] / found["local"]
            found |= {
                name: mixed[name]
                for name in ("remote_share", "local_ms", "remote_ms", "sending_ms", "ferry_ms")
            }
            yield found


def setting(workload: str, options: argparse.Namespace, root: Path) -> dict[str, Any]:
    return {
        "workload": workload,
        "root": str(root),
        "batch_size": BATCH[workload],
        "warmup_s": options.warmup,
        "seconds": options.seconds,
        "tls": options.tls,
        "plan": options.plan,
    }


def table(rows: list[Row]) -> str:
    """Medians, with the least and the greatest, of each workload and case."""
    lines = []
    for name in dict.fromkeys(f"{row['workload']} {row.get('case', '')}".strip() for row in rows):
        mine = [row for row in rows if f"{row['workload']} {row.get('case', '')}".strip() == name]
        told = [
            f"{key} {statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"
            for key in mine[0]
            if isinstance(mine[0][key], float) and (values := [row[key] for row in mine])
        ]
        lines.append(f"{name:<12} {', '.join(told)}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--part", choices=("cost", "adds"), default="cost")
    parser.add_argument("--data", metavar="DIR|TAR", help="photos; without it, generated ones")
    parser.add_argument("--only", default="W1,W3,audio", metavar="W1,…", help="only these workloads")
    parser.add_argument("--cases", default="1+1,4+11", help="local+remote workers, for --part adds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--warmup", type=float, default=3.0, metavar="S")
    parser.add_argument("--plan", default="samples", choices=("samples", "bytes", "batches", "cut"))
    parser.add_argument("--tls", action="store_true", help="remote workers behind TLS")
    parser.add_argument("--out", type=Path, metavar="PATH", help="append rows there, as JSON lines")
    options = parser.parse_args(argv)
    rows, part = [], {"cost": cost, "adds": adds}[options.part]
    machine = _machine.describe(HERE.parent)
    for workload in options.only.split(","):
        root = root_of(workload, options.data, 300)
        for found in part(workload, options, root):
            rows.append({"part": options.part, "plan": options.plan, "workload": workload, **found})
            progress(json.dumps(rows[-1]))
            if options.out:
                append_line(options.out, {**rows[-1], "machine": machine})
    print(table(rows))
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
