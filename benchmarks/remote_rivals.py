"""Ours beside Ray Data and torch's DataLoader on one Ray cluster: rate, and CPU time of the training host: scripts/bench remote_rivals [--data TAR]

The cluster is real; its hosts are namespaces of this machine. The training host has core 0 and one local worker. Ray's head and
the other host share core 1. CPU time is that of all processes in a host: training, workers, ferry, gateway, raylet, Ray's other daemons.

Every measurement has a fresh training process. A round measures every subject, in alternating order; ratios are taken inside a round.
Needs `pip install 'penstock[ray]' 'ray[data]'`, the right to make namespaces, and two cores. Rows are appended to --out; a run that
was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benchmarks"
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *sys.path[:2], *filter(None, given)])  # for the hosts

import _machine  # noqa: E402
from _gpu_chains import photo_root  # noqa: E402
from _harness import columns, progress, sharing, spread  # noqa: E402
from _lines import Row, append_line, read_lines  # noqa: E402

from tests.on_ray.cluster import Cluster  # noqa: E402

HEAD, TRAINING, OTHER = "h0", "h1", "h2"
HOSTS = {"head": HEAD, "training": TRAINING, "other": OTHER}
CORES = {HEAD: 1, TRAINING: 0, OTHER: 1}
CPUS = [0, 1, 1]
"""That each host lends to Ray."""
BATCH = 64
STORE_BYTES = 1 << 30
"""Ray's object store in each host: 27 batches."""
LIMIT_S = 420.0
"""For one measurement."""
LOOK_S = 0.5
"""Between two looks at the clocks: the CPU time of a process that ends is lost since the last one."""
END_S = 30.0
THERE = {"resources": {f"node:{Cluster.ip(OTHER)}": 0.001}}
"""Ray's way to say: on the other host only."""
SUBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ours": ("ours", {"remote": {"max_workers": 1, "options": THERE}}),
    "ours, no cluster": ("ours", {}),
    "Ray Data": ("ray_data", {}),
    "Ray Data, uint8": ("ray_data", {"whole": False}),
    "Ray Data, OpenCV": ("ray_data", {"opencv": True}),
    "torch": ("torch", {}),
    "torch, OpenCV": ("torch_opencv", {}),
}
"""Name in the table: function of `_remote_rivals` and its keywords."""


