"""Read a trace file into values to draw: tasks, waits, lost workers, ready batches. Times are seconds from the first event."""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import PenstockError

PROCESS = "penstock"
"""Our process name in a trace, and the key of the facts apart from events."""


class WorkSpan(NamedTuple):
    """A task of one worker."""

    row: int
    kind: str
    batch: int
    epoch: int
    samples: int
    start_s: float
    end_s: float


class Wait(NamedTuple):
    """One `next()` of the training loop."""

    start_s: float
    end_s: float
    samples: int

    @property
    def took_s(self) -> float:
        return self.end_s - self.start_s


class Moment(NamedTuple):
    """An event at one time."""

    at_s: float
    what: str


class Ready(NamedTuple):
    """Batches still ready when one was taken."""

    at_s: float
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The contents of a trace, each list in order of time."""

    workers: tuple[str, ...] = ()
    """Names of the workers; a task's `row` counts them from 0."""
    tasks: tuple[WorkSpan, ...] = ()
    waits: tuple[Wait, ...] = ()
    moments: tuple[Moment, ...] = ()
    ready: tuple[Ready, ...] = ()

    @property
    def end_s(self) -> float:
        return max((*(task.end_s for task in self.tasks), *(wait.end_s for wait in self.waits)), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace file."""

    run: RunRecord
    stats: Mapping[str, Any]
    """`loader.stats()` at the time of writing; derived from the events if the file has none."""
    diagnosis: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The machine of the run."""


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace written by `DataLoader(trace=…)`."""
    try:
        found = json.loads(Path(path).read_text("utf-8"))
        events = list(found["traceEvents"] if isinstance(found, dict) else found)
        about = found.get("penstock", {}) if isinstance(found, dict) else {}
        if not any(e["ph"] == "M" and e["args"].get("name") == PROCESS for e in events):
            raise ValueError("none of its processes is penstock's")
        run = run_of(events)
        stats, diagnosis = about.get("stats") or stats_of(run), about.get("diagnosis", "")
        return Trace(run=run, stats=stats, diagnosis=diagnosis, environment=about.get("environment", {}))
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise PenstockError(
            f"{os.fspath(path)} is not a trace of penstock's DataLoader ({type(exc).__name__}: {exc}); "
            f"DataLoader(trace=…) writes one at the end of each epoch"
        ) from exc


def stats_of(run: RunRecord) -> dict[str, Any]:
    """Derive stats from the events alone, by the names of `loader.stats()`."""
    wait_s = sum(wait.took_s for wait in run.waits)
    elapsed_s = run.waits[-1].end_s if run.waits else 0.0
    busy = [sum(t.end_s - t.start_s for t in run.tasks if t.row == row) for row in range(len(run.workers))]
    return {
        "batches": len(run.waits),
        "samples": sum(wait.samples for wait in run.waits),
        "elapsed_s": elapsed_s,
        "wait_s": wait_s,
        "wait_share": wait_s / elapsed_s if elapsed_s else 0.0,
        "workers": len(run.workers),
        "worker_busy_s": busy,
        "tasks": len(run.tasks),
        "restarts": sum("it is replaced" in moment.what for moment in run.moments),
    }


def run_of(events: Iterable[Mapping[str, Any]]) -> RunRecord:
    events = list(events)
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    rows = sorted(tid for tid in names if tid != 0)
    row_of = {tid: row for row, tid in enumerate(rows)}
    timed = [e for e in events if e["ph"] in "XCi"]
    zero_us = min((e["ts"] for e in timed), default=0.0)

    def at_s(us: float) -> float:
        return (us - zero_us) / 1e6

    counts = [e for e in timed if e["ph"] == "C"]
    tasks, waits = [], []
    for e in timed:
        if e["ph"] != "X":
            continue
        args, start_s, end_s = e.get("args", {}), at_s(e["ts"]), at_s(e["ts"] + e["dur"])
        if e.get("cat") == "wait":
            waits.append(Wait(start_s, end_s, args.get("samples", 0)))
        elif e["tid"] in row_of:
            where = args.get("batch", -1), args.get("epoch", -1), args.get("samples", 0)
            tasks.append(WorkSpan(row_of[e["tid"]], e["name"], *where, start_s, end_s))
    return RunRecord(
        workers=tuple(names[tid] for tid in rows),
        tasks=tuple(sorted(tasks, key=lambda task: task.start_s)),
        waits=tuple(sorted(waits)),
        moments=tuple(sorted(Moment(at_s(e["ts"]), e["name"]) for e in timed if e["ph"] == "i")),
        ready=tuple(sorted(Ready(at_s(e["ts"]), e["args"]["ready"]) for e in counts if "ready" in e["args"])),
    )


def coverage(spans: Iterable[tuple[float, float]], edges: Sequence[float]) -> list[float]:
    """Return how much of each interval between neighbouring edges the spans cover (at most 1)."""
    covered = [0.0] * (len(edges) - 1)
    for start, end in spans:
        at = max(0, bisect_left(edges, start) - 1)
        while at < len(covered) and edges[at] < end:
            covered[at] += max(0.0, min(end, edges[at + 1]) - max(start, edges[at]))
            at += 1
    return [min(1.0, s / (edges[i + 1] - edges[i])) for i, s in enumerate(covered)]


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value not exceeded by at least `share` of them; 0 without values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    rank = max(1, -(-len(ordered) * round(share * 1000) // 1000))
    return ordered[min(rank, len(ordered)) - 1]
