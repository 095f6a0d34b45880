"""The GPU lane turns a batch as workers leave it, some samples finished and some not, into a batch on the device.

Finished pixels alone are copied, scaled and normalised on the stream of the thread that transfers batches (`begin`). Other batches go to
stations, threads with their own streams, which decode files and execute programs straight into the batch (`make`). Several batches are in flight
at once, so that stations always have work when the device has a moment for them.

What workers leave to the lane, and whether it works beside training or only in its pauses, is decided as batches are taken (`taken`).

Training comes first: stations use the memory that its first batches have left (`begin` is told when). Until they are ready, workers leave nothing
to the lane. With a fixed share, which must not depend on timing, they get ready before the first batch; memory for samples stored on the device
is still allocated later, since no byte depends on it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from penstock.gpu.gate import Gate
from penstock.gpu.modes import Modes
from penstock.gpu.pending import PendingBatch, Readiness, Station, StationJob, start
from penstock.gpu.requests import AS_THERE_IS_ROOM, Requests
from penstock.gpu.residents import Residents
from penstock.gpu.slots import DECODED, ENCODED, KEPT, RESIDENT, Contents, pixels_in
from penstock.kernels.finish import normalised
from penstock.policy.backlog import Seen
from penstock.transforms.steps import Size
from penstock.transforms.tail import Tail

FIRST_BATCH, FIRST_AHEAD = 64, 16
"""Assumed batch size and batches ahead, before the first batch."""
YOUNG = 8
"""Batches of an iteration that are ignored: training waits for the first ones, however fast workers are."""
FADE = 0.1
COPIED_AT_ONCE = 64 << 20
"""Most bytes of slots on the device beside their batch: slots have room for files and decoded images, several times that of pixels."""


class BegunBatch(NamedTuple):
    """A batch whose copies are in flight."""

    images: torch.Tensor
    others: list[Any]
    """The batch's other parts, not moved."""
    contents: Contents


