"""One setting of `scripts/bench remote_decides`: `python _remote_setting.py '{…}'`. Prints a JSON object, alone on its last line.

Rule 1: a fixed plan and share, and ours, run in the same training processes, with the same remote workers, one after the other. Each has a
        loader of its own, whose local workers start anew.
Rule 2: ours decides from nothing, in one go. Measured again later, it continues from there, as in a next epoch.
Rule 3: a step of training is a sleep. Ranks meet after each step.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import secrets
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import _machine
from _gpu_chains import our_dataset
from _harness import progress
from _remote_link import linked_workers, pin
from _reuse_workloads import AUDIO, dataset_of, root_of
from _workloads import Tiny, ZeroCost

import penstock
from penstock import transforms as T  # noqa: N812
from penstock.client.remote_side import RemoteSide
from penstock.node.link import NodeLink
from penstock.remote.connect import WorkerAddress

ENDLESS = 4_000_000
RAW_RATE, RAW_S = 44_100, 4
RESAMPLE, ARRAYS, TINY = "resample", "arrays", "tiny"
BATCH = {AUDIO: 16, RESAMPLE: 16, TINY: 256}
PLANS = {AUDIO: ("samples", "bytes", "batches"), RESAMPLE: ("samples", "bytes", "batches")}
PLANS |= {ARRAYS: ("samples", "batches"), TINY: ("samples", "batches")}
IMAGE_PLANS = ("samples", "cut", "bytes", "batches")
NEAR = 0.85
"""A plan gets all shares if it reached this part of the best rate with some."""
FINALISTS = 2
GATHER_S = 60.0


class Way(NamedTuple):
    """How remote workers are used."""

    plan: str = ""
    share: float | str | None = 0.0
    """None: all that they can do without a delay to a batch."""

    def __str__(self) -> str:
        return f"{self.plan} {'eager' if self.share is None else self.share}" if self.plan else "local"


LOCAL, AUTO = Way(), Way("auto", "auto")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A setting, and how long to measure."""

    name: str
    workload: str
    local: int
    """Cores of this machine; as many workers, divided between ranks."""
    remote: int
    ranks: int = 1
    gbit: float = 0.0
    """Gbit/s of the link; 0: no limit."""
    training: float = 0.0
    """Training's own rate, as a multiple of the local rate; 0: training takes no time."""
    brute: bool = True
    """Look for the best fixed way; otherwise compare with local workers alone."""
    data: str | None = None
    warmup_s: float = 1.0
    seconds: float = 3.0
    decide_s: float = 40.0
    rounds: int = 3
    cores: tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[int, ...]] = ((), (), ())
    """Of the local side, of each remote worker, of the link; empty: any."""

    @property
    def batch(self) -> int:
        return BATCH.get(self.workload, 32)


def dataset(workload: str, data: str | None) -> Any:
    if workload in (ARRAYS, TINY):
        return ZeroCost(ENDLESS, "float32") if workload == ARRAYS else Tiny(ENDLESS)
    root = root_of(AUDIO if workload in (AUDIO, RESAMPLE) else workload, data, 300)
    if workload == RESAMPLE:
        found: Any = dataset_of(AUDIO, root, ENDLESS)
        chain = [T.PadOrCut(RAW_S * RAW_RATE), T.Gain((-6, 6))]
        raw: Any = penstock.AudioFolder(str(root), chain, sample_rate=RAW_RATE)
        raw.samples = found.samples
        return raw
    return our_dataset(root, workload, ENDLESS) if workload == "W2" else dataset_of(workload, root, ENDLESS)


class Meeting:
    """Where ranks meet after each step, and what rank 0 and the others know of each other."""

    def __init__(self, context: Any, ranks: int) -> None:
        self.barrier, self.settled = context.Barrier(ranks), context.Array("b", ranks)


