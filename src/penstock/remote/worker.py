"""A worker on another machine: the local worker's code, but results go into buffers of its own and over the network.

A task's rows lie compactly in a buffer, lane after lane, as the ferry receives them. What has no layout travels as a checked value
(`remote.values`), errors as text: the ferry accepts no pickle.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Sequence
from typing import Any

from penstock.dataset.offers import offered
from penstock.remote.away import AwaySource
from penstock.remote.cut import NotCut, cut_layout, cut_sample
from penstock.remote.frames import DONE, ROWS, Msg, Net, framed
from penstock.remote.outlet import Outlet
from penstock.remote.plans import tail_for
from penstock.remote.send_buffers import SendBuffers
from penstock.remote.values import NotPortable, encode
from penstock.sources.sources import ByteRange
from penstock.torch_private import wrap_exception
from penstock.wire import frames as wire
from penstock.wire.extents import lane_offsets
from penstock.wire.layout import Write, writer
from penstock.wire.pickles import unpack_keys
from penstock.worker.failures import folded, take_notes
from penstock.worker.loop import Job, Pending, Worker, WorkerSpec

MOST_SAID = 400
"""Letters of an error that is only a reason."""


class RemoteWorker(Worker):
    """Prepares samples for a loader on another machine."""

    channel: Outlet
    arena: Any

    def __init__(self, spec: WorkerSpec, worker: int, channel: Outlet, scratch: SendBuffers) -> None:
        super().__init__(spec, worker, channel, scratch)  # type: ignore[arg-type]  # stands in for the arena
        self._scratch = scratch
        self._doing: Job | None = None
        self.preparer.unforgiven = (*self.preparer.unforgiven, OSError)  # guard: reads-unforgiven
        self._seam = offered(spec.recipe.dataset).seam
        self._reads_here: Any = None if self._seam is None else self._seam.holder.bytes_from
        self._tail = tail_for(spec.recipe)
        self._cuts = False
        """Whether samples are cut, if that is the plan."""
        self._cut_now = False
        self._away: AwaySource | None = None
        """Bytes come from the loader's machine, if that is the plan."""
        self._filled: tuple[bytearray, list[memoryview]] | None = None
        """Rows of the task that is being done: their buffer, and each lane's part of it."""

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == Net.PLAN:
            self._use(payload.decode())
            return
        super()._on_frame(kind, payload)
        if kind == Msg.ASSIGN and self._away is not None:
            self._ask_for(self.jobs[-1])

    def _use(self, plan: str) -> None:
        """Follow another plan from the next task on."""
        self._cuts = plan == "cut" and self._tail is not None
        if (plan == "bytes") == (self._away is not None) or self._seam is None:
            return
        if plan == "bytes":
            self._away = AwaySource(self._reads_here, self.channel, self.channel.wait)
            self.channel.on_bytes = self._away.take
            for job in self.jobs:
                self._ask_for(job)
        else:
            self._away, self.channel.on_bytes = None, lambda _: None
        self._seam.holder.bytes_from = self._away or self._reads_here

    def _ask_for(self, job: Job) -> None:
        """Ask for all bytes of a task; a sample whose place is not known has its error when it is prepared."""
        assert self._away is not None
        assert self._seam is not None
        ranges: dict[ByteRange, None] = {}
        for key in unpack_keys(job.key_kind, job.tail):
            with contextlib.suppress(Exception):
                ranges.update(dict.fromkeys(self._seam.ranges(key)))
        self._away.ask(job.task, list(ranges))

    def _cancel(self, task: int) -> None:
        if self._away is not None:
            self._away.drop(task)
        super()._cancel(task)

    def _run(self, job: Job) -> None:
        self._doing = job
        if self._away is not None:
            self._away.begin(job.task)
        super()._run(job)
        if self._away is not None:
            self._away.drop(job.task)
        self._drop_rows()

    def _slots(self, job: Job) -> None:
        if self._cuts and job.offset >= 0 and cut_layout(self.layouts[job.layout], self._tail.dtype):
            self._cut_now, self.preparer.two_phases = True, False
            try:
                super()._slots(job)
                return
            except NotCut:
                self._drop_rows()  # the dataset finished a sample itself: send all of the task as they are
            finally:
                self._cut_now, self.preparer.two_phases = False, True
        super()._slots(job)

    def _failed(self, job: Job) -> None:
        """What cannot be read here may be readable there: there it is tried again, and fails in its own way if it must."""
        exc = sys.exception()
        if isinstance(exc, OSError):
            said = f"{type(exc).__name__}: {exc}"[:MOST_SAID]
            self.channel.send(Net.UNREACHED, wire.TASK.pack(job.task), said.encode("utf-8", "replace"))
        else:
            super()._failed(job)

    def _write_pending(self, pending: Pending, offset: int, layout: int) -> None:
        self._doing = pending.job
        super()._write_pending(pending, offset, layout)
        self._drop_rows()

    def _writer(self, layout: int, size: int, offset: int) -> Write:  # noqa: ARG002 - the place there is the ferry's business
        job = self._doing
        assert job is not None
        rows, start = count_of(job), job.where.start
        plan = self.layouts[layout]
        if self._cut_now:
            plan = cut_layout(plan, self._tail.dtype) or plan
        starts, nbytes = lane_offsets(plan.items, rows)
        buffer = self._scratch.take(nbytes)
        view = memoryview(buffer)
        lanes = [view[at : at + item * rows] for at, item in zip(starts, plan.items, strict=True)]
        self._drop_rows()
        self._filled = buffer, lanes
        write = writer(plan, rows, view)
        if self._cut_now:
            return lambda sample, ordinal: write(cut_sample(sample), ordinal - start)
        return lambda sample, ordinal: write(sample, ordinal - start)

    def _drop_rows(self) -> None:
        if self._filled is not None:
            self._scratch.give_back(self._filled[0])
            self._filled = None

    def _done(
        self, job: Job, took_ns: int, dropped: tuple[int, ...] | None = None, refers: bool = False
    ) -> None:
        if self._filled is None:
            super()._done(job, took_ns, dropped, refers)
            return
        if dropped is None:
            dropped = self._report_skips()
        (buffer, lanes), self._filled = self._filled, None
        done = DONE.pack(job.task, took_ns, False, refers, len(dropped))
        tail = b"".join(ordinal.to_bytes(4, "little", signed=True) for ordinal in dropped)
        head = framed(
            Net.CUT_ROWS if self._cut_now else Net.ROWS, ROWS.pack(sum(map(len, lanes))), done, tail
        )
        self.channel.send_with(head, lanes, lambda: self._scratch.give_back(buffer))

    def _offer(self, job: Job, result: Any, took_ns: int, lent: Sequence[tuple[int, int]] = ()) -> None:  # noqa: ARG002
        try:
            skeleton, buffers = encode(result)
        except NotPortable:
            self.channel.send(Msg.REFUSED, wire.TASK.pack(job.task))
            return
        dropped = self._report_skips()
        lengths = [len(skeleton), *(buffer.nbytes for buffer in buffers)]
        told = {"lengths": lengths, "dropped": dropped, "took_ns": took_ns}
        head = framed(Net.VALUE, wire.TASK.pack(job.task), json.dumps(told).encode())
        self.channel.send_with(head, [skeleton, *buffers])

    def _failure(self, note: str) -> bytes:
        return failure_text(note, self.id)


def failure_text(note: str, worker: int) -> bytes:
    """Return the exception being handled as text, with its type's name."""
    exc = sys.exception()
    notes = [*take_notes(exc), f"{note} on {socket.gethostname()}"]
    wrapped = wrap_exception(f"in DataLoader worker process {worker} on {socket.gethostname()}")
    kind = type(exc)
    told = {
        "type": f"{kind.__module__}:{kind.__qualname__}",
        "text": folded(wrapped.exc_msg),
        "where": wrapped.where,
        "notes": notes,
    }
    return b"T" + json.dumps(told).encode()


def count_of(job: Job) -> int:
    """Return the samples of a task, by its packed keys."""
    return wire.count_keys(job.key_kind, job.tail)
