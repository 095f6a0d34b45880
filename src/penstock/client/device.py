"""Batches on a device: a thread takes finished batches and has them copied there while the last one is being used.

Rule 1: where workers go on into the next epoch before it is asked for, the thread does too: then training finds that epoch's first batches on
        the device, as it does all others. They are dropped if another epoch is begun instead.
Rule 2: an interrupt may come anywhere in the caller. So there is no lock between the two that it could leave taken, the thread says itself that it is
        over (`Thread.join`, once interrupted, takes it for ended), and what was cut short is done to its end by the next call.
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
"""Batches on the device before they are asked for."""
CHECK_S = 0.1
LOOK_S = 0.001
OUTLAST_S = 120.0
"""How long what is under way may still take, when nobody wants it any more."""

LEFT = (
    "the iterator was interrupted while it was being closed or begun anew, and what it had ready is gone: start a new one with iter(loader); "
    "loader.load_state_dict(loader.state_dict()) before it goes on behind the last batch"
)


class Item(NamedTuple):
    kind: str
    """`batch`, `failed` (the batch's own error), `error` (the loader's) or `end`."""
    ask: Any = None
    value: Any = None
    """Of an `end`: the epoch that follows it here, if one does."""
    arrival: Arrival | None = None


NOTHING = Item("nothing")


class Flag:
    """Set once. An interrupt inside `threading.Event.set` would leave its lock taken."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class Shelf:
    """What is ready for the consumer, in order. An item stays here until the consumer has it: the queues carry wake-ups only, and a lost one
    costs `CHECK_S`."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.stop, self.is_left = Flag(), Flag()
        """That the thread is to leave, and that it has."""
        self.pump: Pump | None = None
        """What the thread does."""
        self._unclaimed = deque([None])
        self._filled: SimpleQueue[None] = SimpleQueue()
        self._emptied: SimpleQueue[None] = SimpleQueue()

    def claim(self) -> bool:
        """Whether the caller is the first thread to come: of several, one fills it."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    @property
    def is_claimed(self) -> bool:
        return not self._unclaimed

    def end(self) -> None:
        """Have the thread leave."""
        self.stop.set()
        if not self.is_claimed:
            self.pump = None
        self._emptied.put(None)

    def leave(self) -> None:
        """The thread does."""
        self.pump = None
        self.is_left.set()
        self._filled.put(None)

    def wait_until_left(self) -> None:
        """After `end`: a thread that comes only now does nothing."""
        while self.is_claimed and not self.is_left.is_set():
            doze(self._filled)

    def put(self, item: Item) -> None:
        """Wait for room beside the one that the consumer has, but not beyond `stop`."""
        while len(self.items) > AHEAD and not self.stop.is_set():
            doze(self._emptied)
        self.items.append(item)
        self._filled.put(None)

    def wait_for_place(self, mover: Mover) -> None:
        """Until there may be one more batch on the device, but not beyond `stop`."""
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
        """Whether the consumer has come to an end behind which this epoch follows; it is behind it now."""
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
    how long the thread waits for them is nobody's loss."""

    def __init__(self, source: Any, mover: Mover, counters: Counters | None = None) -> None:
        super().__init__()
        self._source, self._mover, self._counters = source, mover, counters
        source.counts = counters is None
        self._shelf = Shelf()
        self._handed = NOTHING
        """What the caller has; it leaves the shelf with the next call, so that an interrupt cannot lose it."""
        self._to_begin: tuple[Any, int] | None = None
        """What was asked for, until it is begun."""
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
        self._to_begin = None  # whatever was to be begun before, this is wanted instead
        self._let_go()  # who leaves with the last batch has come to the end, too
        if self._shelf.enters(epoch):
            return True
        self._halt()
        return bool(self._source.proceed(epoch))

    def pull(self) -> Any:
        """The next batch as it is, for one who throws it away before the iteration begins."""
        return self._source.pull()

    @property
    def told(self) -> Any:
        return self._source.told

    def hear_out(self) -> None:
        if not self._shelf.is_claimed:  # nobody else reads from it
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
        self._begin()  # if it was interrupted
        if self._shelf.stop.is_set():
            raise PenstockError(LEFT)
        asked_s, began_s = time.perf_counter(), time.monotonic()
        self._start()
        item = self._shelf.first()
        if item.kind == "end":
            if item.value is None:
                self._halt()
            self._mover.rest()
            self.on_end()  # it stays on the shelf until the next epoch is entered
            raise StopIteration
        if item.kind == "error":
            self._halt()
            error = item.value
            try:
                raise error
            finally:  # its traceback has this frame: who drops the loader would wait for the collector
                del item, error
        if item.kind == "failed":
            self._count(began_s, 0)
            self.run.hand, self._handed = item.ask, item
            item.value.result(item.ask)
        try:
            batch = self._mover.arrive(item.value, item.arrival)
        except Exception:  # of this batch: the next is another
            self.run.hand, self._handed = item.ask, item
            raise
        self._mover.taken(item.arrival, asked_s, self._source.ready, self._source.ahead)
        self._source.leave_cores(self._mover.takes_cores)
        self._count(began_s, item.ask.size)
        self.run.hand, self._handed = item.ask, item
        return batch

    def _count(self, began_s: float, samples: int) -> None:
        """Training has a batch, or its error."""
        if self._counters is None:
            return
        ready = len(self._shelf.items) - 1 + self._source.ready
        if not self._counters.steady.is_first:
            self._mover.there(ready)
        self._counters.lane_mode = self._mover.lane_mode
        self._counters.delivered(began_s, time.monotonic(), samples, ready)
        for idle_s, were_ready in self._mover.idle_time.read():
            self._counters.steady.idled(idle_s, were_ready)

    def _let_go(self) -> None:
        """Of the batch that the caller had."""
        self._mover.let_go()  # before anybody hears of it: its place is not free yet
        self._shelf.drop(self._handed)
        self._handed = NOTHING

    def _start(self) -> None:
        """A thread for the shelf, unless it has one. Where an interrupt came between, it may get two: one of them fills it, and the other may never
        have come to itself, since Python's own lock was left taken. So threads refer to the shelf alone."""
        if self._shelf.is_claimed:
            return
        self._shelf.pump = Pump(self._source, self._mover, self._shelf)
        thread = threading.Thread(target=filled, args=(self._shelf,), name="penstock device", daemon=True)
        leaves(thread, self._shelf.end)
        weakref.finalize(self, self._shelf.end)
        thread.start()

    def _halt(self) -> None:
        """Stop the thread and drop what it had ready."""
        self._shelf.end()
        self._shelf.wait_until_left()
        self._shelf.items.clear()  # an error's traceback leads back here
        self._shelf, self._handed = Shelf(), NOTHING


