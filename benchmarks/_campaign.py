"""Plays seeds by the thousand, some at a time in processes of their own, and keeps what came of each in a file.

A line per seed is appended as it comes, so a campaign that was stopped goes on where it was. A seed that failed stays in
the file and is named at the end; to try it again, take its line out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from _lines import append_line, read_lines

ROOT = Path(__file__).resolve().parents[1]
LINE_EVERY_S = 30.0
POLL_S = 0.1

Row = dict[str, Any]
"""At least `seed` and `ok`; `why`, where it is not."""

PLAYER = """
import json, logging, sys
sys.path[:0] = ["src", "."]
logging.getLogger("penstock").setLevel(logging.CRITICAL)
from {module} import run
for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    print(json.dumps(run(seed)), flush=True)
"""


def campaign(module: str, *, chunk: int, argv: list[str] | None = None, schedules: int = 2000) -> int:
    """Plays `module.run(seed)` for many seeds, `chunk` of them per process; the exit code says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=schedules, help=f"how many in all ({schedules})")
    parser.add_argument("--first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    results = ROOT / "out" / f"{module.rpartition('.')[2]}.jsonl"
    parser.add_argument("--out", type=Path, default=results, help="file of results, appended to")
    options = parser.parse_args(argv)
    options.out.parent.mkdir(parents=True, exist_ok=True)

    seeds = range(options.first, options.first + options.schedules)
    done = {seed: row for seed, row in read(options.out).items() if seed in seeds}
    chunks = [range(at, min(at + chunk, seeds.stop)) for at in range(seeds.start, seeds.stop, chunk)]
    todo = [part for part in chunks if any(seed not in done for seed in part)]
    display = Display(len(seeds), len(done))
    running: list[tuple[subprocess.Popen[str], IO[str], range]] = []
    with options.out.open("a", encoding="utf-8") as out:
        while todo or running:
            while todo and len(running) < options.jobs:
                part = todo.pop(0)
                running.append((*start(module, part), part))
            time.sleep(POLL_S)
            for process, said, part in [entry for entry in running if entry[0].poll() is not None]:
                running.remove((process, said, part))
                found = rows_of(process, said, part)
                out.writelines(json.dumps(row) + "\n" for row in found if row["seed"] not in done)
                out.flush()
                done.update((row["seed"], row) for row in found)
                display.show(done)
    return conclude(done, display)


def read(path: Path) -> dict[int, Row]:
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["seed"]: row for row in rows}


def start(module: str, part: range) -> tuple[subprocess.Popen[str], IO[str]]:
    """A process that plays a part of the seeds, and what it says: a file, since a pipe that nobody reads would hold it up when full."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        PLAYER.format(module=module),
        str(part.start),
        str(part.stop),
    ]
    said = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (`rows_of` closes it)
    return subprocess.Popen(command, cwd=ROOT, stdout=said, text=True), said


def rows_of(process: subprocess.Popen[str], said: IO[str], part: range) -> list[Row]:
    """What a process said of its seeds; of those it did not come to, how it ended."""
    with said:
        said.seek(0)
        lines = said.read().splitlines()
    rows = {row["seed"]: row for line in lines if line.startswith("{") and (row := json.loads(line))}
    ended = f"the process that should have played it ended with {process.returncode}"
    return [rows.get(seed, {"seed": seed, "ok": False, "why": ended}) for seed in part]


def play(module: str, faults: int, jobs: int, out: Path, *, chunk: int) -> None:
    """Play `module.run(seed)` for seeds that were not played, until there are so many faults."""
    done = {row["seed"] for row in read_lines(out)}
    running: list[tuple[subprocess.Popen[str], IO[str], range]] = []
    at = 0
    while running or count(out) < faults:
        while len(running) < jobs and count(out) < faults:
            part = range(at, at + chunk)
            at += chunk
            if not done.issuperset(part):
                running.append((*start(module, part), part))
        time.sleep(POLL_S)
        for process, said, part in [entry for entry in running if entry[0].poll() is not None]:
            running.remove((process, said, part))
            for row in rows_of(process, said, part):
                if row["seed"] not in done:
                    append_line(out, row)
            print(f"{count(out)} of {faults} faults", flush=True)


def count(out: Path) -> int:
    return sum(row.get("faults", 0) for row in read_lines(out))


class Display:
    """How far, how fast, how long to go: one line that is written over, or in a file a line now and then."""

    def __init__(self, total: int, before: int) -> None:
        self.total, self.before, self.began_s = total, before, time.monotonic()
        self.in_place, self.next_s = sys.stdout.isatty(), 0.0

    @property
    def took_s(self) -> float:
        return time.monotonic() - self.began_s

    def show(self, done: dict[int, Row]) -> None:
        if not self.in_place and self.took_s < self.next_s:
            return
        self.next_s = self.took_s + LINE_EVERY_S
        rate = (len(done) - self.before) / max(1e-9, self.took_s)
        left_s = (self.total - len(done)) / max(1e-9, rate)
        bad = sum(not row["ok"] for row in done.values())
        share = len(done) / self.total
        bar = ("#" * round(30 * share)).ljust(30, ".")
        start, end = ("\r", "") if self.in_place else ("", "\n")
        print(
            f"{start}[{bar}] {len(done):,}/{self.total:,}, {bad} failed, {rate:.1f}/s, {left_s / 60:.0f} min to go ",
            end=end,
            flush=True,
        )


def conclude(done: dict[int, Row], display: Display) -> int:
    failed = sorted(seed for seed, row in done.items() if not row["ok"])
    sums = {
        key: sum(row[key] for row in done.values() if key in row)
        for key in sorted({key for row in done.values() for key in row} - {"seed", "ok", "why"})
    }
    counted = ", ".join(f"{value:,} {key}" for key, value in sums.items())
    print(f"\n{len(done):,} schedules in {display.took_s:.0f} s: {counted}; {len(failed)} failed")
    for seed in failed:
        print(json.dumps(done[seed]))
    return 1 if failed else 0
