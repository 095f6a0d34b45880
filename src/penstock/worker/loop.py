"""A worker's main loop: take tasks from the agent, prepare samples, write the results.

Results go straight into the batch's slab if their place is known. Otherwise (first batch, ragged samples, custom collates) the worker keeps
the result, reports its size and continues; the agent assigns a place and the result is written then. A worker owns nothing that outlives
it: if it dies, its tasks are reissued elsewhere.
"""

from __future__ import annotations

import json
import random
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.dataset.seeding import seed_all
from penstock.dataset.unfinished import finished
from penstock.measure.host import RunDelay
from penstock.plan.seeds import ShareSeeds
from penstock.sources.retries import TALLY
from penstock.torch_private import enter_worker, numpy_worker_seed
from penstock.wire import frames as wire
from penstock.wire.arena import Arena, Board
from penstock.wire.frames import Channel, Msg
from penstock.wire.kinds import Kind
from penstock.wire.layout import Layout, Mismatch, Write, describe, widened, writer
from penstock.wire.layout_blobs import from_blob, to_blob
from penstock.wire.pickles import (
    Packed,
    Ref,
    dumps,
    is_portable,
    rebuild,
    unpack,
    unpack_keys,
    unpack_positions,
)
from penstock.worker.failures import dumps_failure, failure_note
from penstock.worker.placed import TaskPlaces
from penstock.worker.prepare import Preparer, Recipe, Stopped, Unfit, Where
from penstock.worker.streaming import Share, Streamer, StreamPlace

WRITERS = 64
"""Slab writers kept mapped as tensors; a ring has fewer slabs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """All a worker needs; pickled with the dataset if processes are spawned."""

    recipe: Recipe
    workers: int
    base_seed: int
    init_fn: Callable[[int], None] | None
    streams: bool
    drop_last: bool
    places: dict[int, StreamPlace] | None = None
    """Each worker's place in an iterable dataset."""
    epoch: int = 0
    mark: int = 0
    """Identifies the start of an epoch that a place belongs to."""
    keyed: bool = False
    snapshot_every: int = 1


class Job(NamedTuple):
    task: int
    seq: int
    kind: Kind
    size: int
    offset: int
    layout: int
    poisoned: bool
    where: Where
    key_kind: int
    tail: bytes


class Pending(NamedTuple):
    """A result waiting for memory."""

    job: Job
    write: Callable[[int, int], None]
    took_ns: int
    dropped: tuple[int, ...]
    refers: bool = False
    """Whether it refers to the parts it was made from."""