def brought(engine: Any, mover: Mover | None, counters: Counters) -> Any:
    """An engine's batches, where `mover` brings them."""
    return engine if mover is None else DeviceIterator(engine, mover, counters)


def filled(shelf: Shelf) -> None:
    """A thread."""
    if shelf.claim():
        try:
            pump = shelf.pump
            if pump is not None and not shelf.stop.is_set():
                pump.run()
        finally:
            shelf.leave()


class Pump:
    """The thread's work; holds no reference to the iterator, so that dropping that ends this."""

    def __init__(self, source: Any, mover: Mover, shelf: Shelf) -> None:
        self._source, self._mover, self._shelf = source, mover, shelf
        self._in_flight: list[tuple[Any, Arrival]] = []

    def run(self) -> None:
        put = self._shelf.put
        self._mover.begun(self)
        try:
            while not self._shelf.stop.is_set():
                pulled = self._source.pull(self._shelf.stop.is_set)
                if self._shelf.stop.is_set():  # nobody wants it; and it may not look like the epoch's end
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
                    put(Item("failed", ask, outcome))
                    continue
                self._mover.pin(self._source)
                self._shelf.wait_for_place(self._mover)
                if self._shelf.stop.is_set():
                    break
                moved, arrival = self._mover.move(outcome.batch)
                self._keep_until_copied(outcome.batch, arrival)
                del outcome, pulled
                put(Item("batch", ask, moved, arrival))
                del moved
        except BaseException as exc:  # noqa: BLE001 - raised in the consumer's thread
            put(Item("error", value=exc))
        self._mover.ended(self)
        until = time.monotonic() + OUTLAST_S
        for _, arrival in self._in_flight:
            arrival.outlast(until)

    def _wait_for_all(self) -> None:
        """Until what is under way is there, but not beyond `stop`: the gate may be shut as long as training does not ask."""
        until = time.monotonic() + OUTLAST_S
        while not all(arrival.is_over() for _, arrival in self._in_flight):
            if self._shelf.stop.is_set() or time.monotonic() > until:
                break
            time.sleep(LOOK_S)

    def _keep_until_copied(self, batch: Any, arrival: Arrival | None) -> None:
        """The slab must not be reused before all that reads it is done."""
        if arrival is not None:
            self._in_flight.append((batch, arrival))
            self._in_flight = [(kept, its) for kept, its in self._in_flight if not its.is_over()]
