"""A run as a Chrome/Perfetto trace: one row per worker, one for the consumer's waits. Opens in ui.perfetto.dev."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from penstock.measure.counters import Counters

KINDS = ("prepare", "prepare part", "collate", "prepare batch", "stream")


def trace_events(counters: Counters) -> list[dict[str, Any]]:
    """Events in the Trace Event Format; times in microseconds of the monotonic clock."""
    events: list[dict[str, Any]] = [named("process_name", 0, "penstock"), named("thread_name", 0, "training")]
    events += [named("thread_name", worker + 1, f"worker {worker}") for worker in range(counters.workers)]
    for worker, kind, batch, epoch, end_ns, took_ns, samples in list(counters.spans):
        args = {"epoch": epoch, "batch": batch, "samples": samples}
        events.append(complete(KINDS[kind], worker + 1, (end_ns - took_ns) / 1e3, took_ns / 1e3, args))
    for begin_s, end_s, samples in list(counters.wait_spans):
        events.append(complete("wait", 0, begin_s * 1e6, (end_s - begin_s) * 1e6, {"samples": samples}))
    return events


def named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 0, "tid": thread, "args": {"name": name}}


def complete(name: str, thread: int, start_us: float, took_us: float, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 0, "tid": thread, "ts": start_us, "dur": took_us, "args": args}


def write_trace(path: str | os.PathLike[str], counters: Counters) -> None:
    Path(path).write_text(json.dumps({"traceEvents": trace_events(counters), "displayTimeUnit": "ms"}))