class Worker:
    def __init__(self, spec: WorkerSpec, worker: int, channel: Channel, arena: Arena) -> None:
        self.spec, self.id, self.channel, self.arena = spec, worker, channel, arena
        self.row = arena.board.row(worker)
        self.preparer = Preparer(spec.recipe, self._began, f"worker {worker}")
        self.places = TaskPlaces()
        self.streamer: Streamer | None = None
        self.mark = spec.mark
        self.jobs: deque[Job] = deque()
        self.pending: dict[int, Pending] = {}
        self.layouts: dict[int, Layout] = {}
        self.writers: OrderedDict[tuple[int, int, int], Write] = OrderedDict()
        self.held: dict[int, list[weakref.ref[memoryview]]] = {}
        self.arena_start = torch.frombuffer(arena.view[:8], dtype=torch.uint8).data_ptr()
        self.waited = RunDelay()
        self.waited_before = 0
        TALLY.told, TALLY.paused = self._retried, self._beat
        self.running = True

    # ---- life

    def start(self) -> None:
        """Run torch's worker set-up in torch's order: threads, seeds, worker info, the user's init function."""
        torch.set_num_threads(1)
        spec = self.spec
        seed = spec.base_seed + self.id
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(numpy_worker_seed(spec.base_seed, self.id))
        enter_worker(self.id, spec.workers, seed, spec.recipe.shown)
        try:
            self._enter(spec.epoch)
            if spec.init_fn is not None:
                spec.init_fn(self.id)
            self.restart(spec.epoch, (spec.places or {}).get(self.id))
        except Exception:  # noqa: BLE001 - the user's code; its error is sent on
            self.channel.send(Msg.INIT_FAILED, self._failure(f"while worker {self.id} started"))
        else:
            self.channel.send(Msg.UP)

    def restart(self, epoch: int, place: StreamPlace | None = None) -> None:
        """Begin an epoch: iterate an iterable dataset anew, or from `place`."""
        if self.spec.streams:
            self._enter(epoch)
            share = Share(self.id, epoch, self.spec.keyed, self.spec.snapshot_every)
            begin = lambda: self._began(0)  # noqa: E731
            self.streamer = Streamer(self.spec.recipe, self.spec.drop_last, share, place, begin)
            self._tell_place(self.streamer.started)

    def _enter(self, epoch: int) -> None:
        """Seed the worker and its worker info from seed and epoch, if the dataset is iterable and has a seed."""
        if self.spec.streams and self.spec.keyed:
            start = ShareSeeds(self.spec.recipe.seed, epoch, self.id).start
            seed_all(start)
            enter_worker(self.id, self.spec.workers, torch.initial_seed(), self.spec.recipe.shown)

    def _tell_place(self, place: StreamPlace) -> None:
        head = wire.SHARE.pack(self.mark, self.id, place.carried)
        self.channel.send(Msg.STANDS, head, dumps(place))

    def run(self) -> None:
        while self.running:
            frames = self.channel.receive(wait=not self.jobs)
            if frames is None:
                return
            for kind, payload in frames:
                self._on_frame(kind, payload)
            if self.jobs:
                self._run(self.jobs.popleft())
                self._let_go()

    def _on_frame(self, kind: int, payload: bytes) -> None:
        if kind == Msg.ASSIGN:
            self.jobs.append(parse_job(payload))
        elif kind == Msg.PLACE:
            task, offset, layout = wire.PLACE.unpack(payload)
            if task in self.pending:
                self._write_pending(self.pending.pop(task), offset, layout)
        elif kind == Msg.CANCEL:
            (task,) = wire.TASK.unpack(payload)
            self._cancel(task)
        elif kind == Msg.PLACES:
            self.places.note(payload)
        elif kind == Msg.LAYOUT:
            (layout,) = wire.LAYOUT.unpack_from(payload)
            self.layouts[layout] = from_blob(payload[wire.LAYOUT.size :])
        elif kind == Msg.RESTART:
            self.jobs.clear()
            self.mark, epoch = wire.BEGIN.unpack(payload)
            self._guarded(None, lambda: self.restart(epoch))
        elif kind == Msg.STOP:
            self.running = False

    def _cancel(self, task: int) -> None:
        """Drop a task that is queued or waits for memory; any other reports its own end."""
        queued = next((job for job in self.jobs if job.task == task), None)
        if queued is not None:
            self.jobs.remove(queued)
            self.places.forget(task)
        pending = self.pending.pop(task, None)
        if pending is not None and task in self.held:
            # The result is void, but the user's collate may still hold the parts.
            self._done(pending.job, pending.took_ns, ())
        elif queued is not None or pending is not None:
            self.channel.send(Msg.DROPPED, wire.TASK.pack(task))

    # ---- tasks

    def _since(self, before_ns: int) -> int:
        """Return the time spent on the current task, without waiting for a core: that is not the task's cost."""
        waited = self.waited.read() - self.waited_before
        return max(0, time.perf_counter_ns() - before_ns - waited)

    def _began(self, ordinal: int) -> None:
        self.row[Board.ORDINAL] = ordinal
        self.row[Board.BEAT] += 1

    def _run(self, job: Job) -> None:
        self.row[Board.ORDINAL] = -1
        self.row[Board.TASK] = job.task
        self.waited_before, cpu_ns = self.waited.read(), time.process_time_ns()
        self.places.use(job.task, self.preparer.offer, job.where.start, (job.key_kind, job.tail))
        steps = {Kind.SLOTS: self._slots, Kind.PARTS: self._parts, Kind.COLLATE: self._collate}
        steps[Kind.STREAM] = self._stream
        self._guarded(job, lambda: steps.get(job.kind, self._whole)(job))
        self.row[Board.CPU_NS] += time.process_time_ns() - cpu_ns
        self.row[Board.DELAYED_NS] += self.waited.read() - self.waited_before
        self.row[Board.TASK] = -1
        self.row[Board.TASKS] += 1
        self._report_skips()

    def _retried(self) -> None:
        """Count a retried read at once, and show that the worker is alive."""
        self.row[Board.RETRIES] += 1
        self._beat()

    def _beat(self) -> None:
        """Show that the worker is alive while it pauses before a read."""
        self.row[Board.BEAT] += 1

    def _guarded(self, job: Job | None, step: Callable[[], None]) -> None:
        """Run user code; send its exception as the batch's error."""
        try:
            try:
                step()
            except Unfit:
                assert job is not None
                self.channel.send(Msg.REFUSED, wire.TASK.pack(job.task))
            except Stopped as stopped:
                raise stopped.original from None
        except Exception:  # noqa: BLE001 - the user's code; its error is sent on
            if job is None:
                self.channel.send(Msg.INIT_FAILED, self._failure(f"in worker {self.id}"))
            else:
                self._failed(job)

    def _failed(self, job: Job) -> None:
        """Send the exception being handled as its batch's error."""
        ordinal = self.row[Board.ORDINAL]
        note = failure_note(job.kind, job.where, (job.key_kind, job.tail), ordinal, self.id)
        self.channel.send(Msg.FAILED, wire.FAILED.pack(job.task, max(0, ordinal)), self._failure(note))

    def _failure(self, note: str) -> bytes:
        """Pickle the exception being handled as torch's loader would."""
        return b"P" + dumps_failure(f"in DataLoader worker process {self.id}", note)

    def _slots(self, job: Job) -> None:
        keys = unpack_keys(job.key_kind, job.tail)
        if job.offset < 0:
            self._unplaced_slots(job, keys)
            return
        write = self._writer(job.layout, job.size, job.offset)
        clock, write_ns, wrote = time.perf_counter_ns, 0, 0
        began = clock()
        for ordinal, sample in self.preparer.samples(job.where, keys, poisoned=job.poisoned, unfinished=True):
            before = clock()
            try:
                write(sample, ordinal)
            except Mismatch:
                self._mismatch(job, self.layouts[job.layout], finished(sample))
                return
            write_ns += clock() - before
            wrote += 1
        took_ns = self._since(began)
        self.row[Board.PREPARE_NS] += max(0, took_ns - write_ns)
        self.row[Board.WRITE_NS] += write_ns
        self.row[Board.SAMPLES] += wrote
        self._done(job, took_ns)

    def _unplaced_slots(self, job: Job, keys: list[Any]) -> None:
        """Keep the samples and propose their layout: this batch has none yet."""
        samples, took_ns = self._samples(job, keys)
        layout = describe(samples[0][1]) if samples else None
        if samples and layout is None:
            self.channel.send(Msg.REFUSED, wire.TASK.pack(job.task))
            return
        if layout is None:
            self._done(job, took_ns)
            return
        packed = pack_layout(layout)

        def write(offset: int, number: int) -> None:
            write_sample = self._writer(number, job.size, offset)
            for ordinal, sample in samples:
                try:
                    write_sample(sample, ordinal)
                except Mismatch:
                    self._mismatch(job, self.layouts[number], sample)
                    raise

        self.pending[job.task] = Pending(job, write, took_ns, self._report_skips())
        self.channel.send(Msg.PREPARED, wire.PREPARED.pack(job.task, 0, 1), packed)

    def _parts(self, job: Job) -> None:
        samples, took_ns = self._samples(job, unpack_keys(job.key_kind, job.tail))
        values = [sample for _, sample in samples]
        if not is_portable(values):
            self.channel.send(Msg.REFUSED, wire.TASK.pack(job.task))
            return
        self._offer(job, values, took_ns)

    def _whole(self, job: Job) -> None:
        before = time.perf_counter_ns()
        result = self.preparer.whole(job.where, unpack_keys(job.key_kind, job.tail))
        took_ns = self._since(before)
        self.row[Board.PREPARE_NS] += took_ns
        self.row[Board.SAMPLES] += job.size
        self._offer(job, result, took_ns)

    def _collate(self, job: Job) -> None:
        offsets = np.frombuffer(job.tail, dtype=np.int64).tolist()
        before = time.perf_counter_ns()
        leases: list[weakref.ref[memoryview]] = []
        lent: list[tuple[int, int]] = []

        def load(ref: Ref) -> Any:
            view = self.arena.view[ref.offset : ref.offset + ref.nbytes]
            leases.append(weakref.ref(view))
            lent.append((ref.offset, ref.offset + ref.nbytes))
            return rebuild(ref, view)

        samples = [sample for offset in offsets for sample in unpack(self.arena.view, offset, load)]
        result = self.preparer.collate(job.where, samples)
        took_ns = self._since(before)
        self.row[Board.COLLATE_NS] += took_ns
        del samples
        self.held[job.task] = leases
        self._offer(job, result, took_ns, sorted(lent))

    def _stream(self, job: Job) -> None:
        assert self.streamer is not None
        before = time.perf_counter_ns()
        try:
            result = self.streamer.next_batch(job.size)
        except StopIteration:
            self._tell_place(self.streamer.end())
            self.channel.send(Msg.EXHAUSTED, wire.TASK.pack(job.task))
            return
        took_ns = self._since(before)
        self.row[Board.PREPARE_NS] += took_ns
        self.row[Board.SAMPLES] += job.size
        self._offer(job, (result, self.id, self.streamer.place()), took_ns)

    def _samples(self, job: Job, keys: list[Any]) -> tuple[list[tuple[int, Any]], int]:
        before = time.perf_counter_ns()
        samples = list(self.preparer.samples(job.where, keys, poisoned=job.poisoned))
        took_ns = self._since(before)
        self.row[Board.PREPARE_NS] += took_ns
        self.row[Board.SAMPLES] += len(samples)
        return samples, took_ns

    # ---- results

    def _offer(self, job: Job, result: Any, took_ns: int, lent: Sequence[tuple[int, int]] = ()) -> None:
        """Ask for memory for a result of any structure."""
        packed = Packed(result, self.arena_start, lent)

        def write(offset: int, _: int) -> None:
            packed.write(self.arena.view[offset : offset + packed.nbytes])

        self.pending[job.task] = Pending(job, write, took_ns, self._report_skips(), packed.refers)
        self.channel.send(Msg.PREPARED, wire.PREPARED.pack(job.task, packed.nbytes, 0))

    def _write_pending(self, pending: Pending, offset: int, layout: int) -> None:
        before, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        try:
            pending.write(offset, layout)
        except Mismatch:
            return
        self.row[Board.WRITE_NS] += time.perf_counter_ns() - before
        self.row[Board.CPU_NS] += time.process_time_ns() - cpu_ns
        job, took_ns, dropped, refers = pending.job, pending.took_ns, pending.dropped, pending.refers
        del pending
        self._done(job, took_ns, dropped, refers)

    def _done(
        self, job: Job, took_ns: int, dropped: tuple[int, ...] | None = None, refers: bool = False
    ) -> None:
        if dropped is None:
            dropped = self._report_skips()
        holds = bool(self.held) and any(lease() is not None for lease in self.held.get(job.task, ()))
        if not holds:
            self.held.pop(job.task, None)
        head = wire.DONE.pack(job.task, took_ns, holds, refers, len(dropped))
        self.channel.send(Msg.DONE, head, np.array(dropped, dtype=np.int32).tobytes() if dropped else b"")

    def _report_skips(self) -> tuple[int, ...]:
        """Report dropped and replaced samples; return the dropped. Sent before their batch can be delivered: after the last one the loader may
        be closed."""
        if not self.preparer.skips:
            return ()
        for skip in self.preparer.skips:
            self.channel.send(Msg.SKIPPED, json.dumps(skip._asdict()).encode())
        dropped = tuple(skip.ordinal for skip in self.preparer.skips if skip.replaced_by is None)
        self.preparer.skips.clear()
        return dropped

    def _let_go(self) -> None:
        """Report parts that the user's collate kept and has released since."""
        for task in [task for task in self.held if task not in self.pending]:
            if all(lease() is None for lease in self.held[task]):
                del self.held[task]
                self.channel.send(Msg.DROPPED, wire.TASK.pack(task))

    def _mismatch(self, job: Job, layout: Layout, sample: Any) -> None:
        new = describe(sample)
        if new is None:
            self.channel.send(Msg.REFUSED, wire.TASK.pack(job.task))
        else:
            self.channel.send(Msg.MISMATCH, wire.TASK.pack(job.task), pack_layout(widened(layout, new)))

    def _writer(self, layout: int, size: int, offset: int) -> Write:
        key = (layout, size, offset)
        found = self.writers.get(key)
        if found is None:
            found = self.writers[key] = writer(self.layouts[layout], size, self.arena.view[offset:])
            if len(self.writers) > WRITERS:
                self.writers.popitem(last=False)
        return found


def parse_job(payload: bytes) -> Job:
    (task, seq, epoch, first, stride, offset, batch, start, size, layout, kind, key_kind, poisoned) = (
        wire.ASSIGN.unpack_from(payload)
    )
    tail = payload[wire.ASSIGN.size :]
    dealt = None if kind == Kind.COLLATE else unpack_positions(key_kind, tail)
    where = Where(epoch, batch, first, stride, start, dealt)
    return Job(task, seq, Kind(kind), size, offset, layout, bool(poisoned), where, key_kind, tail)


def pack_layout(layout: Layout) -> bytes:
    """Pack the item sizes, which the agent needs, and the layout, which it passes on unread."""
    return wire.pack_sizes(layout.items) + to_blob(layout)
