"""Batches on a device: a thread takes finished batches and copies them there while the last one is being used.

The copies leave from the arena's own memory, pinned once, on a stream of their own; a batch's slab goes back when its
copy is complete. Without `device=`, `pin_memory=True` hands out memory of torch's pinned allocator, as torch does: torch
does not track copies out of memory that it did not pin itself, so our slabs serve only copies that we launch.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

import torch

from penstock.engine.feed import Ask
from penstock.engine.pinning import unsplit
from penstock.engine.progress import Run
from penstock.errors import ConfigError

AHEAD = 2
"""Batches on the device before they are asked for."""
CHECK_S = 0.1
OUTLAST_S = 120.0
"""How long what is under way may still take, when nobody wants it any more."""


def check_device(device: Any, dtype: torch.dtype | None, memory_format: torch.memory_format | None) -> None:
    if device is None:
        if dtype is not None or memory_format is not None:
            raise ConfigError(
                "dtype and memory_format describe batches on a device: give device= too ('cpu' works)"
            )
        return
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as exc:
        raise ConfigError(
            f"device must be a torch device such as 'cuda' or 'cpu', got {device!r}: {exc}"
        ) from exc


def mapped(batch: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The batch with `move` applied to every tensor, by the rules of torch's `pin_memory`."""
    if isinstance(batch, torch.Tensor):
        return move(batch)
    if isinstance(batch, (str, bytes)):
        return batch
    if isinstance(batch, dict):
        moved = {key: mapped(value, move) for key, value in batch.items()}
        return moved if type(batch) is dict else type(batch)(moved)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, move) for value in batch))
    if type(batch) in (list, tuple):
        return type(batch)(mapped(value, move) for value in batch)
    return batch


class Arrival(Protocol):
    """A batch on its way to the device."""

    def order(self, stream: Any) -> None:
        """`stream` goes on when it is there."""

    def is_over(self) -> bool:
        """Whether nothing reads the batch's host memory any more."""

    def outlast(self, until_s: float) -> None:
        """Wait until that is so; for what can hang, not beyond that time (of the monotonic clock)."""


class Copy(NamedTuple):
    """A batch that is copied and no more."""

    event: Any

    def order(self, stream: Any) -> None:
        stream.wait_event(self.event)

    def is_over(self) -> bool:
        return bool(self.event.query())

    def outlast(self, until_s: float) -> None:  # noqa: ARG002 - a copy does not hang
        self.event.synchronize()


class Lane(Protocol):
    """What makes a batch on the device of what workers leave (`gpu.lane.GpuLane`)."""

    gate: Any

    def belong_to(self, owner: Any) -> None:
        """Make batches for this iterator."""

    def begin(self, batch: Any) -> Any:
        """`images` there, `others` where they were, and what is still to be made."""

    def make(self, begun: Any, copied: Any) -> Any:
        """Has that made when `copied` has come to pass; gives an `Arrival`."""

    def taken(self, arrival: Any, asked_s: float, ready: int, ahead: int) -> None:
        """Training asked for the batch then and has it now; so many more are ready, of those asked for ahead."""

    def stats(self) -> dict[str, Any]:
        """Numbers."""


