"""A job whose ranks lend cores to one another, through faults at random moments, drawn from a seed, with real processes and signals.

The manager of cores, the node process, agents, workers and whole ranks are killed, or stopped and continued. Every batch must be, bit for bit, what one
process alone delivers, and each exactly once; no step may take long; at the end all cores are back, and nothing is left.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.fault.programs import Zygote
from tests.leaks import Snapshot, brand_this_process
from tests.lending_jobs import MANAGER, NODE, Job, Rank, named_here

FAULTS_OF_A_JOB = 16
LIMIT_S = 25.0
"""A job that has had fewer faults by then ends with the epoch."""
SOON_S = 0.03
DULL_S = 4.0
"""So long faults wait for a job that lends; then one comes all the same."""
FAULTS = (
    ["kill manager"] * 3
    + ["stop manager"] * 3
    + ["kill node", "stop node"]
    + ["kill agent"] * 3
    + ["stop agent"] * 2
    + ["kill worker"] * 4
    + ["stop worker"]
    + ["stop rank", "stop all of a rank", "kill rank"]
)
STOPS_S = {"manager": (0.2, 0.8, 1.5, 3.0), "node": (0.2, 1.0, 3.0), "agent": (0.2, 0.7, 2.5), "worker": (0.2, 0.5), "rank": (0.2, 1.0)}  # fmt: skip


@functools.cache
def zygote() -> Zygote:
    """Starts the ranks of all schedules that this process plays."""
    brand_this_process()  # to know the node process and its services as ours
    return Zygote("tests.lending_jobs")


@dataclass(slots=True)
class Played:
    """A run so far."""

    rng: random.Random
    job: Job
    faults: Counter[str] = field(default_factory=Counter)
    living: int = 0
    """Faults that came when the job lent and had lent."""
    began_s: float = field(default_factory=time.monotonic)
    last_s: float = field(default_factory=time.monotonic)
    killed: tuple[int, float] = (0, 0.0)
    """The manager that was killed, itself or with its node, and when; (0, 0): all ranks have one."""
    back_s: list[float] = field(default_factory=list)
    """Times until all ranks had another one."""
    descriptors: dict[int, int] = field(default_factory=dict)
    """How many each rank had open when the job was first seen to lend."""

    def act(self, _: int) -> None:
        """Do harm, perhaps."""
        pid, at_s = self.killed
        if pid and self.job.is_joined() and pid not in named_here(MANAGER):
            self.back_s.append(round(time.monotonic() - at_s, 2))
            self.killed = (0, 0.0)
        if self.is_full() or self.rng.random() < 0.5:
            return
        lends = self.job.lends()
        if lends and not self.descriptors:
            self.descriptors = {rank.number: rank.descriptors() for rank in self.job.living}
        if lends or time.monotonic() > self.last_s + DULL_S:
            self.living += self.harm(self.rng.choice(FAULTS)) and lends

    def is_full(self) -> bool:
        return self.faults.total() >= FAULTS_OF_A_JOB

    def is_enough(self) -> bool:
        over = self.is_full() or time.monotonic() > self.began_s + LIMIT_S
        return over and self.job.is_calm() and self.job.is_joined()

    def harm(self, what: str) -> bool:
        """Have some harm done soon; False: there is nobody to whom."""
        verb, _, whom = what.partition(" ")
        whole = [rank for rank in self.job.living if not rank.doomed]
        rank = self.rng.choice(whole)
        pids = self.found(whom, rank)
        if not pids or (what == "kill rank" and len(whole) < 2):
            return False
        self.faults[what] += 1
        self.last_s = time.monotonic()
        soon_s = self.rng.random() * SOON_S
        if what == "kill rank":
            rank.doomed = True
        if verb == "kill":
            pid = self.rng.choice(pids)
            self.job.later(soon_s, lambda: os.kill(pid, signal.SIGKILL))
            if whom in ("manager", "node") and not self.killed[0]:
                self.killed = (next(iter(named_here(MANAGER)), 0), self.last_s + soon_s)
            return True
        if whom != "all of a rank":
            pids = [self.rng.choice(pids)]
        for_s = self.rng.choice(STOPS_S.get(whom, STOPS_S["rank"]))
        for pid in pids:
            self.job.pause(pid, for_s, soon_s)
        return True

    def found(self, whom: str, rank: Rank) -> list[int]:
        """Processes that can be harmed."""
        return {
            "manager": lambda: named_here(MANAGER),
            "node": lambda: named_here(NODE),
            "agent": lambda: [*filter(None, [rank.agent()])],
            "worker": rank.worker_pids,
            "rank": lambda: [rank.pid],
            "all of a rank": rank.tree,
        }[whom]()


def run(seed: int) -> dict[str, Any]:
    """Play one schedule; a row of what came of it."""
    rng, began_s, starter = random.Random(seed), time.monotonic(), zygote()
    shape = {
        "world": rng.choice((2, 2, 3)),
        "steps": rng.choice((20, 40)),
        "num_workers": rng.choice((1, 2)),
        "prefetch_factor": rng.choice((2, 3, 4)),
        "persistent_workers": rng.random() < 0.6,
        "pause_s": rng.choice((0.001, 0.002, 0.004)),
    }
    before, row = Snapshot.take(), {"seed": seed, "ok": True, "shape": shape}
    with Job(starter, **shape) as job:
        played = Played(rng, job)
        try:
            row["home_s"] = trained(played, keeps=shape["persistent_workers"])
        except Exception as exc:
            row |= {"ok": False, "why": f"{type(exc).__name__}: {exc}"}
    row["left"] = before.leaks(patience_s=10.0)
    before.kill_new_processes()
    row["ok"] = row["ok"] and not row["left"]
    return row | {
        "faults": played.faults.total(),
        "kinds": dict(played.faults),
        "living": played.living,
        "moves": sum(job.moves.values()),
        "batches": sum(len(rank.digests) for rank in job.ranks),
        "back_s": played.back_s,
        "longest_s": round(job.longest_s, 2),
        "took_s": round(time.monotonic() - began_s, 1),
    }


def trained(played: Played, *, keeps: bool) -> float | None:
    """Train to the end with faults; return how long cores then took to be back. Raises AssertionError if anything is not as it must be."""
    job = played.job
    job.run(played.act, played.is_enough)
    home_s = job.come_home() if keeps else None  # else its agents have ended with the epoch
    if keeps:
        for rank in job.living:
            before, now = played.descriptors.get(rank.number, 1 << 20), rank.descriptors()
            assert now <= before, f"rank {rank.number} had {before} descriptors, now {now}"
    job.check_batches()
    assert sum(job.moves.values()) > 0, "no core was ever lent"
    job.end()
    return None if home_s is None else round(home_s, 2)
