"""Plays thousands of schedules of real kills and restores (see tests/fault/kill_schedules.py), several at a time.

    scripts/bench kill_campaign --schedules 10000 --jobs 2 --out kills.jsonl

Results are appended to the file as they come; a campaign that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
CHUNK = 20
PLAYER = (
    "import json, logging, sys\n"
    "logging.getLogger('penstock').setLevel(logging.CRITICAL)\n"
    "from tests.fault.kill_schedules import run\n"
    "for seed in range(int(sys.argv[1]), int(sys.argv[2])):\n"
    "    print(json.dumps(run(seed)), flush=True)\n"
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=2000, help="how many in all (default: 2000)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="schedules played at a time (default: 2)")
    parser.add_argument("--out", type=Path, default=Path("kills.jsonl"), help="file of results, appended to")
    options = parser.parse_args()

    done = {}
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
        done = {row["seed"]: row for row in rows}
    last = options.first + options.schedules
    todo = [
        (start, min(start + CHUNK, last))
        for start in range(options.first, last, CHUNK)
        if any(seed not in done for seed in range(start, min(start + CHUNK, last)))
    ]
    running: list[tuple[subprocess.Popen[str], int, int]] = []
    began = time.monotonic()
    with options.out.open("a") as out:
        while todo or running:
            while todo and len(running) < options.jobs:
                start, stop = todo.pop(0)
                command = [sys.executable, "-W", "ignore", "-c", PLAYER, str(start), str(stop)]
                process = subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True)
                running.append((process, start, stop))
            time.sleep(0.1)
            for entry in [entry for entry in running if entry[0].poll() is not None]:
                running.remove(entry)
                process, start, stop = entry
                text = process.stdout.read() if process.stdout is not None else ""
                rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
                found = {row["seed"]: row for row in rows}
                for seed in range(start, stop):
                    row = found.get(
                        seed, {"seed": seed, "ok": False, "why": f"player ended with {process.returncode}"}
                    )
                    done[seed] = row
                    out.write(json.dumps(row) + "\n")
                out.flush()
                report(done, options.first, last, time.monotonic() - began)
    failed = sorted(seed for seed, row in done.items() if not row["ok"])
    print(
        f"\n{len(done)} schedules, {sum(row.get('kills', 0) for row in done.values())} kills, {len(failed)} failed"
    )
    for seed in failed:
        print(json.dumps(done[seed]))
    return 1 if failed else 0


def report(done: dict[int, dict[str, object]], first: int, last: int, took_s: float) -> None:
    count = sum(first <= seed < last for seed in done)
    bad = sum(not row["ok"] for row in done.values())
    print(f"\r{count}/{last - first} schedules, {bad} failed, {took_s:.0f} s", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
