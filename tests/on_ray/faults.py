"""Faults of a cluster, injected into a living job: each is something that happens to a host or a process, and how it ends."""

from __future__ import annotations

import json
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.on_ray.cluster import Cluster

SERVER, ACTOR, HOLDER = r"penstock\.remote\.server", "ray::ChildKeeper", r"penstock\.remote\.holder"
GATEWAY, FERRY, NODE = r"penstock\.remote\.gateway", '"name": "ferry"', r"penstock\.node\.process"
RAY = "raylet|gcs_server|ray::|/ray/|ray start"
CPUS = 2
EPOCH_S = 90.0
"""Time for an epoch that takes 2 s if nothing happens: what is lost may cost 10 s each time, and the machine may be busy."""
BACK_S = 150.0
"""Time for remote workers to be back once the fault is over: Ray itself starts again in some of them."""
LOST_S = 10.0
"""Delay that a fault may cost a batch, beyond what a busy machine costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFault:
    name: str
    begin: Callable[[Cluster, str], Any]
    end: Callable[[Cluster, str], Any] = lambda _cluster, _host: None
    lasts_s: float = 0.0


def kills(what: str) -> Callable[[Cluster, str], Any]:
    return lambda cluster, host: cluster.kill(host, what)


def kills_here(what: str) -> Callable[[Cluster, str], Any]:
    return lambda cluster, _: cluster.kill("h0", what)


def kill_node(cluster: Cluster, host: str) -> None:
    cluster.kill(host, rf"{RAY}|penstock\.")


def start_again(cluster: Cluster, host: str) -> None:
    cluster.start_raylet(host, CPUS)


def restart_head(cluster: Cluster, _: str) -> None:
    """A head without a database knows nothing of its old nodes: all start anew."""
    for host in cluster.hosts:
        cluster.kill(host, RAY)
    cluster.start_ray([0, CPUS, CPUS])


def limits(rate: str | None) -> Callable[[Cluster, str], Any]:
    return lambda cluster, host: cluster.rate(host, rate)


def stops(what: str, number: int) -> Callable[[Cluster, str], Any]:
    return lambda cluster, host: cluster.kill(host, what, number)


FAULTS = (
    ClusterFault(name="a worker is killed", begin=kills(SERVER)),
    ClusterFault(
        name="a worker is stopped",
        begin=stops(SERVER, signal.SIGSTOP),
        end=stops(SERVER, signal.SIGCONT),
        lasts_s=7.0,
    ),
    ClusterFault(name="an actor is killed", begin=kills(ACTOR)),
    ClusterFault(name="a worker's keeper is killed", begin=kills(HOLDER)),
    ClusterFault(name="a silent partition", begin=Cluster.cut, end=Cluster.heal, lasts_s=7.0),
    ClusterFault(name="a short partition", begin=Cluster.cut, end=Cluster.heal, lasts_s=1.0),
    ClusterFault(name="a slow link", begin=limits("1mbit"), end=limits(None), lasts_s=6.0),
    ClusterFault(name="the gateway is killed", begin=kills_here(GATEWAY)),
    ClusterFault(name="the ferry is killed", begin=kills_here(FERRY)),
    ClusterFault(name="the node process is killed", begin=kills_here(NODE)),
)
DEAR_FAULTS = (
    ClusterFault(name="a node is killed", begin=kill_node, end=start_again, lasts_s=2.0),
    ClusterFault(
        name="the head is killed",
        begin=kills_here("gcs_server"),
        end=restart_head,
        lasts_s=5.0,
    ),
)
"""Those after which Ray takes long to come back."""


class RemoteJob:
    """A training job in h0, and what it has said of its epochs."""

    def __init__(self, cluster: Cluster) -> None:
        self.process = cluster.popen(
            "h0",
            [sys.executable, "-m", "tests.on_ray.job"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.told: list[str] = []
        self._epochs: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._read_epochs, self._read_warnings)
        ]
        for thread in self._threads:
            thread.start()

    def _read_epochs(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._epochs.put(json.loads(line))
        self._epochs.put(None)

    def _read_warnings(self) -> None:
        assert self.process.stderr is not None
        self.told.extend(line.rstrip() for line in self.process.stderr)

    def epoch(self) -> dict[str, Any]:
        """Wait for an epoch's end; it must be right."""
        try:
            found = self._epochs.get(timeout=EPOCH_S)
        except queue.Empty:
            raise AssertionError(f"no epoch ended within {EPOCH_S:g} s; {self._last_words()}") from None
        assert found is not None, f"the job has ended; {self._last_words()}"
        assert found["once"], f"not exactly once: {found}; {self._last_words()}"
        assert found["same"], f"not the same batches: {found}; {self._last_words()}"
        return found

    def until_remote(self) -> float:
        """Wait for an epoch with remote workers; return the seconds that it took."""
        started_s = time.monotonic()
        while not self.epoch()["elsewhere"]:
            assert time.monotonic() < started_s + BACK_S, f"remote workers stay away; {self._last_words()}"
        return time.monotonic() - started_s

    def _last_words(self) -> str:
        return "it said: " + " | ".join(self.told[-12:])

    def close(self) -> None:
        """End the job; it must end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            code = self.process.wait(EPOCH_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the job does not end; {self._last_words()}") from None
        for thread in self._threads:
            thread.join(10)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        assert code == 0, f"the job ended with code {code}; {self._last_words()}"


def inject(cluster: Cluster, job: RemoteJob, fault: ClusterFault, rng: random.Random) -> dict[str, Any]:
    """Let a fault happen at a random moment of a living job and end again; return what it cost. Raises if anything is wrong."""
    host = rng.choice(cluster.hosts[1:])
    time.sleep(rng.uniform(0.0, 2.0))
    warned = len(job.told)
    fault.begin(cluster, host)
    found = {"fault": fault.name, "host": host}
    try:
        deadline_s, waits = time.monotonic() + fault.lasts_s, []
        while True:
            waits.append(job.epoch()["longest_s"])
            if time.monotonic() >= deadline_s:
                break
    finally:
        fault.end(cluster, host)
    found["back_s"] = round(job.until_remote(), 1)
    found["longest_s"] = max(waits)
    found["told"] = job.told[warned:][:4]
    return found