class Mover:
    """Moves a batch's tensors; knows when the copies are complete."""

    def __init__(
        self,
        device: Any,
        dtype: torch.dtype | None,
        memory_format: torch.memory_format | None,
        pin: bool,
        lane: Lane | None = None,
    ) -> None:
        self.device = None if device is None else torch.device(device)
        self.lane = lane
        self._dtype, self._format, self._pin = dtype, memory_format, pin
        self._seams: list[int] = []
        cuda = self.device is not None and self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if cuda else None  # type: ignore[no-untyped-call]

    def pin(self, source: Any) -> None:
        if self._stream is not None and hasattr(source, "pin"):
            with torch.cuda.device(self.device):  # a thread begins with device 0, which may be another rank's
                self._seams = source.pin()

    def move(self, batch: Any) -> tuple[Any, Arrival | None]:
        """The batch on the device, and its arrival there (None when it is there already)."""
        if self._stream is None:
            moved, begun = self._moved(batch)
            return moved, None if self.lane is None else self.lane.make(begun, None)
        with torch.cuda.stream(self._stream):
            if self._seams:
                batch = mapped(batch, lambda tensor: unsplit(tensor, self._seams))
            moved, begun = self._moved(batch)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return moved, Copy(event) if self.lane is None else self.lane.make(begun, event)

    def _moved(self, batch: Any) -> tuple[Any, Any]:
        """The batch there, and what the lane has still to do for it."""
        if self.lane is None:
            return mapped(batch, self._tensor), None
        begun = self.lane.begin(batch)
        return [begun.images, *(mapped(other, self._tensor) for other in begun.others)], begun

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.device is None:
            return tensor.pin_memory() if self._pin else tensor
        moved = tensor.to(self.device, non_blocking=True)
        if tensor.dim() == 4:
            if self._dtype is not None:
                moved = moved.to(self._dtype)
            if self._format is not None:
                moved = moved.contiguous(memory_format=self._format)
        return moved

    def arrive(self, batch: Any, arrival: Arrival | None) -> Any:
        """Order the consumer's stream behind it; the memory then belongs to that stream too."""
        if arrival is not None:
            current = None if self._stream is None else torch.cuda.current_stream(self.device)
            arrival.order(current)
            if current is not None:
                mapped(batch, lambda tensor: recorded(tensor, current))
        return batch

    def asked(self) -> float:
        """Training waits for a batch from now on; the lane may work while what it has given the device is done."""
        if self.lane is not None and self.lane.gate.idle_only and self._stream is not None:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self.lane.gate.opens_after(event)
        return time.perf_counter()

    def taken(self, arrival: Arrival | None, asked_s: float, ready: int, ahead: int) -> None:
        """Training has the batch."""
        if self.lane is not None:
            self.lane.gate.shuts()
            self.lane.taken(arrival, asked_s, ready, ahead)

    def begun(self, pump: Any) -> None:
        """Somebody asks for batches, through this pump."""
        if self.lane is not None:
            self.lane.gate.asked_by(pump)

    def ended(self, pump: Any) -> None:
        """Nobody does any more; another may already, through another pump."""
        if self.lane is not None:
            self.lane.gate.left_by(pump)


def mover_for(
    device: Any,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
    pin_memory: bool,
    pin_memory_device: str,
    lane: Lane | None = None,
) -> Mover | None:
    """What brings batches to their device or into pinned memory; None when they stay where they are."""
    pins = pin_memory and torch.accelerator.is_available()
    if pin_memory and pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{pin_memory_device}'.",
            stacklevel=5,
        )
    if pin_memory and not pins:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
            stacklevel=5,
        )
    return Mover(device, dtype, memory_format, pins, lane) if device is not None or pins else None


def moved(prepare: Callable[[Ask], tuple[Any, Any]], mover: Mover | None) -> Callable[[Ask], tuple[Any, Any]]:
    """`prepare`, and the batch is brought to the device at once. Without workers nothing may run in the background: the
    dataset would seed the generators that the training loop draws from at that moment."""
    if mover is None:
        return prepare

    def prepare_and_move(ask: Ask) -> tuple[Any, Any]:
        batch, state = prepare(ask)
        return mover.arrive(*mover.move(batch)), state

    return prepare_and_move


def recorded(tensor: torch.Tensor, stream: Any) -> torch.Tensor:
    if tensor.is_cuda:
        tensor.record_stream(stream)
    return tensor


class Item(NamedTuple):
    kind: str
    """`batch`, `failed` (the batch's own error), `error` (the loader's) or `end`."""
    ask: Any = None
    value: Any = None
    arrival: Arrival | None = None


