"""Batch buffers on the device: how many batches may be there at once, beside training's own memory.

Rule 1: training comes first. During its first batches its memory need is unknown: only the batch in use is on the device.
Rule 2: then there are as many buffers as free memory allows, less a hundredth of the device; one buffer if training ran short of memory.
        All memory is taken at once and never extended.
Rule 3: a buffer is free when the device is done with its batch. A loop runs ahead of the device, so a released batch is in use until then.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from penstock.measure.card import Spare

if TYPE_CHECKING:
    from penstock.gpu.prep import Prep  # it imports much

MOST = 6
"""One in use by training, two prefetched, one in the making, two that the device has not finished."""
FIRST_BATCHES = 3
"""The first step allocates the optimizer's state; the second may still choose new algorithms."""
MARGIN = 0.01
"""Fraction of the device's memory left for later allocations of others."""


class CudaCard:
    """A device's memory."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._spare = device, Spare(device)

    def spare(self) -> tuple[int, int]:
        """Return free bytes and total bytes."""
        return self._spare.free_and_total()

    def take(self, sizes: Sequence[int], places: int) -> int:
        """Reserve memory for `places` batches with tensors of these sizes; return how many fit."""
        held: list[list[torch.Tensor]] = []
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            while len(held) < places:
                held.append([torch.empty(size, dtype=torch.uint8, device=self._device) for size in sizes])
        return len(held)  # torch's allocator keeps the freed memory for this stream


class Places:
    """Batch buffers of one loader. They outlive its iterators, so memory is measured once."""

    def __init__(self, card: CudaCard | None) -> None:
        self._card = card
        self.most = MOST if card is None else 1
        self.stream: Any = None
        """Stream of the copies. torch caches freed memory per stream, so all iterators share this one."""
        self._batches, self._sizes = 0, [0]

    @property
    def are_settled(self) -> bool:
        """Whether training's memory need is known and the buffers are reserved."""
        return self._card is None

    def on_batch(self, sizes: Sequence[int]) -> None:
        """Note a started batch with tensors of these sizes."""
        self._batches += 1
        if sum(sizes) > sum(self._sizes):
            self._sizes = list(sizes)

    def settle(self) -> None:
        """Reserve the buffers on the current stream once training's need is known. Called with one free: the device is done with other batches."""
        if self._card is None or self._batches < FIRST_BATCHES:
            return
        card, self._card = self._card, None
        free, total = card.spare()
        beside = int(free - MARGIN * total) // max(1, sum(self._sizes))
        wanted = 1 + min(MOST - 1, max(0, beside))
        self.most = max(1, card.take(self._sizes, wanted)) if wanted > 1 else 1


class DeviceSide:
    """Device state that a loader keeps between epochs, though its workers may be new each epoch. A copy of the loader starts without it."""

    def __init__(self) -> None:
        self.prep: Prep | None = None
        """The last iterator's GPU lane and the dataset made for its workers."""
        self.places: Places | None = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(self), ()

    def stats(self) -> dict[str, Any] | None:
        """Return the numbers of the current or last GPU lane."""
        return None if self.prep is None else self.prep.lane.stats()


class InUse:
    """Batches that training has released but the device may still use."""

    def __init__(self) -> None:
        self._ends: deque[Any] = deque()
        self.last: Any = None
        """Event after all work that training had queued at its last request."""

    def __len__(self) -> int:
        return len(self._ends)

    def until(self, end: Any) -> None:
        self._ends.append(end)
        self.last = end

    def wait_for_oldest(self) -> None:
        self._ends[0].synchronize()
        self._ends.popleft()
