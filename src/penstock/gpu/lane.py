"""The GPU lane: a batch as workers leave it, with pixels of some samples and parcels of others, becomes a batch on the device.

A batch of pixels alone is copied, scaled and normalised on the stream of the thread that brings batches (`begin`). Others go to stations,
threads with streams of their own, which decode files and execute programs straight into the samples' places (`make`). Several
batches are under way at once, so that stations have work whenever the device has a moment for them.

How large the lane's share is, and whether it may work beside training or only in its pauses, is decided as batches are taken (`taken`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

from penstock.gpu.gate import Gate
from penstock.gpu.modes import Modes
from penstock.gpu.parcels import SharedNumbers
from penstock.gpu.pending import Job, Pending, Readiness, Station, serve
from penstock.gpu.slots import DECODED, ENCODED, Parcel, pixels_in, unpacked
from penstock.kernels.finish import normalised
from penstock.policy.share import Seen
from penstock.transforms.steps import Size
from penstock.transforms.tail import Tail


class Begun(NamedTuple):
    """A batch whose copies are under way."""

    images: torch.Tensor
    others: list[Any]
    """What else it has, where it was."""
    parcels: list[Parcel]
    slots: torch.Tensor
    began_s: float


class GpuLane:
    """Finishes batches of `Parcels`, and says through `share` how many of their samples it will have from now on."""

    def __init__(
        self,
        tail: Tail,
        size: Size,
        device: torch.device,
        stations: Sequence[Station],
        numbers: SharedNumbers,
        modes: Modes,
        *,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
    ) -> None:
        self._tail, self._size, self._device, self._stations = tail, size, device, stations
        self._numbers, self._modes, self.gate = numbers, modes, Gate()
        self._dtype = dtype or tail.dtype
        self._format = memory_format or torch.contiguous_format
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ready: Readiness | None = None
        self._wished = False
        self.owner: Callable[[], Any] = lambda: None
        """The iterator that it makes batches for, while that is there."""
        self._done_s = self._taken_s = 0.0
        self.samples = self.packed = self.decoded = 0
        self.gate.idle_only = modes.is_idle
        self._wish()

    def belong_to(self, owner: Any) -> None:
        """Make batches for this iterator from now on; what was learned with others before it counts."""
        self.owner = weakref.ref(owner)
        self._done_s = self._taken_s = 0.0

    @property
    def is_free(self) -> bool:
        owner = self.owner()
        return owner is None or owner.closed

    def _wish(self) -> None:
        """What workers leave to the lane from now on."""
        share, finishes = self._modes.share, self._modes.finishes
        useless = self._ready is not None and not self._ready.can_help and not self._modes.fixed
        if not self._stations or useless:
            share, finishes = 0.0, False
        self._wished = bool(share or finishes)
        self._numbers.set(SharedNumbers.SHARE, share)
        self._numbers.set(SharedNumbers.FINISHES, float(finishes))

    def _prepared(self) -> None:
        """The first time that anything is wished, stations get ready for it. Not before there are workers: those are forked, and a
        thread that imports or compiles then would leave them its locks."""
        if self._wished and self._ready is None:
            self._ready = Readiness(len(self._stations))
            for number, station in enumerate(self._stations):
                arguments = (station, self._jobs, self._ready, self.gate)
                name = f"penstock gpu {number}"
                threading.Thread(target=serve, args=arguments, name=name, daemon=True).start()
                weakref.finalize(self, self._jobs.put, None).atexit = False
        if self._ready is not None:
            self._ready.wait()

    def begin(self, batch: Any) -> Begun:
        """The batch's copies, on the current stream."""
        self._prepared()
        began = time.perf_counter()
        slots, *others = batch
        parcels = unpacked(slots, self._size)
        self.samples += len(slots)
        self.packed += sum(parcel.form == ENCODED for parcel in parcels)
        self.decoded += sum(parcel.form == DECODED for parcel in parcels)
        shape = (len(slots), 3, *self._size)
        out = torch.empty(shape, dtype=self._dtype, device=self._device, memory_format=self._format)
        if not parcels:
            there = slots.to(self._device, non_blocking=True)
            normalised(self._tail, pixels_in(there, self._size), out)
        return Begun(out, others, parcels, slots, began)

    def make(self, begun: Begun, copied: Any) -> Pending:
        """Its parcels go to stations, which write behind `copied`, the event of its copies."""
        tasks = self._stations[0].tasks(begun.parcels, begun.slots) if begun.parcels else []
        pending = Pending(
            began_s=begun.began_s,
            samples=len(begun.images),
            packed=sum(parcel.form == ENCODED for parcel in begun.parcels),
            tasks=len(tasks),
            copied=copied,
        )
        for parcels in tasks:
            self._jobs.put(Job(pending, parcels, begun.slots, begun.images, copied))
        return pending

    def taken(self, pending: Pending, asked_s: float, workers: int) -> None:
        """Training asked for this batch at `asked_s` and has it now: what that says of who waited for whom."""
        done, before = pending.done_s, self._done_s or pending.began_s
        self._done_s, now = done, time.perf_counter()
        seen = Seen(
            pull_s=max(0.0, pending.began_s - before),
            work_s=pending.encoded_s / max(1, len(self._stations)),
            put_s=max(0.0, asked_s - done),
            samples=pending.samples,
            packed=pending.packed,
            period_s=now - self._taken_s if self._taken_s else 0.0,
            gain=self._numbers.get(SharedNumbers.GAIN),
        )
        self._taken_s = now
        if self._modes.fixed:
            return
        self._modes.on_workers(workers)
        self._modes.on_batch(seen, asked_s, now)
        self.gate.idle_only = self._modes.is_idle
        self._wish()

    def stats(self) -> dict[str, Any]:
        return {
            "mode": str(self._modes.mode) if self._stations else "off",
            "share": self._numbers.get(SharedNumbers.SHARE),
            "samples": self.samples,
            "packed": self.packed,
            "finished": self.decoded,
            "by_cpu": sum(station.by_cpu for station in self._stations),
            "held_bytes": sum(station.held_bytes for station in self._stations),
            "cannot": "" if self._ready is None else self._ready.reason,
        }