class Rank:
    """One training process."""

    def __init__(self, asked: Asked, number: int, addresses: tuple[WorkerAddress, ...], job: str, meeting: Meeting) -> None:  # fmt: skip
        self.asked, self.number, self.addresses, self.meeting = asked, number, addresses, meeting
        self.link = NodeLink.attach(job, 60)
        self.dataset = dataset(asked.workload, asked.data)
        self.sides: dict[Way, RemoteSide] = {}

    def side(self, way: Way) -> RemoteSide:
        if way not in self.sides:
            self.sides[way] = RemoteSide(
                open_ferry=lambda facts, fds: self.link.open("ferry", facts, fds, within_s=60),
                addresses=self.addresses,
                plan=way.plan,
                share=way.share,
                most=self.asked.remote // self.asked.ranks,
            )
        return self.sides[way]

    def steps(self, way: Way, step_s: float) -> Generator[None]:
        """Train, a batch at a time."""
        loader: Any = penstock.DataLoader(
            self.dataset,
            self.asked.batch,
            shuffle=True,
            seed=3 + self.number,
            num_workers=self.asked.local // self.asked.ranks,
        )
        if way != LOCAL:
            loader._remote = self.side(way)
        batches, known = iter(loader), ""
        self.meeting.settled[self.number] = 0
        try:
            for _ in batches:
                if step_s:
                    time.sleep(step_s)
                if way == AUTO and (course := self.side(way).record.course) is not known:
                    known = course
                    self.meeting.settled[self.number] = is_settled(course)
                if self.asked.ranks > 1:
                    self.meeting.barrier.wait(60)
                yield
        finally:
            del batches, loader

    def follow(self, pipe: Any) -> NoReturn:
        """Train as rank 0 says, each time until it breaks off."""
        while True:
            with contextlib.suppress(threading.BrokenBarrierError):
                for _ in self.steps(*pipe.recv()):
                    pass
            pipe.send(None)


def is_settled(course: str) -> bool:
    """Whether nothing is being tried."""
    facts = json.loads(course) if course else {"stage": "", "reason": ""}
    if facts["stage"] == "refining":
        return facts["refining"]["rival"] is None
    return facts["stage"] == "local" and str(facts["reason"]).startswith("no offloading")


class Measured(NamedTuple):
    rate: float
    """Samples per second, of all ranks."""
    ferry: float
    """Share of a core that the ferry used."""


