"""The iterator of a loader with workers: ask, wait, hand out. Scheduling happens in the agent, not here.

Rule 1: what was delivered is counted when `next()` returns it; everything asked for and not delivered can be asked again.
So the end of an agent, or an interrupt in the middle of a message, is answered by a new agent and the same asks. The
interpreter runs signal handlers at calls and jumps only: what is stored right before a `return` is done or not done with it.
Rule 2: after an error of one batch, `next()` goes on with the next, as torch's loader does.
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
from penstock.client.unpacking import unpacked
from penstock.epochs.feed import PLACE_LOST, Ask
from penstock.epochs.shares import Told
from penstock.errors import AgentDied, PenstockError
from penstock.measure.counters import Counters
from penstock.wire import frames as wire
from penstock.wire.arena import AS_CORES
from penstock.wire.frames import Msg
from penstock.wire.layout import Layout
from penstock.wire.pickles import loads, pack_keys

log = logging.getLogger("penstock")

AGENT_RESTARTS = 5
"""Agents lost in a row, with no batch delivered between, before it is an error."""


class EngineIterator(Batches):
    """Batches from workers. `on_workers` is told that there is another number of workers by itself. `window(workers)` batches are asked for
    ahead."""

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
        """Workers that were asked for since, or AS_CORES."""
        self._leaves_cores = False
        self._width = 0
        """Batches that are open while the caller waits: the window, with a delay."""
        self._counters, self._on_skip = counters, on_skip
        self.counts = True
        """Batches count when they leave here; not if they wait somewhere else for the training loop."""
        self.on_workers: Callable[[int], None] = lambda _: None
        self._asks: Iterator[Ask] = iter(())
        self._open: dict[int, Ask] = {}
        self._ready: deque[tuple[int, int, bytes]] = deque()
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._layouts: dict[int, Layout] = {}
        self._starved = b""
        """What the agent lacks memory for, until it has been answered."""
        self._next_seq = self._first_seq = 0
        self._handed = -1
        """Batch that the caller has; it leaves our books with the next call."""
        self.epoch = -1
        self._ended = False
        self._broken = False
        self._asking = False
        """True for the moment of a draw; found true later, an interrupt fell into it."""
        self._is_begun = True
        """False while an epoch is being begun, and after an interrupt in that."""
        self._restarts = 0
        self._stream = Stream(blueprint)
        self._session: Session | None = None
        self._closer: weakref.finalize[..., Any] | None = None
        try:
            self._start()
        except BaseException:
            self.close()  # our counters may know the session already
            raise

    # ---- epochs

    def begin(self, asks: Iterator[Ask], epoch: int) -> None:
        """Start an epoch: whatever an earlier one left open is void."""
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
        self._width = self._window(self.workers)
        for _ in range(self._width):
            if not self._ask():
                break
        self._is_begun = True

    def proceed(self, epoch: int) -> bool:
        """Go on into an epoch that has been asked for already; False when it has not, or is not what comes next."""
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
        """One more, for the batch that leaves; several, or none, where the window has changed."""
        width = self._window(self.workers)
        count = 1 + width - self._width
        self._width = width if count >= 0 else self._width - 1
        for _ in range(count):
            if not self._ask():
                break

    def _feed(self, seq: int, ask: Ask) -> None:
        assert self._session is not None
        kind, keys = pack_keys(ask.keys)
        head = wire.FEED.pack(seq, ask.epoch, ask.first, ask.stride, ask.batch, ask.size, kind)
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
        """The next batch of the epoch, or the error it came to; None at the end, or when it is `unwanted` after all. For callers that
        are never interrupted."""
        taken = self._take(unwanted)
        if taken is None:
            return None
        self._handed, ask, outcome = taken
        self._settle()
        return ask, outcome

    def _take(self, unwanted: Callable[[], bool] = lambda: False) -> tuple[int, Ask, Outcome] | None:
        """The next batch, which stays on our books until it is in the caller's hand."""
        self._settle()
        self._is_asked()
        if not self._is_begun:  # without this it would look like an epoch that has ended
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
        if self._session is not None:
            self._session.give_back()  # before more is asked for: a loop that never waits must not take new memory for each batch
        try:
            self._ask_on()
        except Exception:
            self._handed = seq  # the user's sampler failed; as in torch, the batch in hand is gone with it
            raise
        if self._session is not None:
            self._inbox.extend(self._session.arrived())
            self._read()
        if self.counts:
            self._counters.delivered(began, time.monotonic(), 0 if error else ask.size, len(self._ready) - 1)
        return seq, ask, Outcome(batch, error)

    def _settle(self) -> None:
        """The batch handed out last leaves our books: from here on it is not asked for again."""
        self._open.pop(self._handed, None)
        if self._ready and self._ready[0][0] == self._handed:
            self._ready.popleft()

    @property
    def told(self) -> Told:
        """What workers of an iterable dataset said beside their batches."""
        return self._stream.told

    def hear_out(self) -> None:
        """Wait until they have said where they begin."""
        if self._session is not None and not self._broken:
            until_heard(self._stream, self._session, self._inbox, self._read)

    def pin(self) -> list[int]:
        """Pin the batches' memory for copies to a CUDA device; the seams in it."""
        return [] if self._session is None else self._session.pin()

    def __next__(self) -> Any:
        try:
            taken = self._take()
            if taken is None:
                self.on_end()
                raise StopIteration
            self.run.check_promise()
            seq, ask, (batch, error) = taken
            if error:
                self.run.hand, self._handed = ask, seq
                raise_error(error, ask)
            self.run.hand, self._handed = ask, seq
            return batch
        except Exception:
            raise
        except BaseException:
            # An interrupt may have cut a message in two: the next call starts a new agent and asks again for all
            # that is open, this batch among it.
            self._broken = True  # guard: interrupted-connection
            raise

    def _due(self, began: float, unwanted: Callable[[], bool]) -> tuple[int, int, bytes] | None:
        """The next frame that answers an ask of this epoch; None at its end."""
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
                # Only now is it true: what was delivered has been taken, and what the user let go of is given back.
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
            self._layouts[number] = loads(payload[wire.LAYOUT.size :])
        elif kind == Msg.END and wire.SEQ.unpack(payload)[0] >= self._first_seq:
            # What is still open will not come; but a lost worker makes a new agent ask for it after all.
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
        elif kind == Msg.SPAN:
            self._counters.span(*wire.SPAN.unpack(payload))

    def _batch(self, payload: bytes, ask: Ask) -> Any:
        assert self._session is not None
        return unpacked(self._session.arena, self._session.leases, self._layouts, payload, ask.size)

    @property
    def ready(self) -> int:
        """Batches that are ready and not handed out, as far as is known here. May be asked from another thread."""
        return sum(seq != self._handed for seq, _, _ in tuple(self._ready))

    @property
    def ahead(self) -> int:
        """Batches that are asked for ahead."""
        return self._width

    # ---- workers

    @property
    def workers(self) -> int:
        """How many there are, or are to be."""
        return self._blueprint.agent.core.workers

    def set_workers(self, workers: int, *, follows: bool) -> None:
        """There are to be so many workers, or for now so many where their number `follows` that of the cores. May be called
        from another thread than the one that iterates."""
        self._changed(workers, follows=follows)
        self._wish = AS_CORES if follows else workers
        session = self._session
        if session is not None:
            session.want(self._wish)

    def leave_cores(self, needed: bool) -> None:
        """Whether a GPU lane of the training process needs cores now: workers leave it some, and come back afterwards. May be called
        from another thread than the one that iterates."""
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
        self._closer = weakref.finalize(self, session.close)
        self._counters.attach(session.live)

    def _restart(self, how: str) -> None:
        """A new agent, asked for everything that has not been delivered."""
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
        """End the agent and the workers; idempotent. (Lightning knows it as `_shutdown_workers`.)"""
        self._end_session()
        self._broken = False

    def _end_session(self) -> None:
        if self._session is not None:
            self._counters.detach(self._session.live)
            # Not by the finalizer: an interrupt inside that would leave neither of them to do it.
            self._session.close()
        if self._closer is not None:
            self._closer.detach()
        self._session = self._closer = None

    _shutdown_workers = close
