"""What the memory of a GPU has to spare beside training."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Spare:
    """Of a device. What is free at a moment says little where torch has had to give memory back to get other memory (a *retry*): all of it is needed
    then, if not at this moment. That holds from when we first see the device, for all loaders; but what came before an allocation that failed
    was somebody's who gave up, such as a search for the largest batch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        is_short(device)

    def has(self, size: int) -> bool:
        """Whether so many bytes are nobody's."""
        return self.free_and_total()[0] >= size

    def free_and_total(self) -> tuple[int, int]:
        """Bytes that nobody has and nobody has had to give back, and bytes in all."""
        free, total = torch.cuda.mem_get_info(self._device)
        return 0 if is_short(self._device) else free, total


class Counts(NamedTuple):
    """What torch says of a device."""

    failures: int
    retries: int


_before: dict[torch.device, Counts] = {}
"""When we first saw the device, or first after a failure."""


def forget() -> None:
    """For who begins anew in the same process: all that was before is nobody's concern."""
    _before.clear()


def is_short(device: torch.device) -> bool:
    """Whether torch has had to give memory back since then."""
    if device.type != "cuda":
        return False
    stats = torch.cuda.memory_stats(device)
    now = Counts(stats.get("num_ooms", 0), stats.get("num_alloc_retries", 0))
    before = _before.setdefault(device, now)
    if now.failures != before.failures:
        before = _before[device] = now
    return now.retries > before.retries
