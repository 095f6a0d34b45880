"""Copy batches to their device.

Copies start from the arena's own pinned memory on a separate stream; a batch's slab is freed when its copy completes. Without `device=`,
`pin_memory=True` copies into torch's pinned allocator, as torch does: torch does not track copies out of memory pinned by others, so our
slabs serve only copies that we launch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from penstock.client.arguments import TorchArguments, on_cuda
from penstock.client.idle_time import IdleTime
from penstock.client.pinning import unsplit
from penstock.client.places import CudaCard, DeviceSide, InUse, Places
from penstock.config import LoaderConfig
from penstock.epochs.feed import Ask
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.gpu.lane import GpuLane  # it imports much


def check_device(config: LoaderConfig) -> None:
    device = config.device
    if device is None:
        if config.dtype is not None or config.memory_format is not None:
            raise ConfigError(
                "dtype and memory_format describe batches on a device: give device= too ('cpu' works)"
            )
        return
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as exc:
        raise ConfigError(
            f"device must be a torch device such as 'cuda' or 'cpu', got {device!r}: {exc}"
        ) from exc
    if reason := missing(wanted):
        raise ConfigError(
            f"device={device!r}, but {reason}: give another, 'cpu' for example, or leave it out"
        )


def missing(device: torch.device) -> str:
    """Say why this process lacks the device; "" if it has it, or nobody can tell."""
    if device.type in ("cpu", "meta"):
        return ""
    try:
        kind = torch.get_device_module(device)
        if not kind.is_available():
            return f"torch finds no {device.type} device here (torch.{device.type}.is_available() is False)"
        if (device.index or 0) >= (count := kind.device_count()):
            return f"torch finds only {count} such device{'' if count == 1 else 's'} here"
    except (RuntimeError, AttributeError):
        return ""  # a third-party backend reports its own errors on use
    return ""


def mapped(batch: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the batch with `move` applied to every tensor, by the rules of torch's `pin_memory`."""
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
        """Make `stream` wait for the batch."""

    def is_over(self) -> bool:
        """Return whether nothing reads the batch's host memory any more."""

    def outlast(self, until_s: float) -> None:
        """Wait until `is_over`; if that can hang, only until `until_s` (monotonic clock)."""


class Copy(NamedTuple):
    """A batch that is only copied."""

    event: Any

    def order(self, stream: Any) -> None:
        stream.wait_event(self.event)

    def is_over(self) -> bool:
        return bool(self.event.query())

    def outlast(self, until_s: float) -> None:  # noqa: ARG002 - a copy does not hang
        self.event.synchronize()


