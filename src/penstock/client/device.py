"""Device prefetch: a thread copies finished batches to the device while training uses the last one.

Rule 1: if workers prefetch into the next epoch, so does the thread: that epoch's first batches are on the device before it begins.
        They are dropped if another epoch begins instead.
Rule 2: an interrupt may hit the caller anywhere. So caller and thread share no lock, the thread itself reports that it has ended
        (an interrupted `Thread.join` already counts it as ended), and the next call completes whatever was cut short.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from penstock.client.batches import Batches
from penstock.client.mover import Arrival, Mover
from penstock.daemon_threads import leaves
from penstock.errors import PenstockError
from penstock.measure.counters import Counters

AHEAD = 2
"""Batches prefetched to the device."""
CHECK_S = 0.1
LOOK_S = 0.001
OUTLAST_S = 120.0
"""Longest wait for copies in flight that nobody needs any more."""

LEFT = (
    "the iterator was interrupted while it was being closed or begun anew, and what it had ready is gone: start a new one with iter(loader); "
    "loader.load_state_dict(loader.state_dict()) before it goes on behind the last batch"
)


class Item(NamedTuple):
    kind: str
    """`batch`, `failed` (the batch's own error), `error` (the loader's) or `end`."""
    ask: Any = None
    value: Any = None
    """For `end`: the next epoch, if the thread goes on into it."""
    arrival: Arrival | None = None
    seq: int = -1


NOTHING = Item("nothing")


class Flag:
    """A flag that is only ever set. An interrupt inside `threading.Event.set` would leave its lock taken."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class Shelf:
    """Batches ready for the consumer, in order. An item stays here until the consumer has it. The queues only carry wake-ups; a lost
    wake-up costs `CHECK_S`."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.stop, self.is_left = Flag(), Flag()
        """The thread must leave; the thread has left."""
        self.pump: Pump | None = None
        """The thread's work."""
        self._unclaimed = deque([None])
        self._filled: SimpleQueue[None] = SimpleQueue()
        self._emptied: SimpleQueue[None] = SimpleQueue()

    def claim(self) -> bool:
        """Return whether the calling thread is the first; only the first fills the shelf."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    @property
    def is_claimed(self) -> bool:
        return not self._unclaimed

    def end(self) -> None:
        """Tell the thread to leave."""
        self.stop.set()
        if not self.is_claimed:
            self.pump = None
        self._emptied.put(None)

    def leave(self) -> None:
        """Report that the thread leaves."""
        self.pump = None
        self.is_left.set()
        self._filled.put(None)

    def wait_until_left(self) -> None:
        """Wait for the thread, after `end`. A thread that starts later does nothing."""
        while self.is_claimed and not self.is_left.is_set():
            doze(self._filled)

    def put(self, item: Item) -> None:
        """Add an item once there is room beside the batch the consumer has, or after `stop`."""
        while len(self.items) > AHEAD and not self.stop.is_set():
            doze(self._emptied)
        self.items.append(item)
        self._filled.put(None)

    def wait_for_place(self, mover: Mover) -> None:
        """Wait until one more batch may be on the device, or for `stop`."""
        while not mover.has_place(len(self.items)) and not self.stop.is_set():
            if mover.in_use:
                mover.in_use.wait_for_oldest()
            else:
                doze(self._emptied)

    def first(self) -> Item:
        while not self.items:
            if self.is_left.is_set() and not self.items:
                raise RuntimeError("the thread that copies batches to the device ended without a word")
            doze(self._filled)
        return self.items[0]

    def enters(self, epoch: int) -> bool:
        """Step into `epoch` if the consumer has reached the end before it; return whether it did."""
        end = self.items[0] if self.items else NOTHING
        if end.kind != "end" or end.value != epoch or self.stop.is_set():
            return False
        self.drop(end)
        return True

    def drop(self, item: Item) -> None:
        if self.items and self.items[0] is item:
            self.items.popleft()
            self._emptied.put(None)


def doze(until: SimpleQueue[None]) -> None:
    with contextlib.suppress(Empty):
        until.get(timeout=CHECK_S)


class DeviceIterator(Batches):
    """Wraps an iterator of batches; a thread keeps `AHEAD` of them on the device. Batches are counted here, when training gets them:
    the thread's own waiting costs nothing."""

    def __init__(self, source: Any, mover: Mover, counters: Counters | None = None) -> None:
        super().__init__()
        self._source, self._mover, self._counters = source, mover, counters
        source.counts = counters is None
        self._shelf = Shelf()
        self._handed = NOTHING
        """The caller's batch. It leaves the shelf with the next call, so that an interrupt cannot lose it."""
        self._to_begin: tuple[Any, int] | None = None
        """The requested epoch, until it has begun."""
        if mover.lane is not None:
            mover.lane.belong_to(self)

    # ---- epochs, as EngineIterator

    def begin(self, asks: Any, epoch: int) -> None:
        self._to_begin = asks, epoch
        self._begin()

    def _begin(self) -> None:
        if self._to_begin is None:
            return
        self._halt()
        if self._mover.lane is not None:
            self._mover.lane.belong_to(self)
        (asks, epoch), self._to_begin = self._to_begin, None
        self._source.begin(asks, epoch)

    def proceed(self, epoch: int) -> bool:
        self._to_begin = None  # this epoch replaces any earlier request
        self._let_go()  # a caller that stops at the last batch has reached the end, too
        if self._shelf.enters(epoch):
            return True
        self._halt()
        return bool(self._source.proceed(epoch))

    def pull(self) -> Any:
        """Return the next batch uncopied, for callers that discard it before iteration begins."""
        return self._source.pull()

    @property
    def told(self) -> Any:
        return self._source.told

    def hear_out(self) -> None:
        if not self._shelf.is_claimed:  # no thread reads from it
            self._source.hear_out()

    def set_workers(self, workers: int, *, follows: bool) -> None:
        self._source.set_workers(workers, follows=follows)

    @property
    def closed(self) -> bool:
        return bool(getattr(self._source, "closed", False))

    def close(self) -> None:
        self._halt()
        if hasattr(self._source, "close"):
            self._source.close()

    _shutdown_workers = close

    # ---- iteration

    def __next__(self) -> Any:
        self._let_go()
        self._is_asked()
        self._begin()  # if an interrupt cut it short
        if self._shelf.stop.is_set():
            raise PenstockError(LEFT)
        asked_s, began_s = time.perf_counter(), time.monotonic()
        self._start()
        item = self._shelf.first()
        if item.kind == "end":
            if item.value is None:
                self._halt()
            self._mover.rest()
            self.on_end()  # the item stays on the shelf until the next epoch begins
            raise StopIteration
        if item.kind == "error":
            self._halt()
            error = item.value
            try:
                raise error
            finally:  # its traceback holds this frame: a dropped loader would live until garbage collection
                del item, error
        if item.kind == "failed":
            self._count(item, began_s, 0)
            self.run.hand, self._handed = item.ask, item
            item.value.result(item.ask)
        try:
            batch = self._mover.arrive(item.value, item.arrival)
        except Exception:  # only this batch failed: continue with the next
            self.run.hand, self._handed = item.ask, item
            raise
        self._mover.taken(item.arrival, asked_s, self._source.ready, self._source.ahead)
        self._source.leave_cores(self._mover.takes_cores)
        self._count(item, began_s, item.ask.size)
        self.run.hand, self._handed = item.ask, item
        return batch

    def _count(self, item: Item, began_s: float, samples: int) -> None:
        """Count a batch, or its error, that training has received, and show the agent where training is."""
        if self._counters is None:
            return
        self._source.taken(item.seq, item.ask, self._mover.at_lane)
        ready = len(self._shelf.items) - 1 + self._source.ready
        if not self._counters.steady.is_first:
            self._mover.there(ready)
        self._counters.lane_mode = self._mover.lane_mode
        self._counters.delivered(began_s, time.monotonic(), samples, ready)
        for idle_s, were_ready in self._mover.idle_time.read():
            self._counters.steady.idled(idle_s, were_ready)

    def _let_go(self) -> None:
        """Release the caller's last batch."""
        self._mover.let_go()  # before the shelf shrinks: the device still uses the batch
        self._shelf.drop(self._handed)
        self._handed = NOTHING

    def _start(self) -> None:
        """Start a thread for the shelf, unless it has one. After an interrupt it may get two: one fills it; the other may hang in its
        start, since Python's own lock was left taken. So threads refer to the shelf alone."""
        if self._shelf.is_claimed:
            return
        self._shelf.pump = Pump(self._source, self._mover, self._shelf)
        thread = threading.Thread(target=filled, args=(self._shelf,), name="penstock device", daemon=True)
        leaves(thread, self._shelf.end)
        weakref.finalize(self, self._shelf.end)
        thread.start()

    def _halt(self) -> None:
        """Stop the thread and drop its prefetched batches."""
        self._shelf.end()
        self._shelf.wait_until_left()
        self._shelf.items.clear()  # an error's traceback refers back to this object
        self._shelf, self._handed = Shelf(), NOTHING