class HostClock:
    """CPU seconds of a host's processes, from now on."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self._cluster, self._host = cluster, host
        self._names: dict[int, str] = {}
        self._before = self._clocks()
        self._now = dict(self._before)

    def _clocks(self) -> dict[int, float]:
        clocks = _machine.cpu_clocks(self._cluster.pids(self._host))
        for pid in clocks.keys() - self._names.keys():
            try:
                self._names[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
            except OSError:
                self._names[pid] = "?"
        return clocks

    def look(self) -> None:
        self._now |= self._clocks()

    def used_s(self) -> Counter[str]:
        """Return the time used until the last look, by the name of the process."""
        used: Counter[str] = Counter()
        for pid, clock_s in self._now.items():
            used[self._names[pid]] += clock_s - self._before.get(pid, 0.0)  # type: ignore[assignment]
        return used


def measured(cluster: Cluster, asked: dict[str, Any], log: Path) -> Row:
    """Measure one subject in a fresh training process."""
    command = [sys.executable, str(HERE / "_remote_rivals.py"), json.dumps(asked)]
    pipe = subprocess.PIPE
    with (
        log.open("w") as err,
        cluster.popen(TRAINING, command, stdin=pipe, stdout=pipe, stderr=err) as process,
    ):
        try:
            clocks, end = watched(cluster, process)
        except TimeoutError:
            clocks, end = {}, {}
        if not end:
            cluster.kill(TRAINING, "_remote_rivals")
        process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            cluster.kill(TRAINING, "_remote_rivals")
    if not end:
        raise RuntimeError(f"{asked} failed:\n{log.read_text()[-2000:]}")
    samples = end["samples"]
    found: Row = {"samples_per_s": samples / end["seconds"], "words": end["words"], "others": end["others"]}
    for host in ("training", "other"):
        used = clocks[host].used_s()
        found[f"{host}_ms"] = 1000 * used.total() / samples
        found[f"{host}_ms_by_process"] = {
            name: round(1000 * cpu_s / samples, 3)
            for name, cpu_s in used.most_common(8)
            if cpu_s > LOOK_S / 10
        }
    return found


def watched(cluster: Cluster, process: subprocess.Popen[bytes]) -> tuple[dict[str, HostClock], Row]:
    """Follow a measurement to its end; return the hosts' clocks, and what it says of the end (nothing: it has died).

    "others" is the part of both cores' time that went to processes outside the hosts.
    """
    clocks: dict[str, HostClock] = {}
    deadline_s, data, busy_s = time.monotonic() + LIMIT_S, b"", 0.0
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ready = selector.select(LOOK_S)
            for clock in clocks.values():
                clock.look()
            if ready and not (chunk := os.read(process.stdout.fileno(), 1 << 16)):
                return clocks, {}
            data += chunk if ready else b""
            *lines, data = data.split(b"\n")
            for line in lines:
                told: Row = json.loads(line)
                if told["at"] == "end":
                    ours_s = sum(clock.used_s().total() for clock in clocks.values())
                    others_s = _machine.busy_cpu_s() - busy_s - ours_s
                    return clocks, {**told, "others": max(0.0, others_s / (2 * told["seconds"]))}
                clocks = {name: HostClock(cluster, host) for name, host in HOSTS.items()}
                busy_s = _machine.busy_cpu_s()
            if time.monotonic() > deadline_s:
                raise TimeoutError


def key_of(row: Row) -> tuple[Any, ...]:
    return row["workload"], row["round"], row["subject"]


def table(rows: list[Row], workload: str) -> str:
    """Medians with the least and greatest, and ours by each other inside a round."""
    by = {key_of(row): row for row in rows}
    rounds = sorted({row["round"] for row in rows})
    header = [
        workload,
        "samples/s",
        "training host, ms",
        "other host, ms",
        "ours: rate",
        "ours: training host",
    ]
    lines = [header]
    for subject in SUBJECTS:
        mine = [by[at] for number in rounds if (at := (workload, number, subject)) in by]
        pairs = [(by[at], row) for row in mine if (at := (workload, row["round"], "ours")) in by]
        figures = ("samples_per_s", "training_ms", "other_ms")
        lines.append(
            [
                subject,
                *(spread([row[figure] for row in mine]) for figure in figures),
                *(spread([ours[figure] / row[figure] for ours, row in pairs]) for figure in figures[:2]),
            ]
        )
    return columns(lines)


def main(argv: list[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", metavar="DIR|TAR", help="photos; without it, generated ones")
    parser.add_argument("--workloads", default="W1", metavar="W1,…", help="of scripts/bench prepare")
    parser.add_argument("--repeats", type=int, default=3, help="rounds (3)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--warmup", type=float, default=20.0, metavar="S")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "remote_rivals.jsonl")
    options = parser.parse_args(argv)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    root, workloads = photo_root(options.data, 300), options.workloads.split(",")
    machine = _machine.describe(ROOT)
    os.sched_setaffinity(0, {CORES[OTHER]})  # what looks on must not slow the training host
    turns = [
        {"workload": workload, "round": number, "subject": subject}
        for number in range(options.repeats)
        for workload in workloads
        for subject in (list(SUBJECTS) if number % 2 == 0 else reversed(SUBJECTS))
    ]
    done = {key_of(row) for row in read_lines(options.out)}
    left = [turn for turn in turns if key_of(turn) not in done]
    if left:
        with Cluster(len(CPUS), cores=CORES, object_store_bytes=STORE_BYTES) as cluster:
            cluster.start_ray(CPUS)
            for at, turn in enumerate(left):
                progress(f"[{at + 1}/{len(left)}] {turn}")
                function, keywords = SUBJECTS[turn["subject"]]
                asked = {
                    "subject": function,
                    "keywords": keywords,
                    "workload": turn["workload"],
                    "root": str(root),
                    "batch_size": BATCH,
                    "workers": 1,
                    "warmup_s": options.warmup,
                    "seconds": options.seconds,
                }
                try:
                    found = measured(cluster, asked, options.out.with_suffix(".log"))
                except RuntimeError as exc:  # the same command tries it again
                    progress(str(exc))
                    continue
                append_line(options.out, {**turn, **found, "machine": machine})
    rows = read_lines(options.out)
    print("\n\n".join(table(rows, workload) for workload in workloads))
    print(sharing([row["others"] for row in rows]))
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