class Mover:
    """Moves a batch's tensors and tracks when the copies complete."""

    def __init__(
        self,
        device: Any,
        dtype: torch.dtype | None,
        memory_format: torch.memory_format | None,
        pin: bool,
        lane: GpuLane | None = None,
        places: Places | None = None,
    ) -> None:
        self.device = None if device is None else torch.device(device)
        self.lane = lane
        self._dtype, self._format, self._pin = dtype, memory_format, pin
        self._seams: list[int] = []
        self._places, self.in_use = places or Places(None), InUse()
        self.idle_time = IdleTime()
        if self.device is not None and self.device.type == "cuda" and self._places.stream is None:
            self._places.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._stream = self._places.stream

    def pin(self, source: Any) -> None:
        if self._stream is not None and hasattr(source, "pin"):
            with torch.cuda.device(self._stream.device):  # threads start with device 0
                self._seams = source.pin()

    def move(self, batch: Any) -> tuple[Any, Arrival | None]:
        """Return the batch on the device and its arrival (None if it is already there)."""
        if self._stream is None:
            moved, begun = self._moved(batch)
            return moved, None if self.lane is None else self.lane.make(begun, None)
        with torch.cuda.stream(self._stream):
            if self._seams:
                batch = mapped(batch, lambda tensor: unsplit(tensor, self._seams))
            self._places.settle()
            moved, begun = self._moved(batch)
            self._places.on_batch(sizes_of(moved))
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return moved, Copy(event) if self.lane is None else self.lane.make(begun, event)

    def _moved(self, batch: Any) -> tuple[Any, Any]:
        """Return the batch on the device and the lane's remaining work for it."""
        if self.lane is None:
            return mapped(batch, self._tensor), None
        begun = self.lane.begin(batch, spare_known=self._places.are_settled)
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
        """Make the consumer's stream wait for the batch, and record that stream as a user of its memory."""
        if arrival is not None:
            current = None if self._stream is None else torch.cuda.current_stream(self.device)
            arrival.order(current)
            if current is not None:
                mapped(batch, lambda tensor: recorded(tensor, current))
        return batch

    def has_place(self, others: int) -> bool:
        """Return whether one more batch may start, beside `others` that training has or may get."""
        return others + len(self.in_use) < self._places.most

    @property
    def writes_over(self) -> bool:
        """Whether an epoch's batches overwrite memory that the previous epoch's batches read: then wait for those. Anything overwritten too
        early is made again."""
        return self.lane is not None and self.lane.residents is not None

    def let_go(self) -> None:
        """Note that training asks for another batch; the lane may run once the device finishes its queued work."""
        if self._stream is not None:
            event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self.in_use.until(event)
            self.idle_time.asked(event)
            if self.lane is not None and self.lane.gate.idle_only:
                self.lane.gate.opens_after(event)

    def there(self, ready: int) -> None:
        """Note that training's stream has reached the batch, with `ready` more ready."""
        if self._stream is not None:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self.idle_time.there(event, ready)

    def taken(self, arrival: Any, asked_s: float, ready: int, ahead: int) -> None:
        """Note that training has the batch. It waited only if the device ran out of work: a loop that runs ahead waits for the device, not
        for us."""
        if self.lane is not None:
            if self.in_use.last is not None and not self.in_use.last.query():
                asked_s = time.perf_counter()
            self.lane.gate.shuts()
            self.lane.taken(arrival, asked_s, ready, ahead)

    def rest(self) -> None:
        """Pause the lane at an epoch's end."""
        if self.lane is not None:
            self.lane.rest()

    @property
    def takes_cores(self) -> bool:
        """Whether workers must leave the lane cores now."""
        return self.lane is not None and self.lane.takes_cores

    @property
    def at_lane(self) -> float:
        """What the lane has still to make of what workers left to it, in batches."""
        return 0.0 if self.lane is None else self.lane.backlog

    @property
    def lane_mode(self) -> str:
        return "off" if self.lane is None else self.lane.mode

    def begun(self, pump: Any) -> None:
        """Tell the gate that this pump asks for batches."""
        if self.lane is not None:
            self.lane.gate.asked_by(pump)

    def ended(self, pump: Any) -> None:
        """Tell the gate that this pump has stopped; another may ask already."""
        if self.lane is not None:
            self.lane.gate.left_by(pump)


def mover_for(
    config: LoaderConfig, given: TorchArguments, held: DeviceSide, lane: GpuLane | None = None
) -> Mover | None:
    """Return what copies batches to their device or pinned memory; None if they stay in place."""
    pins = given.pin_memory and torch.accelerator.is_available()
    if given.pin_memory and given.pin_memory_device:
        warnings.warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{given.pin_memory_device}'.",
            stacklevel=4,
        )
    if given.pin_memory and not pins:
        warnings.warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
            stacklevel=4,
        )
    if config.device is None and not pins:
        return None
    if held.places is None:
        held.places = Places(CudaCard(torch.device(config.device)) if on_cuda(config) else None)
    return Mover(config.device, config.dtype, config.memory_format, pins, lane, held.places)


def moved(prepare: Callable[[Ask], tuple[Any, Any]], mover: Mover | None) -> Callable[[Ask], tuple[Any, Any]]:
    """Extend `prepare` to copy the batch at once. Without workers nothing may run in the background: the dataset would seed the
    generators that the training loop draws from."""
    if mover is None:
        return prepare

    def prepare_and_move(ask: Ask) -> tuple[Any, Any]:
        batch, state = prepare(ask)
        return mover.arrive(*mover.move(batch)), state

    return prepare_and_move


def sizes_of(batch: Any) -> list[int]:
    """Return the bytes of each tensor on the device."""
    found: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cuda:
            found.append(tensor.nbytes)
        return tensor

    mapped(batch, note)
    return found


def recorded(tensor: torch.Tensor, stream: Any) -> torch.Tensor:
    if tensor.is_cuda:
        tensor.record_stream(stream)
    return tensor
