"""Faults injected into a living job on a real Ray cluster of three hosts (namespaces of this machine): scripts/bench remote_campaign [--faults 300]

Needs `pip install 'penstock[ray]'` and the right to make namespaces. A row per fault is appended to out/remote_faults.jsonl, so a
campaign that was stopped goes on. `tests/on_ray/faults.py` says what happens, and what must come of it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the job

from _lines import append_line, read_lines  # noqa: E402

from tests.on_ray.cluster import Cluster  # noqa: E402
from tests.on_ray.faults import CPUS, DEAR_FAULTS, FAULTS, RemoteJob, inject  # noqa: E402

OURS = ("gateway", "ferry", "node process")
WEIGHTS = [2 if any(part in fault.name for part in OURS) else 5 for fault in FAULTS] + [1] * len(DEAR_FAULTS)
PER_JOB = 25
"""Faults that one job lives through."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=300, help="how many in all (300)")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "remote_faults.jsonl")
    options = parser.parse_args()
    while (done := len(read_lines(options.out))) < options.faults:
        with Cluster(3, env={"RAY_gcs_rpc_server_reconnect_timeout_s": "12"}) as cluster:
            cluster.start_ray([0, CPUS, CPUS])
            play(cluster, range(done, min(done + PER_JOB, options.faults)), options.out)
    rows = read_lines(options.out)
    wrong = [row for row in rows if not row["ok"]]
    print(f"{len(rows)} faults, {len(wrong)} wrong: {dict(Counter(row['fault'] for row in rows))}")
    waits = sorted(row["longest_s"] for row in rows if row["ok"])
    print(f"longest wait for a batch: median {waits[len(waits) // 2]} s, most {waits[-1]} s")
    for row in wrong:
        print(json.dumps(row))
    return 1 if wrong else 0


def play(cluster: Cluster, seeds: range, out: Path) -> None:
    """Inject a fault for each seed into one job. The job ends early if a fault goes wrong."""
    job = RemoteJob(cluster)
    try:
        job.until_remote()
        for seed in seeds:
            rng, started_s = random.Random(seed), time.monotonic()
            (fault,) = rng.choices([*FAULTS, *DEAR_FAULTS], WEIGHTS)
            try:
                row = {"seed": seed, "ok": True, **inject(cluster, job, fault, rng)}
            except AssertionError as exc:
                row = {"seed": seed, "ok": False, "fault": fault.name, "why": str(exc)}
            row["took_s"] = round(time.monotonic() - started_s, 1)
            append_line(out, row)
            print(json.dumps(row), flush=True)
            if not row["ok"]:
                return
        job.close()
    finally:
        job.process.kill()


if __name__ == "__main__":
    sys.exit(main())