class Shelf:
    """What is ready for the consumer, in order. There is no lock that an interrupt in the consumer could leave taken, and
    an item stays here until the consumer has it: the queues carry wake-ups only, and a lost one costs `CHECK_S`."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.stop = threading.Event()
        self._filled: SimpleQueue[None] = SimpleQueue()
        self._emptied: SimpleQueue[None] = SimpleQueue()

    def put(self, item: Item) -> None:
        """Wait for room beside the one that the consumer has, but not beyond `stop`."""
        while len(self.items) > AHEAD and not self.stop.is_set():
            doze(self._emptied)
        self.items.append(item)
        self._filled.put(None)

    def first(self, is_filled_by: threading.Thread) -> Item:
        while not self.items:
            if not is_filled_by.is_alive() and not self.items:
                raise RuntimeError("the thread that copies batches to the device ended without a word")
            doze(self._filled)
        return self.items[0]

    def drop(self, item: Item) -> None:
        if self.items and self.items[0] is item:
            self.items.popleft()
            self._emptied.put(None)


def doze(until: SimpleQueue[None]) -> None:
    with contextlib.suppress(Empty):
        until.get(timeout=CHECK_S)


NOTHING = Item("nothing")


class DeviceIterator:
    """Wraps an iterator of batches; a thread keeps `AHEAD` of them on the device."""

    def __init__(self, source: Any, mover: Mover) -> None:
        self._source, self._mover = source, mover
        self._shelf = Shelf()
        self._handed = NOTHING
        """What the caller has; it leaves the shelf with the next call, so that an interrupt cannot lose it."""
        self._thread: threading.Thread | None = None
        self.run = Run("planned", 0, 0)
        self.on_end: Callable[[], None] = lambda: None
        self.length: Callable[[], int] = lambda: 0
        self.before_first: Callable[[], None] | None = None
        if mover.lane is not None:
            mover.lane.belong_to(self)

    # ---- epochs, as EngineIterator

    def begin(self, asks: Any, epoch: int) -> None:
        self._halt()
        self._source.begin(asks, epoch)

    def proceed(self, epoch: int) -> bool:
        self._halt()
        return bool(self._source.proceed(epoch))

    def pull(self) -> Any:
        """The next batch as it is, for one who throws it away before the iteration begins."""
        return self._source.pull()

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

    def __iter__(self) -> DeviceIterator:
        return self

    def __len__(self) -> int:
        return self.length()

    def __getstate__(self) -> Any:
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)

    def __next__(self) -> Any:
        self._shelf.drop(self._handed)
        self.run.count()
        if self.before_first is not None:
            self.before_first()
            self.before_first = None
        asked_s = self._mover.asked()
        item = self._shelf.first(self._pumping())
        if item.kind == "end":
            self._halt()
            self.on_end()
            raise StopIteration
        if item.kind == "error":
            self._halt()
            raise item.value
        if item.kind == "failed":
            self.run.hand, self._handed = item.ask, item
            item.value.result(item.ask)
        try:
            batch = self._mover.arrive(item.value, item.arrival)
        except Exception:  # of this batch: the next is another
            self.run.hand, self._handed = item.ask, item
            raise
        self._mover.taken(item.arrival, asked_s, self._source.ready, self._source.ahead)
        self.run.hand, self._handed = item.ask, item
        return batch

    def _pumping(self) -> threading.Thread:
        if self._thread is None:
            pump = Pump(self._source, self._mover, self._shelf)
            thread = threading.Thread(target=pump.run, name="penstock device", daemon=True)
            weakref.finalize(self, self._shelf.stop.set)
            self._thread = thread
            thread.start()
        return self._thread

    def _halt(self) -> None:
        """Stop the thread and drop what it had ready."""
        self._shelf.stop.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        self._thread, self._shelf, self._handed = None, Shelf(), NOTHING


def brought(engine: Any, mover: Mover | None) -> Any:
    """An engine's batches, where `mover` brings them."""
    return engine if mover is None else DeviceIterator(engine, mover)


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
                pulled = self._source.pull()
                if pulled is None:
                    put(Item("end"))
                    break
                ask, outcome = pulled
                if outcome.error:
                    put(Item("failed", ask, outcome))
                    continue
                self._mover.pin(self._source)
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

    def _keep_until_copied(self, batch: Any, arrival: Arrival | None) -> None:
        """The slab must not be reused before all that reads it is done."""
        if arrival is not None:
            self._in_flight.append((batch, arrival))
            self._in_flight = [(kept, its) for kept, its in self._in_flight if not its.is_over()]
