"""Batches on a device: a thread takes finished batches and copies them there while the last one is being used.

The copies leave from the arena's own memory, pinned once, on a stream of their own; a batch's slab goes back when its
copy is complete. Without `device=`, `pin_memory=True` hands out memory of torch's pinned allocator, as torch does: torch
does not track copies out of memory that it did not pin itself, so our slabs serve only copies that we launch.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from penstock.engine.feed import Ask
from penstock.engine.progress import Run
from penstock.errors import ConfigError

AHEAD = 2
"""Batches on the device before they are asked for."""
CHECK_S = 0.1


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


class Mover:
    """Moves a batch's tensors; knows when the copies are complete."""

    def __init__(
        self, device: Any, dtype: torch.dtype | None, memory_format: torch.memory_format | None, pin: bool
    ) -> None:
        self.device = None if device is None else torch.device(device)
        self._dtype, self._format, self._pin = dtype, memory_format, pin
        cuda = self.device is not None and self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if cuda else None  # type: ignore[no-untyped-call]

    def pin(self, source: Any) -> None:
        if self._stream is not None and hasattr(source, "pin"):
            source.pin()

    def move(self, batch: Any) -> tuple[Any, Any]:
        """The batch on the device, and an event to wait for (None when it is there already)."""
        if self._stream is None:
            return mapped(batch, self._tensor), None
        with torch.cuda.stream(self._stream):
            moved = mapped(batch, self._tensor)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return moved, event

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

    def arrive(self, batch: Any, event: Any) -> Any:
        """Order the consumer's stream behind the copy; the memory then belongs to that stream too."""
        if event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(event)
            mapped(batch, lambda tensor: recorded(tensor, current))
        return batch


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


class DeviceIterator:
    """Wraps an iterator of batches; a thread keeps `AHEAD` of them on the device."""

    def __init__(self, source: Any, mover: Mover) -> None:
        self._source, self._mover = source, mover
        self._queue: queue.Queue[Any] = queue.Queue(AHEAD)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.run = Run("planned", 0, 0)
        self.on_end: Callable[[], None] = lambda: None
        self.length: Callable[[], int] = lambda: 0
        self.before_first: Callable[[], None] | None = None

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
        self.run.count()
        if self.before_first is not None:
            settle, self.before_first = self.before_first, None
            settle()
        if self._thread is None:
            self._stop.clear()
            pump = Pump(self._source, self._mover, self._queue, self._stop)
            self._thread = threading.Thread(target=pump.run, name="penstock device", daemon=True)
            self._thread.start()
            weakref.finalize(self, self._stop.set)
        while True:
            with contextlib.suppress(queue.Empty):
                kind, ask, value, event = self._queue.get(timeout=CHECK_S)
                break
            if not self._thread.is_alive() and self._queue.empty():
                raise RuntimeError("the thread that copies batches to the device ended without a word")
        if kind == "end":
            self._halt()
            self.on_end()
            raise StopIteration
        if kind == "error":
            self._halt()
            raise value
        self.run.hand = ask
        if kind == "failed":
            value.result(ask)
        return self._mover.arrive(value, event)

    def _halt(self) -> None:
        """Stop the thread and drop what it had ready."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            while thread.is_alive():
                with contextlib.suppress(queue.Empty):
                    self._queue.get_nowait()
                thread.join(0.01)
            self._queue = queue.Queue(AHEAD)
            self._stop = threading.Event()


class Pump:
    """The thread's work; holds no reference to the iterator, so that dropping that ends this."""

    def __init__(self, source: Any, mover: Mover, into: queue.Queue[Any], stop: threading.Event) -> None:
        self._source, self._mover, self._into, self._stop = source, mover, into, stop
        self._in_flight: list[tuple[Any, Any]] = []

    def run(self) -> None:
        try:
            while not self._stop.is_set():
                pulled = self._source.pull()
                if pulled is None:
                    self._put(("end", None, None, None))
                    break
                ask, outcome = pulled
                if outcome.error:
                    self._put(("failed", ask, outcome, None))
                    continue
                self._mover.pin(self._source)
                moved, event = self._mover.move(outcome.batch)
                self._keep_until_copied(outcome.batch, event)
                del outcome, pulled
                self._put(("batch", ask, moved, event))
                del moved
        except BaseException as exc:  # noqa: BLE001 - raised in the consumer's thread
            self._put(("error", None, exc, None))
        for _, event in self._in_flight:
            event.synchronize()

    def _keep_until_copied(self, batch: Any, event: Any) -> None:
        """The slab must not be reused before the copy out of it is complete."""
        if event is not None:
            self._in_flight.append((batch, event))
            self._in_flight = [(kept, copied) for kept, copied in self._in_flight if not copied.query()]

    def _put(self, item: Any) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._into.put(item, timeout=CHECK_S)
                return
