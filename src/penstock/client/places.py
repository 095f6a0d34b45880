"""Places for batches on the device: how many there may be at once, beside what training needs.

Rule 1: training comes first. While it uses its first batches, whose need of memory nobody knows yet, there is no batch on the device but the
        one that it has.
Rule 2: then there are as many places as the device has memory left for, less a hundredth of it; one, if training has been short of memory. All
        are taken at once: nothing more is asked for later.
Rule 3: a place is free when the device has done with its batch. A loop runs ahead of the device, and what it has let go of is in use
        until then.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from penstock.measure.card import Spare

MOST = 6
"""One that training has, two that wait for it, one that is being made, two that the device has not done with yet."""
FIRST_BATCHES = 3
"""The first step takes what the optimizer keeps, the second may choose its algorithms anew."""
MARGIN = 0.01
"""Of the device's memory: for what others take later."""


class Card(Protocol):
    """A device's memory."""

    def spare(self) -> tuple[int, int]:
        """Bytes that nobody has, and bytes in all."""

    def take(self, sizes: Sequence[int], places: int) -> int:
        """Take memory for so many batches with tensors of these sizes, and keep it for later; gives how many there was memory for."""


class CudaCard:
    def __init__(self, device: torch.device) -> None:
        self._device, self._spare = device, Spare(device)

    def spare(self) -> tuple[int, int]:
        return self._spare.free_and_total()

    def take(self, sizes: Sequence[int], places: int) -> int:
        held: list[list[torch.Tensor]] = []
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            while len(held) < places:
                held.append([torch.empty(size, dtype=torch.uint8, device=self._device) for size in sizes])
        return len(held)  # torch's allocator keeps what is let go of here for this stream


class Places:
    """For the batches of one loader. Its iterators may come and go: what is known of the memory stays."""

    def __init__(self, card: Card | None) -> None:
        self._card = card
        self.most = MOST if card is None else 1
        self.stream: Any = None
        """On which batches come to their places: torch keeps memory for each stream by itself, so that all iterators have the same one."""
        self._batches, self._sizes = 0, [0]

    @property
    def are_settled(self) -> bool:
        """Whether training has shown what it needs, and batches have theirs."""
        return self._card is None

    def on_batch(self, sizes: Sequence[int]) -> None:
        """One more was begun, with tensors of these sizes."""
        self._batches += 1
        if sum(sizes) > sum(self._sizes):
            self._sizes = list(sizes)

    def settle(self) -> None:
        """There is room for one more batch, so the device has done with the others; on the current stream."""
        if self._card is None or self._batches < FIRST_BATCHES:
            return
        card, self._card = self._card, None
        free, total = card.spare()
        beside = int(free - MARGIN * total) // max(1, sum(self._sizes))
        wanted = 1 + min(MOST - 1, max(0, beside))
        self.most = max(1, card.take(self._sizes, wanted)) if wanted > 1 else 1


class InUse:
    """What training has let go of, and the device may not have done with."""

    def __init__(self) -> None:
        self._ends: deque[Any] = deque()
        self.last: Any = None
        """The end of all that training had given the device when it asked last."""

    def __len__(self) -> int:
        return len(self._ends)

    def until(self, end: Any) -> None:
        self._ends.append(end)
        self.last = end

    def wait_for_oldest(self) -> None:
        self._ends[0].synchronize()
        self._ends.popleft()
