"""The iterator of a loader with workers: ask, wait, deliver. Scheduling happens in the agent, not here.

Rule 1: a batch counts as delivered when `next()` returns it; anything not delivered can be asked for again. So if an agent dies, or an
        interrupt splits a message, a new agent gets the same asks. The interpreter runs signal handlers only at calls and jumps: a store
        right before `return` happens together with it or not at all.
Rule 2: after one batch's error, `next()` continues with the next batch, as torch's loader does.
"""

from __future__ import annotations

import json
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from penstock.client.batches import Batches
from penstock.client.outcome import Outcome, raise_error
from penstock.client.session import AgentGone, Blueprint, Session
from penstock.client.streams import Stream, until_heard
from penstock.epochs.feed import PLACE_LOST, Ask
from penstock.epochs.shares import Told
from penstock.errors import AgentDied, PenstockError
from penstock.measure.counters import Counters
from penstock.wire import frames as wire
from penstock.wire.arena import AS_CORES
from penstock.wire.frames import Msg
from penstock.wire.layout import Layout
from penstock.wire.layout_blobs import from_blob
from penstock.wire.pickles import pack_keys

log = logging.getLogger("penstock")

AGENT_RESTARTS = 5
"""Agents that may die in a row without delivering a batch, before it is an error."""


class EngineIterator(Batches):
    """Batches from workers. Reports automatic changes of the worker count to `on_workers`. Prefetches `window(workers)` batches."""

    def __init__(
        self,
        blueprint: Blueprint,
        *,
        window: Callable[[int], int],
        timeout_s: float,
        counters: Counters,
        on_skip: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__()
        self._blueprint, self._window, self._timeout_s = blueprint, window, timeout_s
        self._wish = 0
        """Worker count requested since the start, or AS_CORES."""
        self._leaves_cores = False
        self._width = 0
        """Open batches while the caller waits; follows the window with a delay."""
        self._counters, self._on_skip = counters, on_skip
        self.counts = True
        """Whether training has a batch when it leaves here; False if another stage holds it first, and says when (`taken`)."""
        self.on_workers: Callable[[int], None] = lambda _: None
        self._asks: Iterator[Ask] = iter(())
        self._open: dict[int, Ask] = {}
        self._ready: deque[tuple[int, int, bytes]] = deque()
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._layouts: dict[int, Layout] = {}
        self._starved = b""
        """The agent's request for memory, until answered."""
        self._next_seq = self._first_seq = 0
        self._handed = -1
        """The caller's batch; the next call removes it from `_open` and `_ready`."""
        self.epoch = -1
        self._ended = False
        self._broken = False
        self._asking = False
        """True during a draw. If found true later, an interrupt hit the draw."""
        self._is_begun = True
        """False while an epoch begins, and after an interrupt in that."""
        self._restarts = 0
        self._stream = Stream(blueprint)
        self._session: Session | None = None
        self._closer: weakref.finalize[..., Any] | None = None
        try:
            self._start()
        except BaseException:
            self.close()  # the counters may refer to the session already
            raise

    # ---- epochs

    def begin(self, asks: Iterator[Ask], epoch: int) -> None:
        """Start an epoch and drop whatever an earlier one left open."""
        self._is_begun = False
        self._settle()
        begun = self._stream.start_over(epoch, self._next_seq) if self.epoch >= 0 else b""
        if self._broken:
            self._open.clear()
            self._renew()
        elif self._open or self._ready or self._ended:
            self._abort(begun)
        self._asks, self.epoch, self._ended, self._asking = asks, epoch, False, False
        self._first_seq = self._next_seq
        if self._session is not None:
            self._session.takes_next(self._next_seq, epoch, 0)
        self._width = self._window(self._all_workers)
        for _ in range(self._width):
            if not self._ask():
                break
        self._is_begun = True

    def proceed(self, epoch: int) -> bool:
        """Continue into an epoch that is already prefetched; False if it is not, or is not next."""
        self._settle()
        first = next(iter(self._open.values()), None)
        if self._session is None or self._broken or first is None or (first.epoch, first.batch) != (epoch, 0):
            return False
        self.epoch = epoch
        return True

    def _ask(self) -> bool:
        if self._asking:
            raise PenstockError(PLACE_LOST)
        self._asking = True
        seq = self._next_seq
        try:
            ask = next(self._asks, None)
            if ask is not None:
                self._open[seq] = ask
                self._next_seq += 1
        except Exception:
            self._asking = False
            raise
        self._asking = False
        if ask is None:
            return False
        self._feed(seq, ask)
        return True

    def _ask_on(self) -> None:
        """Ask for one more batch to replace the one that leaves; for several or none if the window has changed."""
        width = self._window(self._all_workers)
        count = 1 + width - self._width
        self._width = width if count >= 0 else self._width - 1
        for _ in range(count):
            if not self._ask():
                break

    def _feed(self, seq: int, ask: Ask) -> None:
        assert self._session is not None
        kind, keys = pack_keys(ask.keys, ask.dealt)
        head = wire.FEED.pack(seq, ask.epoch, ask.first, ask.stride, ask.batch, ask.size, kind)
        cache = self._blueprint.cache
        if cache is not None and (said := cache.asks(seq, ask)):
            self._session.send(Msg.BYTES, said)
        self._session.send(Msg.FEED, head, keys)

    def _abort(self, begun: bytes) -> None:
        self._open.clear()
        while self._ready:
            self._drop(self._ready.popleft())
        if self._session is not None:
            self._session.send(Msg.ABORT, begun)

    def _drop(self, frame: tuple[int, int, bytes]) -> None:
        _, kind, payload = frame
        if kind == Msg.BATCH and self._session is not None:
            self._session.leases.freed.append(wire.BATCH.unpack_from(payload)[0])

    # ---- iteration

    def pull(self, unwanted: Callable[[], bool] = lambda: False) -> tuple[Ask, Outcome] | None:
        """Return the next batch of the epoch, or its error; None at the end, or once it is `unwanted`. Only for callers that are never
        interrupted."""
        taken = self._take(unwanted)
        if taken is None:
            return None
        self._handed, ask, outcome = taken
        self._settle()
        return ask, outcome

    def _take(self, unwanted: Callable[[], bool] = lambda: False) -> tuple[int, Ask, Outcome] | None:
        """Return the next batch, which stays open until the caller has it."""
        self._settle()
        self._is_asked()
        if not self._is_begun:  # otherwise it would look like the epoch's end
            raise PenstockError(PLACE_LOST)
        return self._next_outcome(time.monotonic(), unwanted)

    def _next_outcome(self, began: float, unwanted: Callable[[], bool]) -> tuple[int, Ask, Outcome] | None:
        frame = self._due(began, unwanted)
        if frame is None:
            return None
        seq, kind, payload = frame
        error = payload[wire.SEQ.size :] if kind == Msg.ERROR else b""
        if self._stream.lost_worker(error):
            self._restart("lost a worker")
            return self._next_outcome(began, unwanted)
        ask = self._open[seq]
        batch: Any = None if error else self._batch(payload, ask)
        if self._stream.on and not error:
            batch, worker, place = batch
            ask = ask._replace(state=self._stream.advance(worker, place))
        self._restarts = 0
        if self.counts:
            self.taken(seq, ask)
        if self._session is not None:
            self._session.give_back()  # before asking for more: a loop that never waits must not take new memory for each batch
        try:
            self._ask_on()
        except Exception:
            self._handed = seq  # the user's sampler failed; as in torch, the batch is lost
            raise
        if self._session is not None:
            self._inbox.extend(self._session.arrived())
            self._read()
        if self.counts:
            self._counters.delivered(began, time.monotonic(), 0 if error else ask.size, len(self._ready) - 1)
        return seq, ask, Outcome(batch, error, seq)

    def taken(self, seq: int, ask: Ask, at_lane: float = 0.0) -> None:
        """Note that training has a batch, and how much of the next ones a GPU lane has still to make."""
        session = self._session
        if session is not None:
            session.takes_next(seq + 1, ask.epoch, ask.batch + 1, at_lane)

    def _settle(self) -> None:
        """Close the last delivered batch: it is not asked for again."""
        self._open.pop(self._handed, None)
        if self._ready and self._ready[0][0] == self._handed:
            self._ready.popleft()

    @property
    def told(self) -> Told:
        """Messages from workers of an iterable dataset, apart from batches."""
        return self._stream.told

    def hear_out(self) -> None:
        """Wait until the workers have reported where they start."""
        if self._session is not None and not self._broken:
            until_heard(self._stream, self._session, self._inbox, self._read)

    def pin(self) -> list[int]:
        """Pin the arena for copies to a CUDA device; return the seams between its pinned ranges."""
        return [] if self._session is None else self._session.pin()

    def __next__(self) -> Any:
        try:
            taken = self._take()
            if taken is None:
                self.on_end()
                raise StopIteration
            self.run.check_promise()
            seq, ask, (batch, error, _) = taken
            if error:
                self.run.hand, self._handed = ask, seq
                raise_error(error, ask)
            self.run.hand, self._handed = ask, seq
            return batch
        except Exception:
            raise
        except BaseException:
            # An interrupt may have split a message: the next call starts a new agent and asks again for all open
            # batches, this one included.
            self._broken = True  # guard: interrupted-connection
            raise

    def _due(self, began: float, unwanted: Callable[[], bool]) -> tuple[int, int, bytes] | None:
        """Wait for the next answer to an ask of this epoch; None at its end."""
        deadline = began + self._timeout_s if self._timeout_s > 0 else None
        while not unwanted():
            if self._broken:
                self._restart("was interrupted")
            if self._ready and self._open[self._ready[0][0]].epoch == self.epoch:
                return self._ready[0]
            if self._ended or not any(ask.epoch == self.epoch for ask in self._open.values()):
                return None
            if self._session is None:
                return None
            self._read()
            if self._ready or self._ended:
                continue
            if self._starved:
                # Only now is memory truly short: delivered batches are taken, released ones given back.
                self._session.give_back()
                self._session.send(Msg.STUCK, self._starved)
                self._starved = b""
            try:
                frames = self._session.receive(deadline)
            except AgentGone:
                self._restart(self._session.end_of_agent())
                continue
            if not frames and deadline is not None and time.monotonic() >= deadline:
                raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds")
            self._inbox.extend(frames)
        return None

    def _read(self) -> None:
        while self._inbox:
            self._on_frame(*self._inbox.popleft())

    def _on_frame(self, kind: int, payload: bytes) -> None:
        assert self._session is not None
        if kind in (Msg.BATCH, Msg.ERROR):
            (seq,) = wire.SEQ.unpack_from(payload)
            if seq in self._open:  # guard: left-epoch
                self._ready.append((seq, kind, payload))
            elif kind == Msg.BATCH:
                self._session.leases.freed.append(seq)
        elif kind == Msg.LAYOUT:
            (number,) = wire.LAYOUT.unpack_from(payload)
            self._layouts[number] = from_blob(payload[wire.LAYOUT.size :])
        elif kind == Msg.END and wire.SEQ.unpack(payload)[0] >= self._first_seq:
            # Open asks will not be answered, unless a lost worker makes a new agent repeat them.
            self._ended = True
        elif kind == Msg.WARN:
            self._counters.warned(payload.decode(), time.monotonic())
            log.warning("%s", payload.decode())
        elif kind == Msg.WORKERS and self._wish <= 0:
            self._changed(wire.WORKER.unpack(payload)[1], follows=True)
            self.on_workers(self.workers)
        elif kind == Msg.STARVED:
            self._starved = payload
        elif kind == Msg.SHARE:
            self._stream.hear(payload)
        elif kind == Msg.REPORT:
            self._on_skip(json.loads(payload))
        elif kind == Msg.OFFLOAD and self._blueprint.remote is not None:
            self._blueprint.remote.record.note(payload)
        elif kind == Msg.CACHE_LOST and self._blueprint.cache is not None:
            self._blueprint.cache.on_lost()
        elif kind == Msg.LENDING_LOST and self._session.lending is not None:
            self._session.lending.on_lost()
        elif kind == Msg.SPAN:
            self._counters.span(*wire.SPAN.unpack(payload))
        elif kind == Msg.CORES:
            self._counters.cores(*wire.CORES.unpack(payload))

    def _batch(self, payload: bytes, ask: Ask) -> Any:
        assert self._session is not None
        return self._session.leases.unpacked(payload, self._layouts, ask.size)

    @property
    def ready(self) -> int:
        """Known batches that are ready and not delivered. Callable from any thread."""
        return sum(seq != self._handed for seq, _, _ in tuple(self._ready))

    @property
    def ahead(self) -> int:
        """Batches prefetched."""
        return self._width

    # ---- workers

    @property
    def workers(self) -> int:
        """The worker count, present or requested."""
        return self._blueprint.agent.core.workers

    @property
    def _all_workers(self) -> int:
        """Workers here and on other machines: each needs batches to work on."""
        remote = self._blueprint.remote
        return self.workers + (0 if remote is None else remote.record.workers)

    def set_workers(self, workers: int, *, follows: bool) -> None:
        """Change the worker count, even mid-epoch. If it `follows` the cores, `workers` is only the count for now. Callable from any thread."""
        self._changed(workers, follows=follows)
        self._wish = AS_CORES if follows else workers
        session = self._session
        if session is not None:
            session.want(self._wish)

    def leave_cores(self, needed: bool) -> None:
        """Say whether the GPU lane needs cores now; workers yield some and return later. Callable from any thread."""
        if needed is not self._leaves_cores:
            self._leaves_cores = needed
            session = self._session
            if session is not None:
                session.leave_cores(needed)

    def _changed(self, workers: int, *, follows: bool) -> None:
        self._blueprint = self._blueprint.resized(workers, follows=follows)
        self._counters.workers = workers

    # ---- life

    def _start(self) -> None:
        Session(self._stream.resumed(self._blueprint), self._own)
        self._broken = False

    def _own(self, session: Session) -> None:
        self._session = session
        session.want(self._wish)
        session.leave_cores(self._leaves_cores)
        for seq, ask in self._open.items():
            session.takes_next(seq, ask.epoch, ask.batch)
            break
        self._closer = weakref.finalize(self, session.end, self._counters)
        self._counters.attach(session.live, session.show, session.node)

    def _restart(self, how: str) -> None:
        """Start a new agent and ask it for everything not delivered."""
        pid = self._session.pid if self._session is not None else 0
        self._restarts += not self._broken
        self._end_session()
        if self._restarts > AGENT_RESTARTS:  # guard: agent-restarts
            raise AgentDied(
                f"the agent (pid {pid}) {how}; it was started {self._restarts} times without delivering a batch. Look "
                f"at the messages above and at memory limits, or run with num_workers=0."
            )
        if self._stream.on and not self._stream.resumable:
            raise AgentDied(
                f"the agent (pid {pid}) {how} while its workers iterated an iterable dataset. What they had not yielded is "
                f"lost: give the dataset state_dict() and load_state_dict(), or use a map-style dataset."
            )
        if not self._broken:
            log.warning("the agent (pid %s) %s; a new one goes on from the last delivered batch", pid, how)
        self._counters.agent_restarts += 1
        self._renew()
        for seq, ask in self._open.items():  # guard: ask-again
            self._feed(seq, ask)

    def _renew(self) -> None:
        self._end_session()
        self._ready.clear()
        self._inbox.clear()
        self._starved, self._ended = b"", False
        self._layouts.clear()
        self._start()

    @property
    def closed(self) -> bool:
        return self._session is None

    def close(self) -> None:
        """End the agent and the workers; idempotent. (Lightning calls it as `_shutdown_workers`.)"""
        self._end_session()
        self._broken = False

    def _end_session(self) -> None:
        if self._session is not None:
            # Call it directly: an interrupt inside the finalizer would leave the session open for good.
            self._session.end(self._counters)
        if self._closer is not None:
            self._closer.detach()
        self._session = self._closer = None

    _shutdown_workers = close
