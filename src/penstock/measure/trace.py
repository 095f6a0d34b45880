"""Write a run as a Chrome/Perfetto trace: one row for the training loop's waits, one per worker. Opens in ui.perfetto.dev.

Rule 1: times are microseconds of the monotonic clock and the pid is the training process's, so traces of several ranks on one machine
        can be merged.
Rule 2: the file is written atomically; a reader never sees half of it.
Rule 3: an unwritable path is refused when the loader is built. Later failures (full disk, missing folder) are logged once and never
        raised: training is worth more than its trace.

`cat` is an event's kind: `task`, `wait`, or `fault` for a lost worker and the like. Under `penstock` the file also holds the loader's
numbers, its diagnosis and the machine, so that a page can be made from the file alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.measure.counters import Counters
from penstock.measure.environment import environment

log = logging.getLogger("penstock")

KINDS = ("prepare", "prepare part", "collate", "prepare batch", "stream")
"""Names of task kinds, by number."""
TRAINING = 0
"""The row of the training loop; worker n has row n + 1."""


def trace_events(counters: Counters, pid: int = 0) -> list[dict[str, Any]]:
    """Return events in the Trace Event Format."""
    return [{**event, "pid": pid} for event in _events(counters)]


def _events(counters: Counters) -> Iterator[dict[str, Any]]:
    yield _named("process_name", TRAINING, "penstock")
    yield _named("thread_name", TRAINING, "training")
    for worker in range(max([counters.workers, *(1 + span[0] for span in list(counters.spans))])):
        yield _named("thread_name", worker + 1, f"worker {worker}")
    # The consumer's thread may append while another thread writes a trace: iterate over a copy.
    for worker, kind, batch, epoch, end_ns, took_ns, samples in list(counters.spans):
        args = {"epoch": epoch, "batch": batch, "samples": samples}
        start_us = (end_ns - took_ns) / 1e3
        yield _complete(KINDS[kind], "task", worker + 1, start_us, took_ns / 1e3, args)
    for begin_s, end_s, samples, ready in list(counters.wait_spans):
        took_us = (end_s - begin_s) * 1e6
        yield _complete("wait", "wait", TRAINING, begin_s * 1e6, took_us, {"samples": samples})
        yield {"ph": "C", "name": "batches ready", "tid": TRAINING, "ts": _us(end_s * 1e6), "args": {"ready": ready}}  # fmt: skip
    for at_ns, own, allowed in list(counters.core_changes):
        args = {"own": own, "allowed": allowed}
        yield {"ph": "C", "name": "cores", "tid": TRAINING, "ts": _us(at_ns / 1e3), "args": args}
    for at_s, text in list(counters.moments):
        # The text may include a worker's stack; viewers show the name in one line.
        name = text.partition("\n")[0]
        yield {"ph": "i", "s": "p", "name": name, "cat": "fault", "tid": TRAINING, "ts": _us(at_s * 1e6), "args": {"text": text}}  # fmt: skip


def _named(what: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "tid": row, "args": {"name": name}}


def _complete(
    name: str, cat: str, row: int, start_us: float, took_us: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {"ph": "X", "name": name, "cat": cat, "tid": row, "ts": _us(start_us), "dur": _us(took_us), "args": args}  # fmt: skip


def _us(value: float) -> float:
    """Round to the nanosecond: more digits are noise and enlarge the file."""
    return round(value, 3)


def check_trace(path: Any) -> None:
    """Raise ConfigError if no trace can be written at the path."""
    if path is None:
        return
    try:
        target = Path(path)
    except TypeError as exc:
        raise ConfigError(f"trace must be a path of a file, got {path!r}") from exc
    folder, why = target.parent, ""
    if target.is_dir() or not target.name:
        why = "it is a folder; give the path of a file"
    elif not folder.exists():
        why = f"there is no folder {str(folder)!r}; make it first"
    else:
        trial = target.with_name(f"{target.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
        try:
            trial.touch(exist_ok=False)
            trial.unlink()
        except OSError as exc:
            why = f"{exc.strerror or exc}; give a place that this user may write to"
    if why:
        raise ConfigError(f"trace={os.fspath(target)!r}: it cannot be written, {why}")


def described(stats: Mapping[str, Any], diagnosis: str) -> dict[str, Any]:
    """Return what a trace holds apart from its events."""
    return {"stats": dict(stats), "diagnosis": diagnosis, "environment": environment()}


def write_trace(
    path: str | os.PathLike[str], counters: Counters, about: Mapping[str, Any] | None = None
) -> None:
    events = trace_events(counters, os.getpid())
    whole = {"displayTimeUnit": "ms", "penstock": about or {}, "traceEvents": events}
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(whole, default=str), "utf-8")
        part.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def trace_writer(
    path: str | os.PathLike[str] | None,
    counters: Counters,
    about: Callable[[], Mapping[str, Any] | None] = lambda: None,
) -> Callable[[], None]:
    """Return a function that writes the current trace on each call. It does nothing without a path or in a forked child, and never raises.

    about: returns the facts of `described`, or None once they are gone.
    """
    owner = os.getpid()

    def write() -> None:
        if path is None or os.getpid() != owner:
            return
        try:
            write_trace(path, counters, about())
        except Exception as exc:  # noqa: BLE001 - at the end of an epoch, or in a finaliser
            if not counters.trace_failed:
                counters.trace_failed = True
                log.warning(
                    "the trace cannot be written to %s (%s: %s); training goes on, and the next epoch's end tries again",
                    os.fspath(path),
                    type(exc).__name__,
                    exc,
                )

    return write
