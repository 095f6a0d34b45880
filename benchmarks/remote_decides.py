"""What `Remote(plan="auto", share="auto")` decides, beside the best fixed plan and share: scripts/bench remote_decides [--part decides|harm|all] …

decides  samples per second of ours over those of the best fixed way, found by brute force and measured again in turns with ours
harm     where offloading does not pay: ours over the loader without remote=, in turns, and the ferry's share of a core

Remote workers are processes of this machine behind TCP connections, without Ray. Each setting has cores of its own: for the local side
(training process, agent, workers, ferry), for each remote worker, and for the process that limits the link. Several settings run at once.
Settings that are in --out already are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import _machine
from _harness import progress
from _lines import Row, append_line, read_lines
from _remote_setting import ARRAYS, RESAMPLE, TINY, Asked, dataset
from _reuse_workloads import AUDIO

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 420.0
LONGEST_S = 130.0
"""A setting is not begun if less of --within is left."""
NARROW_GBIT = 1.0
"""Links up to this share one core: forwarding costs them little."""
LEAST = {"decides": 0.95, "harm": 0.97}
MOST_FERRY = 0.01


def setting(workload: str, workers: str, gbit: float = 0, training: float = 0, ranks: int = 1) -> Asked:
    local, remote = map(int, workers.split("+"))
    name = f"{workload} {workers} {f'{gbit:g} Gbit/s' if gbit else 'free'}"
    name += f" x{training:g}" if training else ""
    name += f" {ranks} ranks" if ranks > 1 else ""
    return Asked(
        name=name, workload=workload, local=local, remote=remote, gbit=gbit, training=training, ranks=ranks
    )


SETTINGS = {
    "decides": [
        setting("W3", "1+8", 10),
        setting("W1", "2+4", 10, ranks=2),
        setting("W1", "1+4", 10),
        setting("W3", "2+4", 1, training=2),
        setting(AUDIO, "4+2", training=3),
        setting("W1", "1+4", 1),
        setting("W1", "1+4"),
        setting(AUDIO, "1+4", 1),
        setting(RESAMPLE, "1+4", 1),
        setting(AUDIO, "2+2", 1, training=2, ranks=2),
        setting("W2", "1+1", 10),
        setting(ARRAYS, "1+1", 10),
        setting(AUDIO, "2+1", training=1.05),
        setting(RESAMPLE, "1+1"),
        setting(TINY, "1+1"),
    ],
    "harm": [
        setting("W1", "2+2", 0.1),
        setting("W1", "2+2", training=0.7),
        setting(TINY, "2+2"),
        setting(ARRAYS, "1+1", 10),
    ],
}


class Cores:
    """Gives each setting the cores it needs; settings wait until enough are free. Too few in all: no setting is pinned."""

    def __init__(self, cores: list[int]) -> None:
        self.shared, self.free = cores[-1:], cores[:-1] if len(cores) > 4 else cores
        self.all = len(self.free)
        self._changed = threading.Condition()
        self._waiting: list[int] = []

    def needed(self, asked: Asked) -> int:
        return asked.local + asked.remote + (asked.gbit > NARROW_GBIT)

    def take(self, asked: Asked) -> list[int]:
        needed = min(self.needed(asked), self.all)
        with self._changed:
            self._waiting.append(needed)
            # The largest that fits goes first: a setting that needs most cores would wait until the end.
            self._changed.wait_for(
                lambda: needed == max((one for one in self._waiting if one <= len(self.free)), default=0)
            )
            self._waiting.remove(needed)
            taken, self.free = self.free[:needed], self.free[needed:]
            self._changed.notify_all()
        return taken

    def give_back(self, cores: list[int]) -> None:
        with self._changed:
            self.free = sorted([*self.free, *cores])
            self._changed.notify_all()

    def pinned(self, asked: Asked, cores: list[int]) -> Asked:
        if len(cores) < self.needed(asked):
            return asked
        here, there = cores[: asked.local], cores[asked.local : asked.local + asked.remote]
        between = cores[asked.local + asked.remote :] or self.shared
        return replace(asked, cores=(tuple(here), tuple((core,) for core in there), tuple(between)))


def run(asked: Asked) -> Row:
    """Measure a setting, in a process of its own that knows nothing from before."""
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache}
        command = [sys.executable, str(HERE / "_remote_setting.py"), json.dumps(asdict(asked))]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False, env=env
        )
    if done.returncode:
        raise RuntimeError(f"{asked.name} failed ({done.returncode})")
    found: Row = json.loads(done.stdout.strip().splitlines()[-1])
    return {"setting": asked.name, **asdict(asked), "pinned": bool(asked.cores[0]), **found}


def table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        part = row["part"]
        good = row["ratio"] >= LEAST[part] and (part != "harm" or row["ferry_cores"] <= MOST_FERRY)
        ours, last = statistics.median(row["auto_rates"]), row["last"]
        lines.append(
            f"{part:<7} {row['setting']:<30} ours/best {row['ratio']:.3f} {'' if good else 'BELOW'} ours {ours:.4g} "
            f"({last['stage']} {last['plan']} {last['share'] or 0:.2f}), best {row['best']} {statistics.median(row['best_rates']):.4g}, "
            f"alone {row['alone']:.4g}, decided in {row['decided_s']:.0f} s{'' if row['decided'] else ' (not)'}, "
            f"profile {row['profile_s']:.1f} s, ferry {100 * row['ferry_cores']:.1f} %"
        )
        by_plan = sorted(row.get("by_plan", {}).items(), key=lambda one: -one[1])
        if by_plan:
            lines.append(f"{'':<38} {', '.join(f'{plan} {rate:.4g}' for plan, rate in by_plan)}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--part", choices=("decides", "harm", "all"), default="all")
    parser.add_argument("--data", metavar="DIR|TAR", help="photos; without it, generated ones")
    parser.add_argument("--only", default="", metavar="TEXT,…", help="only settings whose name begins so")
    parser.add_argument("--parallel", type=int, default=32, help="settings at once, at most")
    parser.add_argument(
        "--within", type=float, default=1e9, metavar="S", help="begin none that may end later"
    )
    parser.add_argument("--seconds", type=float, default=2.4, help="of each measurement; half in the search")
    parser.add_argument("--warmup", type=float, default=0.8, metavar="S")
    parser.add_argument("--decide", type=float, default=40.0, metavar="S", help="time for ours to decide")
    parser.add_argument("--rounds", type=int, default=3, help="ours beside the best; two more for harm")
    parser.add_argument("--out", type=Path, default=HERE.parent / ".cache" / "remote-decides.jsonl")
    options = parser.parse_args(argv)
    machine, cores = _machine.describe(HERE.parent), Cores(sorted(os.sched_getaffinity(0)))
    begun_s, lock = time.monotonic(), threading.Lock()
    parts = list(SETTINGS) if options.part == "all" else [options.part]
    done = {(row["part"], row["setting"]) for row in read_lines(options.out)}
    common = {"data": options.data, "warmup_s": options.warmup, "seconds": options.seconds}
    wanted = [
        replace(
            one,
            **common,
            decide_s=options.decide,
            brute=part == "decides",
            rounds=options.rounds + 2 * (part == "harm"),
        )
        for part in parts
        for one in SETTINGS[part]
        if (part, one.name) not in done and one.name.startswith(tuple(options.only.split(",")))
    ]
    for workload in {one.workload for one in wanted}:
        dataset(workload, options.data)  # its files, before several processes want to make them

    def measure(asked: Asked) -> None:
        taken = cores.take(asked)
        try:
            if time.monotonic() - begun_s > options.within - LONGEST_S:
                progress(f"{asked.name}: not begun, too late")
                return
            part = "decides" if asked.brute else "harm"
            row = {"part": part, **run(cores.pinned(asked, taken)), "machine": machine}
            with lock:
                append_line(options.out, row)
            progress(table([row]))
        except (RuntimeError, subprocess.TimeoutExpired) as exc:
            progress(f"{asked.name}: {exc}")
        finally:
            cores.give_back(taken)

    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(measure, wanted))
    print(table([row for row in read_lines(options.out) if row["part"] in parts]))
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
