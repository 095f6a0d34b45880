"""GPU memory left over by training."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Spare:
    """Spare memory of a device. Free memory means little after an allocation *retry* (torch gave cached memory back to get other memory):
    training then needs all of it, if not right now. Retries count from our first sight of the device, for all loaders. A failed allocation
    resets the count: whoever failed has given up, such as a search for the largest batch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        is_short(device)

    def has(self, size: int) -> bool:
        """Return whether `size` bytes are free."""
        return self.free_and_total()[0] >= size

    def free_and_total(self) -> tuple[int, int]:
        """Return free bytes, 0 after a retry, and total bytes."""
        free, total = torch.cuda.mem_get_info(self._device)
        return 0 if is_short(self._device) else free, total


class Counts(NamedTuple):
    """torch's counts for a device."""

    failures: int
    retries: int


_before: dict[torch.device, Counts] = {}
"""Counts at our first sight of a device, or after its last failed allocation."""


def forget() -> None:
    """Forget all counts, for a new start in the same process."""
    _before.clear()


def is_short(device: torch.device) -> bool:
    """Return whether torch has had to retry an allocation since the recorded counts."""
    if device.type != "cuda":
        return False
    stats = torch.cuda.memory_stats(device)
    now = Counts(stats.get("num_ooms", 0), stats.get("num_alloc_retries", 0))
    before = _before.setdefault(device, now)
    if now.failures != before.failures:
        before = _before[device] = now
    return now.retries > before.retries