def filled(shelf: Shelf) -> None:
    """Run the shelf's pump. Target of the thread."""
    if shelf.claim():
        try:
            pump = shelf.pump
            if pump is not None and not shelf.stop.is_set():
                pump.run()
        finally:
            shelf.leave()


class Pump:
    """The thread's work. It holds no reference to the iterator, so dropping the iterator ends it."""

    def __init__(self, source: Any, mover: Mover, shelf: Shelf) -> None:
        self._source, self._mover, self._shelf = source, mover, shelf
        self._in_flight: list[tuple[Any, Arrival]] = []

    def run(self) -> None:
        put = self._shelf.put
        self._mover.begun(self)
        try:
            while not self._shelf.stop.is_set():
                pulled = self._source.pull(self._shelf.stop.is_set)
                if self._shelf.stop.is_set():  # None must not look like the epoch's end then
                    break
                if pulled is None:
                    following = self._source.epoch + 1
                    if not self._source.proceed(following):
                        put(Item("end"))
                        break
                    if self._mover.writes_over:
                        self._wait_for_all()
                    put(Item("end", value=following))
                    continue
                ask, outcome = pulled
                if outcome.error:
                    put(Item("failed", ask, outcome, seq=outcome.seq))
                    continue
                self._mover.pin(self._source)
                self._shelf.wait_for_place(self._mover)
                if self._shelf.stop.is_set():
                    break
                moved, arrival = self._mover.move(outcome.batch)
                self._keep_until_copied(outcome.batch, arrival)
                seq = outcome.seq
                del outcome, pulled
                put(Item("batch", ask, moved, arrival, seq))
                del moved
        except BaseException as exc:  # noqa: BLE001 - raised in the consumer's thread
            put(Item("error", value=exc))
        self._mover.ended(self)
        until = time.monotonic() + OUTLAST_S
        for _, arrival in self._in_flight:
            arrival.outlast(until)

    def _wait_for_all(self) -> None:
        """Wait for all copies in flight, or for `stop`: the gate may stay shut until training asks."""
        until = time.monotonic() + OUTLAST_S
        while not all(arrival.is_over() for _, arrival in self._in_flight):
            if self._shelf.stop.is_set() or time.monotonic() > until:
                break
            time.sleep(LOOK_S)

    def _keep_until_copied(self, batch: Any, arrival: Arrival | None) -> None:
        """Hold the slab until every reader of it is done."""
        if arrival is not None:
            self._in_flight.append((batch, arrival))
            self._in_flight = [(kept, its) for kept, its in self._in_flight if not its.is_over()]
