"""Batches in flight in the GPU lane, and the station threads that make their samples."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

import torch

from penstock.daemon_threads import leaves
from penstock.errors import DeviceLost
from penstock.gpu.gate import Gate
from penstock.gpu.residents import Residents
from penstock.gpu.slots import Contents, StationTask

log = logging.getLogger("penstock")
LOOK_S = 0.1
"""Poll interval: a lost wake-up costs this."""
READY_S = 300.0
HUNG_S = 120.0
"""A batch takes a station milliseconds: after this long it hangs, in the driver or on the device."""


class Station(Protocol):
    """A GPU worker: makes the pixels of samples left to the GPU; used by one thread."""

    by_cpu: int
    """Samples the CPU had to make after all."""
    residents: Residents | None
    """Samples stored on the device; set by the lane."""

    @property
    def held_bytes(self) -> int:
        """Device memory it holds."""

    def prepare(self) -> str:
        """Get ready, which may take seconds; return why it cannot help, or ""."""

    def tasks(self, contents: Contents) -> list[StationTask]:
        """Split a batch into tasks that fit the station."""

    def make(self, task: StationTask, out: torch.Tensor, after: Any) -> None:
        """Write each sample into its place in `out` once the event `after` has passed; return when they are done."""

    def close(self) -> None:
        """Release what it holds."""


class PendingBatch:
    """A batch: copied on one stream, and partly made by stations."""

    def __init__(self, *, samples: int, tasks: int, copied: Any) -> None:
        self.samples, self._tasks, self._copied = samples, tasks, copied
        self._errors: list[BaseException] = []
        self._over: deque[None] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()

    def done(self, error: BaseException | None) -> None:
        """Record that one more task is done or has failed. Called by stations."""
        if error is not None:
            self._errors.append(error)
        self._over.append(None)
        self._wake.put(None)

    def order(self, stream: Any) -> None:
        """Make `stream` wait for the batch; raise a station's error, if any."""
        began = time.monotonic()
        while len(self._over) < self._tasks:
            with contextlib.suppress(Empty):
                self._wake.get(timeout=LOOK_S)
            if time.monotonic() - began > HUNG_S:
                raise DeviceLost(
                    f"the GPU has not prepared its part of a batch within {HUNG_S:.0f} seconds: {len(self._over)} of "
                    f"{self._tasks} tasks are done. Start again from your last checkpoint; gpu_prep='off' leaves "
                    f"preparation to the CPU."
                )
        if self._errors:
            raise self._errors[0]
        if self._copied is not None:
            stream.wait_event(self._copied)

    def is_over(self) -> bool:
        return len(self._over) == self._tasks and (self._copied is None or bool(self._copied.query()))

    def outlast(self, until_s: float) -> None:
        """Wait until nothing reads the batch's memory, whatever has become of it; but not for a hung station."""
        while len(self._over) < self._tasks and time.monotonic() < until_s:
            time.sleep(LOOK_S / 20)
        if self._copied is not None:
            self._copied.synchronize()


class StationJob(NamedTuple):
    pending: PendingBatch
    task: StationTask
    out: torch.Tensor
    after: Any
    made: Callable[[float], None]
    """Called when it is done, with the seconds it took."""


class Readiness:
    """Progress of the stations. They get ready one after the other: each finds what the one before has compiled."""

    def __init__(self, stations: int) -> None:
        self.can_help = False
        self.reason = ""
        self._left = stations
        self._turn = threading.Lock()
        self._settled = threading.Event()

    def prepare(self, station: Station) -> str:
        """Prepare a station; return why it cannot help, or ""."""
        with self._turn:
            began, reason = time.perf_counter(), "it did not get ready"
            try:
                reason = station.prepare()
            except Exception as exc:  # noqa: BLE001 - of compilers, drivers and files: workers can do without
                reason = f"{type(exc).__name__}: {exc}"
            finally:
                self._settle(reason, time.perf_counter() - began)
        return reason

    def _settle(self, reason: str, seconds: float) -> None:
        if reason and not self.reason:
            log.warning("the GPU does not help to prepare: %s", reason)
        self.reason = self.reason or reason
        self.can_help = self.can_help or not reason
        log.info("a GPU station was ready after %.1f s", seconds)
        self._left -= 1
        if not self._left:
            self._settled.set()

    def wait(self) -> None:
        """Wait until all are ready or have failed: compiling beside training holds the GIL, and would slow training for longer than this wait."""
        self._settled.wait(READY_S)


def start(
    station: Station, number: int, jobs: SimpleQueue[StationJob | None], ready: Readiness, gate: Gate
) -> None:
    """Start a station's thread; None in the queue ends it."""
    name = f"penstock gpu {number}"
    thread = threading.Thread(target=serve, args=(station, jobs, ready, gate), name=name, daemon=True)
    leaves(thread, partial(jobs.put, None))
    thread.start()


def serve(station: Station, jobs: SimpleQueue[StationJob | None], ready: Readiness, gate: Gate) -> None:
    """Run a station's thread. It refers to the queue and not to the lane, so that dropping the lane ends it."""
    reason = ready.prepare(station)
    ready.wait()
    # An unready station makes everything on the CPU: if another is ready, it takes nothing.
    if not reason or not ready.can_help:
        work(station, jobs, gate)
    station.close()


def work(station: Station, jobs: SimpleQueue[StationJob | None], gate: Gate) -> None:
    while (job := jobs.get()) is not None:
        error, began = None, time.perf_counter()
        try:
            gate.wait()
            began = time.perf_counter()
            station.make(job.task, job.out, job.after)
        except BaseException as exc:  # noqa: BLE001 - raised where the batch is taken
            error = exc
        job.made(time.perf_counter() - began)
        job.pending.done(error)
        del job, error  # they hold a batch
