"""The memory of the card, and a stand-in for it where there is none."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from penstock.measure.card import forget

WORDS = ("out of memory", "can't allocate", "cannot allocate", "memory allocation", "memoryallocation")


class Card:
    """The device's memory."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)

    def free_and_total(self) -> tuple[int, int]:
        return torch.cuda.mem_get_info(self.device)

    def clean(self) -> None:
        """As for a program of its own."""
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        forget()

    def held(self, nbytes: int) -> Any:
        """Memory that nobody else can have, as long as this is referred to."""
        return torch.empty(max(0, nbytes), dtype=torch.uint8, device=self.device)

    def peak(self, work: Callable[[], None]) -> int:
        """The most that torch had of the card during some work."""
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_reserved())

    def reserved(self) -> int:
        return int(torch.cuda.memory_reserved())

    def counts(self) -> dict[str, int]:
        stats = torch.cuda.memory_stats()
        return {
            name: int(stats.get(name, 0))
            for name in ("num_device_alloc", "num_device_free", "num_alloc_retries", "num_ooms")
        }

    def check(self, batch: int) -> None:
        """Nothing to be said before it is tried."""


class NoCard(Card):
    """Stands in for one where there is none: a batch beyond 37 is too large for it."""

    def free_and_total(self) -> tuple[int, int]:
        return 100_000_000, 100_000_000

    def clean(self) -> None:
        gc.collect()

    def held(self, nbytes: int) -> Any:
        return bytearray(min(max(0, nbytes), 1))

    def peak(self, work: Callable[[], None]) -> int:
        work()
        return 0

    def reserved(self) -> int:
        return 0

    def counts(self) -> dict[str, int]:
        return {"num_device_alloc": 0}

    def check(self, batch: int) -> None:
        if batch > 37:
            raise MemoryError("out of memory, as if")


def is_shortage(error: BaseException) -> bool:
    """Whether memory was short, in whoever's words."""
    text = str(error).lower()
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(word in text for word in WORDS)


def card_of(device: str) -> Card:
    return NoCard("cpu") if device == "cpu" else Card(device)
