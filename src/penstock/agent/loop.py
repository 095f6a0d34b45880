"""The agent: a small event loop in its own process that owns the workers and performs the core's actions.

It never runs user code and never copies sample data, so it always answers at once. It ends when its socket closes or its
training process ends, whichever shows first. Its workers end with it (`worker/entry`).
Nothing here imports torch: where processes are spawned, the agent starts as a bare interpreter.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from struct import unpack_from

from penstock.agent.config import AgentConfig
from penstock.agent.fetching import Fetching
from penstock.agent.handles import ANSWERS, WorkerHandle
from penstock.agent.lending import Lending
from penstock.agent.offloading import Offloading
from penstock.agent.posting import packed_span, post_numbers
from penstock.agent.processes import sent_worker
from penstock.agent.record import Recorder
from penstock.agent.staffing import Staffing
from penstock.agent.troubles import after_text, apart, grown_text, packed
from penstock.core import events as ev
from penstock.core.core import new_state, on_event
from penstock.core.events import Action, Event, Kind, Trouble
from penstock.core.pools import LOCAL
from penstock.measure import host
from penstock.measure.endings import open_pidfd
from penstock.remote.handles import FerryLink
from penstock.wire import frames as wire
from penstock.wire.arena import Arena, Board
from penstock.wire.frames import Channel, Fed, Msg, slice_keys

TICK_S = 0.05
SLOW_TICK_S = 0.5
MEMORY_CHECK_S = 1.0
STOP_GRACE_S = 1.0


class Agent:
    """Performs the core's actions. `start_worker(n)` returns worker n, or None if it will be sent later."""

    def __init__(
        self,
        config: AgentConfig,
        trainer: Channel,
        arena: Arena,
        start_worker: Callable[[int], WorkerHandle | None],
        ferry: FerryLink | None = None,
        fetching: Fetching | None = None,
        lending: Lending | None = None,
    ) -> None:
        self.config, self.trainer, self.arena, self.start_worker = config, trainer, arena, start_worker
        self.ferry, self.fetching = ferry, fetching
        self.state = new_state(config.core)
        steered = ferry if len(self.state.pools) > 1 else None
        self.offloading = None if steered is None else Offloading(config, self.state, arena.board, steered)
        self.recorder = Recorder(config.record, config.core)
        self.selector: selectors.BaseSelector = selectors.DefaultSelector()
        self.events: deque[Event] = deque()
        self.workers: dict[int, WorkerHandle] = {}
        self.to_start: deque[int] = deque()
        self.fed: dict[int, Fed] = {}
        self.layouts: dict[bytes, int] = {}
        self.blobs: list[bytes] = []
        self.ooms = host.oom_kills()
        self.staffing = Staffing(config, self.state, arena, self, lending)
        self.next_tick_s = self.next_memory_s = 0.0
        self.stopping = self.polite = False
        self.begun = b""
        """The last message about a new epoch; empty during the first."""

    def run(self, adoptions: socket.socket | None = None) -> None:
        """Work until the training process ends or asks to stop."""
        self.trainer.sock.setblocking(False)
        self.selector.register(self.trainer.sock, selectors.EVENT_READ, self._on_trainer)
        parent = open_pidfd(self.config.parent)
        if parent >= 0:
            self.selector.register(parent, selectors.EVENT_READ, self._on_parent_end)
        if adoptions is not None:
            self.selector.register(adoptions, selectors.EVENT_READ, lambda _: self._adopt_sent(adoptions))
        if self.ferry is not None:
            self.ferry.bind(self.selector, self)
        if self.fetching is not None:
            self.fetching.bind(self.selector, self.happen, lambda: self.tell(Msg.CACHE_LOST))
        self.staffing.bind()
        self.arena.has_room_for(len(self.state.workers))
        for worker in self.state.workers:
            if adoptions is None or worker.pool.kind != LOCAL:
                self._start(worker.id)
        while not self.stopping:
            busy = any(worker.tasks for worker in self.state.workers) or self.state.memory.free > 0
            self._hear(0.0 if self.to_start else TICK_S if busy else SLOW_TICK_S)
            if self.to_start:  # one at a time: a fork takes a while, and other workers want tasks meanwhile
                self._start(self.to_start.popleft())
            self._tick(time.monotonic())
        if adoptions is not None:
            self._adopt_rest(adoptions)
        self._stop_workers()
        self.staffing.close()  # guard: agent-leaves

    def _hear(self, within_s: float) -> None:
        for key, mask in self.selector.select(min(within_s, self.staffing.patience_s())):
            key.data(mask)
        self.staffing.look()

    # ---- the core

    def happen(self, event: Event) -> None:
        """Tell the core and perform its actions. An event caused by an action waits until all are performed."""
        self.events.append(event)
        if len(self.events) > 1:
            return
        while self.events:
            actions = on_event(self.state, self.events[0])
            self.recorder.add(self.events[0], actions)
            for action in actions:
                self.perform(action)
            self.events.popleft()

    def perform(self, action: Action) -> None:
        match action:
            case ev.Assign(worker, task):
                self._assign(self.workers[worker], task)
            case ev.PlaceResult(worker, task_id, offset, layout):
                self._teach(self.workers[worker], layout)
                self.workers[worker].post(Msg.PLACE, wire.PLACE.pack(task_id, offset, layout))
            case ev.Cancel(worker, task_id):
                if worker in self.workers:
                    self.workers[worker].post(Msg.CANCEL, wire.TASK.pack(task_id))
            case ev.Deliver():
                self._deliver(action)
            case ev.DeliverError(seq, error):
                self._leaves(seq)
                self.tell(Msg.ERROR, wire.SEQ.pack(seq), packed(error))
            case ev.DeliverEnd(seq):
                self.fed.clear()
                self.tell(Msg.END, wire.SEQ.pack(seq))
            case ev.Start(worker):
                self.to_start.append(worker)
            case ev.Stop(worker):
                self.workers[worker].stop()
            case ev.Kill(worker, _):
                self.workers[worker].condemn(time.monotonic())
            case ev.GiveUp(worker, error):
                self.tell(Msg.GIVEN_UP, wire.WORKER.pack(worker, 0), packed(error))
            case ev.Dump(worker, silent_s):
                self.workers[worker].ask_stack(time.monotonic(), silent_s)
            case ev.Grow(start, end):
                self._grow(start, end)
            case ev.Shrink(start, end):
                self.arena.unback(start, end)
            case ev.Starved(seq, need):
                self.tell(Msg.STARVED, wire.NEED.pack(seq, need))

    def _deliver(self, batch: ev.Deliver) -> None:
        self._leaves(batch.seq)
        if self.offloading is not None:
            self.offloading.delivered(time.monotonic())
        head = wire.BATCH.pack(batch.seq, batch.offset, batch.nbytes, batch.layout, len(batch.dropped))
        self.tell(Msg.BATCH, head, b"".join(ordinal.to_bytes(4, "little") for ordinal in batch.dropped))

    def _leaves(self, seq: int) -> None:
        """Forget a batch that is delivered."""
        del self.fed[seq]
        if self.fetching is not None:
            self.fetching.over(seq, used=True)

    def _assign(self, handle: WorkerHandle, task: ev.Task) -> None:
        self._teach(handle, task.layout)
        if self.fetching is not None and self.state.workers[handle.id].pool.kind == LOCAL:
            places = self.fetching.places(task.id, task.seq, task.start, task.samples)
            if places and task.kind is not Kind.COLLATE:
                handle.post(Msg.PLACES, places)
        fed = self.fed[task.seq]
        if task.kind is Kind.COLLATE:
            tail = b"".join(offset.to_bytes(8, "little") for offset in task.parts)
        else:
            tail = slice_keys(fed.key_kind, fed.keys, task.start, task.samples)
        head = wire.ASSIGN.pack(
            task.id, task.seq, fed.epoch, fed.first, fed.stride, task.offset, fed.batch, task.start,
            fed.size, task.layout, task.kind, fed.key_kind, task.poisoned,
        )  # fmt: skip
        handle.post(Msg.ASSIGN, head, tail)

    def _teach(self, handle: WorkerHandle, layout: int) -> None:
        if layout >= 0 and layout not in handle.layouts:
            handle.layouts.add(layout)
            handle.post(Msg.LAYOUT, wire.LAYOUT.pack(layout), self.blobs[layout])

    def _grow(self, start: int, end: int) -> None:
        memory = self.state.memory
        try:
            self.arena.back(start, end)
        except OSError as exc:
            if not memory.used:
                there = memory.used + memory.free
                trouble = Trouble("memory", cause=str(exc), need_bytes=end - start, limit_bytes=there)
                self.happen(ev.InitFailed(-1, trouble))
            self.happen(ev.GrowDenied(str(exc)))
        else:
            self.happen(ev.Grown(start, end))
            # The event is queued, but batches may be pinned by this number already.
            post_numbers(self.arena.board.agent, self.state, more=end - start)

    # ---- the training process

    def _on_trainer(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE and self.trainer.flush():
            self.selector.modify(self.trainer.sock, selectors.EVENT_READ, self._on_trainer)
        if not mask & selectors.EVENT_READ:
            return
        frames = self.trainer.receive(wait=False)
        if frames is None:
            self.stopping = True  # guard: trainer-hangs-up
            return
        for kind, payload in frames:
            self._on_trainer_frame(kind, payload)

    def _on_trainer_frame(self, kind: int, payload: bytes) -> None:
        if kind == Msg.FEED:
            fed = Fed._make((*wire.FEED.unpack_from(payload), payload[wire.FEED.size :]))
            self.fed[fed.seq] = fed
            at_s = time.monotonic() if len(self.state.pools) > 1 else 0.0
            fetches = self.fetching is not None and self.fetching.ask(fed.seq, fed.size)
            self.happen(ev.Feed(fed.seq, fed.size, at_s, fetches))
            if fed.seq not in self.state.batches and fed.seq in self.fed and self.state.kind is Kind.STREAM:
                del self.fed[fed.seq]
        elif kind == Msg.BYTES:
            if self.fetching is not None:
                self.fetching.note(payload)
        elif kind == Msg.RELEASE:
            self.happen(ev.Released(*wire.SEQ.unpack(payload)))
        elif kind == Msg.ABORT:
            running = [handle for handle in self.workers.values() if not handle.ended]
            self.happen(ev.Abort())
            self.fed.clear()
            if self.fetching is not None:
                self.fetching.abort()
            self.begun = payload
            for handle in running:
                handle.post(Msg.RESTART, payload)
        elif kind == Msg.STUCK:
            self.happen(ev.Stuck(*wire.NEED.unpack(payload)))
        elif kind == Msg.EXITED:
            worker, code = wire.WORKER.unpack(payload)
            self.workers[worker].exit_code = code
            self._lost(self.workers[worker])
        elif kind == Msg.NOT_STARTED:
            head, why = payload[: wire.WORKER.size], payload[wire.WORKER.size :]
            self.happen(ev.NotStarted(wire.WORKER.unpack(head)[0], why.decode()))
        elif kind == Msg.STOP:
            self.stopping = self.polite = True

    def _on_parent_end(self, _: int) -> None:
        self.stopping = True  # guard: trainer-ends

    def tell(self, kind: Msg, *chunks: bytes) -> None:
        self.trainer.post(kind, *chunks)
        if self.trainer.clogged:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self.selector.modify(self.trainer.sock, both, self._on_trainer)

    # ---- workers

    def _start(self, worker: int) -> None:
        if self.state.workers[worker].pool.kind == LOCAL:
            try:
                handle = self.start_worker(worker)
            except OSError as exc:
                if not self.state.workers[worker].is_spare:  # guard: spare-not-forked
                    raise
                self.happen(ev.NotStarted(worker, str(exc)))
                return
            if handle is not None:
                self.adopt(handle)
        elif self.ferry is not None:
            self.ferry.start(worker)

    def _adopt_sent(self, adoptions: socket.socket) -> None:
        handle = sent_worker(adoptions, self.tell)
        if handle is not None:
            self.adopt(handle)
        else:
            self.selector.unregister(adoptions)

    def _adopt_rest(self, adoptions: socket.socket) -> None:
        """Take over workers still in transit, to stop them: before they are up they cannot notice our end."""
        adoptions.setblocking(False)
        with contextlib.suppress(BlockingIOError, KeyError):
            while True:
                self._adopt_sent(adoptions)

    def items(self, layout: int) -> tuple[int, ...]:
        return self.state.layouts[layout]

    def warn(self, text: str) -> None:
        self.tell(Msg.WARN, text.encode())

    def retire(self, worker: int) -> None:
        self.happen(ev.Retire(worker))

    def take_whole(self, whole: bool) -> None:
        """Let remote workers take whole batches, or parts of them again."""
        for pool in self.state.pools[1:]:
            if pool.whole != whole:
                self.happen(ev.TakeWhole(pool.number, whole))

    def adopt(self, handle: WorkerHandle) -> None:
        """Take charge of a worker that has been started."""
        self.workers[handle.id] = handle
        row = self.arena.board.row(handle.id)
        row[Board.TASK] = row[Board.ORDINAL] = -1
        row[Board.POOL] = self.state.workers[handle.id].pool.number
        handle.show(row)
        handle.watch(
            self.selector, partial(self._on_worker_frame, handle), partial(self._on_worker_end, handle)
        )
        self.happen(ev.WorkerStarted(handle.id, time.monotonic()))
        if self.begun and self.state.kind is Kind.STREAM:  # it was created for an earlier epoch
            handle.post(Msg.RESTART, self.begun)

    def _on_worker_frame(self, handle: WorkerHandle, kind: int, payload: bytes) -> None:
        worker, now = handle.id, time.monotonic()
        if kind == Msg.DONE:
            task, took_ns, holds, refers, count = wire.DONE.unpack_from(payload)
            dropped = unpack_from(f"<{count}i", payload, wire.DONE.size)
            if self.config.spans and (span := packed_span(self.state, worker, task, took_ns, self.fed)):
                self.tell(Msg.SPAN, span)
            self.happen(ev.Done(worker, task, took_ns / 1e9, now, bool(holds), dropped, bool(refers)))
        elif kind == Msg.PREPARED:
            task, nbytes, described = wire.PREPARED.unpack_from(payload)
            layout = self._layout(payload[wire.PREPARED.size :]) if described else -1
            self.happen(ev.Prepared(worker, task, nbytes, layout))
        elif kind == Msg.MISMATCH:
            (task,) = wire.TASK.unpack_from(payload)
            self.happen(ev.Misfit(worker, task, self._layout(payload[wire.TASK.size :])))
        elif kind == Msg.FAILED:
            task, ordinal = wire.FAILED.unpack_from(payload)
            self.happen(ev.Failed(worker, task, ordinal, payload[wire.FAILED.size :]))
        elif kind == Msg.UP:
            self.happen(ev.WorkerUp(worker, now))
        elif kind == Msg.INIT_FAILED:
            self.happen(ev.InitFailed(worker, payload))
        elif kind in wire.PASSED_ON:
            self.tell(wire.PASSED_ON[Msg(kind)], payload)
        else:
            (task,) = wire.TASK.unpack(payload)
            self.happen(ANSWERS[Msg(kind)](worker, task))

    def _layout(self, data: bytes) -> int:
        """Return the number of a worker's layout; announce a new one to the training process and the core."""
        items, blob = wire.split_sizes(data)
        number = self.layouts.get(blob)
        if number is None:
            number = self.layouts[blob] = len(self.blobs)
            self.blobs.append(blob)
            self.tell(Msg.LAYOUT, wire.LAYOUT.pack(number), blob)
            self.happen(ev.LayoutKnown(number, items))
        return number

    # ---- ends

    def _on_worker_end(self, handle: WorkerHandle) -> None:
        """Take the worker's last frames, then find out how it ended."""
        if handle.ended:
            return
        handle.ended = True
        handle.hear_out()
        if self.state.workers[handle.id].surplus:
            self.arena.board.row(handle.id)[Board.PID] = 0
        if handle.reap():
            self._lost(handle)

    def _lost(self, handle: WorkerHandle) -> None:
        row = self.arena.board.row(handle.id)
        task, ordinal = row[Board.TASK], row[Board.ORDINAL]
        row[Board.TASK] = -1
        before, self.ooms = self.ooms, host.oom_kills()
        cause = handle.cause(oom=self.ooms > before)
        handle.close()
        worker = self.state.workers[handle.id]
        if not worker.stopping:
            what, stack = apart(cause)
            then = after_text(streams=self.state.kind is Kind.STREAM, surplus=worker.surplus)
            self.tell(Msg.WARN, f"{what}; {then}{stack}".encode())
        self.happen(ev.WorkerLost(handle.id, task, ordinal, cause, handle.hung))

    def _tick(self, now: float) -> None:
        if now < self.next_tick_s:
            return
        self.next_tick_s = now + TICK_S
        self._hear(0.0)  # hear all that was sent by `now`: we may have had no core since
        if os.getppid() != self.config.parent:  # guard: trainer-is-parent
            self.stopping = True
        if self.fetching is not None:
            self.fetching.look_after(now)
        if self.ferry is not None:
            self.ferry.look_after(now)
            self._offload(now)
        self.staffing.look_after(now, [handle for handle in self.workers.values() if not handle.ended])
        post_numbers(self.arena.board.agent, self.state)
        self.happen(ev.Tick(now, tuple(self.arena.board.column(Board.BEAT)), self._waits(now)))
        for handle in list(self.workers.values()):
            if report := handle.look_after(now):
                self.tell(Msg.WARN, report.encode())
        if self.config.worker_memory and now >= self.next_memory_s:
            self.next_memory_s = now + MEMORY_CHECK_S
            self._check_memory()

    def _waits(self, now: float) -> tuple[float, ...]:
        workers = (self.workers.get(worker.id) for worker in self.state.workers)
        return tuple(0.0 if handle is None or handle.ended else handle.waited_s(now) for handle in workers)

    def _offload(self, now: float) -> None:
        """Use remote workers as measured."""
        if self.offloading is None:
            return
        wish = self.offloading.look(now)
        if wish is not None and self.arena.has_room_for(len(self.state.workers) + wish.workers):
            self.happen(ev.Offload(wish.workers, wish.share))
        if report := self.offloading.report(now):
            self.tell(Msg.OFFLOAD, report)

    def _check_memory(self) -> None:
        for handle in self.workers.values():
            used = 0 if handle.ended else handle.private_bytes()
            if used > self.config.worker_memory and not self.state.workers[handle.id].retiring:
                self.tell(Msg.WARN, grown_text(handle.name, used, self.config.worker_memory).encode())
                self.happen(ev.Retire(handle.id))

    def _stop_workers(self) -> None:
        """Ask workers to stop, wait briefly, then kill: user code may be mid-sample. Don't wait at all if the training
        process has ended."""
        post_numbers(self.arena.board.agent, self.state)
        self.recorder.close()
        alive = [handle for handle in self.workers.values() if not handle.ended]
        for handle in alive:
            handle.stop()
        deadline = time.monotonic() + (STOP_GRACE_S if self.polite else 0.0)  # guard: stop-grace
        for handle in alive:
            handle.end_by(deadline)