class GpuLane:
    """Finishes batches of `SlotDataset`, and says through `requests` what workers should leave to it."""

    def __init__(
        self,
        tail: Tail,
        size: Size,
        device: torch.device,
        stations: Sequence[Station],
        requests: Requests,
        modes: Modes,
        *,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        residents: Residents | None = None,
    ) -> None:
        """`residents`: the samples stored on the device."""
        self._tail, self._size, self._device, self._stations = tail, size, device, stations
        self._requests, self._modes, self.gate = requests, modes, Gate()
        self._dtype = dtype or tail.dtype
        self._format = memory_format or torch.contiguous_format
        self.residents = residents
        for station in stations:
            station.residents = residents
        self._jobs: SimpleQueue[StationJob | None] = SimpleQueue()
        self._ready: Readiness | None = None
        self._requested, self._is_late = False, device.type == "cuda" and modes.fixed_share is None
        self.owner: Callable[[], Any] = lambda: None
        """Returns the iterator it makes batches for, if that still exists."""
        self._packed_lately = self._busy_s = self._taken_s = 0.0
        self._batch, self._ahead, self._young = FIRST_BATCH, FIRST_AHEAD, YOUNG
        self._largest = 0
        """Samples of the largest batch so far."""
        self._counting = threading.Lock()
        self.samples = self.packed = self.decoded = self.resident = 0
        self.gate.idle_only = modes.is_idle
        self._request()

    def belong_to(self, owner: Any) -> None:
        """Make batches for this iterator from now on, with what was learned before."""
        self.owner = weakref.ref(owner)
        self._taken_s, self._young = 0.0, YOUNG
        self._requests.forget()

    @property
    def is_free(self) -> bool:
        owner = self.owner()
        return owner is None or owner.closed

    def _request(self) -> None:
        """Tell workers what to leave to the lane."""
        fixed = self._modes.fixed_share
        share = AS_THERE_IS_ROOM if fixed is None else fixed
        limit, finishes = self._modes.limit * self._batch, self._modes.finishes
        useless = self._ready is not None and not self._ready.can_help and fixed is None
        self._requested = bool(self._stations) and bool(
            finishes or (limit if share == AS_THERE_IS_ROOM else share)
        )
        if not self._requested or useless or (self._is_late and self._ready is None):
            share, limit, finishes = 0.0, 0.0, False
        self._requests.say(share=share, limit=limit, finishes=finishes, samples=self._batch)

    def _prepared(self, *, spare_known: bool) -> None:
        """Start the stations at the first request. Not before there are workers: those are forked, and would inherit the locks of a thread that
        imports or compiles."""
        if self._requested and self._ready is None and (spare_known or not self._is_late):
            self._ready = Readiness(len(self._stations))
            for number, station in enumerate(self._stations):
                start(station, number, self._jobs, self._ready, self.gate)
                weakref.finalize(self, self._jobs.put, None).atexit = False
        if self._ready is not None:
            self._ready.wait()
            if self.residents is not None and spare_known and self._ready.can_help:
                self.residents.open()

    def begin(self, batch: Any, *, spare_known: bool) -> BegunBatch:
        """Start the batch's copies on the current stream. `spare_known`: device memory left beside training may be taken."""
        self._prepared(spare_known=spare_known)
        slots, *others = batch
        contents = Contents(slots, self._size)
        packed = contents.count(ENCODED)
        with self._counting:
            self._requests.came(contents.entry, packed, lasting=2 * self._ahead + FIRST_AHEAD)
        self.samples, self._largest = self.samples + len(slots), max(self._largest, len(slots))
        self.packed += packed
        self._packed_lately += FADE * (packed / len(slots) - self._packed_lately)
        self.decoded += contents.count(DECODED) + contents.count(KEPT)
        self.resident += contents.count(RESIDENT)
        shape = (len(slots), 3, *self._size)
        out = torch.empty(shape, dtype=self._dtype, device=self._device, memory_format=self._format)
        if not contents.has_gpu_samples:
            few = max(1, COPIED_AT_ONCE // contents.slot)
            for at in range(0, len(slots), few):
                self._finish(slots[at : at + few], out[at : at + few])
        return BegunBatch(out, others, contents)

    def _finish(self, slots: torch.Tensor, out: torch.Tensor) -> None:
        there = slots.to(self._device, non_blocking=True)
        normalised(self._tail, pixels_in(there, self._size), out)

    def make(self, begun: BegunBatch, copied: Any) -> PendingBatch:
        """Queue the samples for stations, which write after `copied`, the event of the batch's copies. Finished samples go along, with only their
        tail to do: so the batch needs no device memory beside its result."""
        contents = begun.contents
        tasks = self._stations[0].tasks(contents) if contents.has_gpu_samples else []
        pending = PendingBatch(samples=len(begun.images), tasks=len(tasks), copied=copied)
        for task in tasks:
            made = partial(self._made, contents.entry, len(task.ordinals) if task.files else 0)
            self._jobs.put(StationJob(pending, task, begun.images, copied, made))
        return pending

    def _made(self, entry: int, files: int, seconds: float) -> None:
        """Record that a task is done. Called by stations."""
        with self._counting:
            self._busy_s += seconds
            if files:
                self._requests.made(entry, files)

    @property
    def takes_cores(self) -> bool:
        """Whether workers must leave cores to it now."""
        can_help = self._ready is None or self._ready.can_help
        return bool(self._stations) and can_help and self._modes.takes_cores

    @property
    def backlog(self) -> float:
        """Files that workers have left and nobody has made yet, in batches."""
        return self._requests.in_flight / max(1, self._largest)

    def rest(self) -> None:
        """An epoch has ended: do not count the time until the next request."""
        self._taken_s = 0.0

    def taken(self, pending: PendingBatch, asked_s: float, ready: int, ahead: int) -> None:
        """Training asked for this batch at `asked_s` and has it now; `ready` of the `ahead` next ones are finished."""
        now, before = time.perf_counter(), self._taken_s
        with self._counting:
            busy_s, self._busy_s = self._busy_s, 0.0
        self._taken_s, self._ahead, self._batch = now, ahead, max(self._batch, pending.samples)
        self._young = max(0, self._young - 1)
        if before and not self._young:
            busy = busy_s / ((now - before) * max(1, len(self._stations)))
            wait_s, full = max(0.0, now - asked_s), self._requests.was_full()
            self._modes.on_batch(Seen(ready, ahead, wait_s, now - before, busy, full))
        self.gate.idle_only = self._modes.is_idle
        self._request()

    @property
    def mode(self) -> str:
        return str(self._modes.mode) if self._stations else "off"

    def stats(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "trying": bool(self._stations) and self._modes.trying,
            "share": self._packed_lately,
            "limit": self._requests.limit,
            "finishes": self._requests.finishes,
            "samples": self.samples,
            "packed": self.packed,
            "finished": self.decoded,
            "resident": self.resident,
            "by_cpu": sum(station.by_cpu for station in self._stations),
            "held_bytes": sum(station.held_bytes for station in self._stations),
            "cannot": "" if self._ready is None else self._ready.reason,
        }
