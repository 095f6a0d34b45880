"""One measurement of remote workers in this process: `python _remote_measure.py '{"subject": …, …}'`. Prints a JSON object, alone on its last line.

Remote workers are processes of this machine behind TCP connections, without Ray: Ray starts workers and carries no samples.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import _machine  # noqa: E402
from _reuse_workloads import dataset_of  # noqa: E402

import penstock  # noqa: E402
from penstock.wire.arena import Arena, Board  # noqa: E402
from remote_here import FerryHere, Server, remote_workers  # noqa: E402

ENDLESS = 4_000_000
TASK = 8
"""Samples of a task, and of a block that the bare loop receives."""


def rate(*, local: int, remote: int, workload: str, root: str, batch_size: int, warmup_s: float, seconds: float, tls: bool, plan: str) -> dict[str, float]:  # fmt: skip
    """Samples per second with so many local and remote workers."""
    with remote_workers(remote, tls=tls, plan=plan) as (side, ferry, servers):
        loader = loader_of(local, side if remote else None, workload, root, batch_size)
        batches = iter(loader)
        warm(batches, warmup_s, loader, local + remote)
        spent = Spent(loader, ferry, servers)
        samples, started_s = 0, time.perf_counter()
        while time.perf_counter() < started_s + seconds:
            next(batches)
            samples += batch_size
        wall_s = time.perf_counter() - started_s
        found = spent.since()
        del batches, loader
    return {"samples_per_s": samples / wall_s, **found}


def loader_of(local: int, side: Any, workload: str, root: str, batch_size: int) -> Any:
    dataset = dataset_of(workload, Path(root), ENDLESS)
    loader: Any = penstock.DataLoader(
        dataset, batch_size, shuffle=True, seed=3, num_workers=local, persistent_workers=True, task_size=TASK
    )
    loader._remote = side
    return loader


def warm(batches: Any, warmup_s: float, loader: Any, workers: int) -> None:
    """Draw batches for a while, and until every worker has done something."""
    end_s = time.perf_counter() + warmup_s
    while time.perf_counter() < end_s or sum(1 for done in samples_by_worker(loader) if done) < workers:
        next(batches)
        if time.perf_counter() > end_s + 60:
            raise RuntimeError(f"not all of {workers} workers came: {samples_by_worker(loader)}")


def samples_by_worker(loader: Any) -> list[int]:
    return loader._iterator._session.arena.board.column(Board.SAMPLES)


class Spent:
    """CPU time and samples of the processes, from now on."""

    def __init__(self, loader: Any, ferry: FerryHere, servers: list[Server]) -> None:
        self.loader = loader
        self.local = list(loader.stats()["worker_pids"])
        self.remote, self.ferry = [server.process.pid for server in servers], ferry.pid
        self.clocks, self.samples = self._clocks(), samples_by_worker(loader)

    def _clocks(self) -> dict[int, float]:
        """CPU seconds of each process, and (under its negative pid) of a remote worker's other threads: they send."""
        sending = {-pid: main_thread_s(pid) for pid in self.remote}
        clocks = _machine.cpu_clocks([*self.local, *self.remote, self.ferry])
        return clocks | {pid: clocks[-pid] - main_s for pid, main_s in sending.items()}

    def since(self) -> dict[str, float]:
        now, samples = self._clocks(), samples_by_worker(self.loader)
        used = {pid: now[pid] - self.clocks[pid] for pid in now}
        made = [after - before for after, before in zip(samples, self.samples, strict=True)]
        here, there = sum(made[: len(self.local)]), sum(made[len(self.local) :])
        found = {"remote_share": there / max(1, here + there)}
        if here:
            found["local_ms"] = 1000 * sum(used[pid] for pid in self.local) / here
        if there:
            sending_s = sum(used[-pid] for pid in self.remote)
            found["remote_ms"] = 1000 * (sum(used[pid] for pid in self.remote) - sending_s) / there
            found["sending_ms"] = 1000 * sending_s / there
            found["ferry_ms"] = 1000 * used[self.ferry] / there
        return found


def main_thread_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def bare(*, sample_bytes: int, seconds: float) -> dict[str, float]:
    """CPU time per sample of a loop that receives blocks of 8 samples into shared memory, and does nothing else."""
    ours, theirs = connected()
    block = TASK * sample_bytes
    sender = multiprocessing.get_context("fork").Process(target=send, args=(theirs, block, ours), daemon=True)
    sender.start()
    theirs.close()
    arena = Arena.create(64 * block, 1)
    view, at, received = arena.view[arena.base :], 0, 0
    end_s, cpu_s = time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < end_s:
        left = memoryview(view[at * block : (at + 1) * block])
        while left:
            left = left[ours.recv_into(left) :]
        at, received = (at + 1) % 64, received + TASK
    cpu_s = time.process_time() - cpu_s
    sender.kill()
    sender.join()
    return {"bare_ms": 1000 * cpu_s / received}


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


def send(sock: socket.socket, block: int, other: socket.socket) -> None:
    other.close()
    data = os.urandom(block)
    while True:
        sock.sendall(data)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps({"rate": rate, "bare": bare}[asked.pop("measure")](**asked)), flush=True)