class Leader:
    """Rank 0: measures, and has the others do the same."""

    def __init__(self, rank: Rank, pipes: list[Any]) -> None:
        self.rank, self.pipes = rank, pipes
        self.batch = rank.asked.batch * rank.asked.ranks

    @contextlib.contextmanager
    def training(self, way: Way, step_s: float) -> Any:
        for pipe in self.pipes:
            pipe.send((way, step_s))
        steps = self.rank.steps(way, step_s)
        try:
            yield steps
        finally:
            steps.close()
            self.rank.meeting.barrier.abort()
            for pipe in self.pipes:
                pipe.recv()
            self.rank.meeting.barrier.reset()

    def gather(self) -> None:
        """Wait until all remote workers are there: connecting is start-up, and not measured."""
        eager, asked = Way("samples", None), self.rank.asked
        record = self.rank.side(eager).record
        with self.training(eager, 0.0) as steps:
            drawn(steps, lambda at_s: at_s > GATHER_S or record.workers == asked.remote // asked.ranks)
        if record.workers < asked.remote // asked.ranks:
            raise RuntimeError(f"{record.workers} of {asked.remote} remote workers came")

    def measure(self, way: Way, step_s: float, warmup_s: float, seconds: float) -> Measured:
        with self.training(way, step_s) as steps:
            next(steps)
            drawn(steps, lambda at_s: at_s > warmup_s)
            before_s = self._ferry_s()
            count, wall_s = drawn(steps, lambda at_s: at_s > seconds)
            return Measured(count * self.batch / wall_s, (self._ferry_s() - before_s) / wall_s)

    def _ferry_s(self) -> float:
        """CPU seconds of the ferry: the node's one child, if it has any yet."""
        node = self.rank.link.pid
        children = [int(pid) for pid in Path(f"/proc/{node}/task/{node}/children").read_text().split()]
        return sum(_machine.cpu_clocks(children).values())

    def decide(self, step_s: float) -> dict[str, Any]:
        """Let ours decide; say how long that took, and how."""
        asked, settled = self.rank.asked, self.rank.meeting.settled
        with self.training(AUTO, step_s) as steps:
            next(steps)  # workers have started
            count, wall_s = drawn(steps, lambda at_s: at_s > asked.decide_s or all(settled))
            done = all(settled)
        stats = self.rank.side(AUTO).record.stats
        told = {
            name: stats.get(name) for name in ("stage", "plan", "share", "workers_wanted", "reason", "plans")
        }
        return {
            "decided": done,
            "decided_s": wall_s,
            "meanwhile": count * self.batch / wall_s,
            "auto_is": told,
        }


def drawn(steps: Iterable[None], is_over: Callable[[float], bool]) -> tuple[int, float]:
    """Train until then; return steps and seconds."""
    count, started_s = 0, time.perf_counter()
    for _ in steps:
        count += 1
        if is_over(time.perf_counter() - started_s):
            break
    return count, time.perf_counter() - started_s


def fixed_ways(leader: Leader, step_s: float) -> dict[Way, float]:
    """Samples per second of each fixed way: first all for a short time, then the best for longer."""
    asked = leader.rank.asked
    plans = PLANS.get(asked.workload, IMAGE_PLANS)

    def short(ways: Iterable[Way]) -> dict[Way, float]:
        return {way: leader.measure(way, step_s, asked.warmup_s, asked.seconds / 2).rate for way in ways}

    found = short([LOCAL])
    for plan in plans:
        found |= short(Way(plan, share) for share in (None, 0.5, 1.0))
    near = [plan for plan in plans if best_of(found, plan) > NEAR * max(found.values())]
    for plan in near:
        found |= short(Way(plan, share) for share in (0.25, 0.75))
    for way in sorted(found, key=lambda way: -found[way])[:FINALISTS]:
        found[way] = leader.measure(way, step_s, asked.warmup_s, asked.seconds).rate
    return found


def best_of(found: dict[Way, float], plan: str) -> float:
    return max(rate for way, rate in found.items() if way.plan == plan)


def compared(leader: Leader) -> dict[str, Any]:
    """Ours beside the best fixed way, in turns."""
    asked = leader.rank.asked
    leader.gather()
    alone = leader.measure(LOCAL, 0.0, asked.warmup_s, asked.seconds).rate
    step_s = leader.batch / (asked.training * alone) if asked.training else 0.0
    row: dict[str, Any] = {"alone": alone, "step_ms": 1000 * step_s}
    progress(f"{asked.name}: {alone:.4g} samples/s with local workers alone")
    row |= leader.decide(step_s)
    progress(f"{asked.name}: {row['auto_is']['reason']} ({row['decided_s']:.1f} s)")
    best = LOCAL
    if asked.brute:
        found = fixed_ways(leader, step_s)
        best = max(found, key=lambda way: found[way])
        row["fixed"] = {str(way): rate for way, rate in found.items()}
        row["by_plan"] = {plan or "local": best_of(found, plan) for plan in {way.plan: 0 for way in found}}
    row["best"] = str(best)
    turns: dict[Way, list[Measured]] = {AUTO: [], best: []}
    for number in range(asked.rounds):
        for way in (AUTO, best) if number % 2 else (best, AUTO):
            turns[way].append(leader.measure(way, step_s, 1.5 * asked.warmup_s, asked.seconds))
    row["auto_rates"] = [one.rate for one in turns[AUTO]]
    row["best_rates"] = [one.rate for one in turns[best]]
    row["ferry_cores"] = statistics.median(one.ferry for one in turns[AUTO])
    pairs = zip(row["auto_rates"], row["best_rates"], strict=True)
    row["ratio"] = statistics.median(ours / fixed for ours, fixed in pairs)
    ours = statistics.median(row["auto_rates"])
    row["profile_s"] = row["decided_s"] * (1 - row["meanwhile"] / ours)
    row["last"] = {name: leader.rank.side(AUTO).record.stats.get(name) for name in ("stage", "plan", "share", "workers_wanted")}  # fmt: skip
    return row


def main(asked: Asked) -> None:
    here, there, between = asked.cores
    with contextlib.ExitStack() as stack:
        workers = linked_workers(there or [()] * asked.remote, asked.gbit, between)
        addresses = stack.enter_context(workers)
        pin(here)
        job, context = f"bench {secrets.token_hex(8)}", multiprocessing.get_context("fork")
        meeting, pipes = Meeting(context, asked.ranks), []
        for number in range(1, asked.ranks):
            ours, theirs = context.Pipe()
            other = context.Process(target=run_rank, args=(asked, number, addresses, job, meeting, theirs))
            other.start()
            stack.callback(other.kill)
            pipes.append(ours)
        leader = Leader(Rank(asked, 0, addresses, job, meeting), pipes)
        stack.callback(leader.rank.link.close)
        row = compared(leader)
    print(json.dumps(row), flush=True)


def run_rank(asked: Asked, number: int, addresses: tuple[WorkerAddress, ...], job: str, meeting: Meeting, pipe: Any) -> None:  # fmt: skip
    Rank(asked, number, addresses, job, meeting).follow(pipe)


if __name__ == "__main__":
    main(Asked(**json.loads(sys.argv[1])))
