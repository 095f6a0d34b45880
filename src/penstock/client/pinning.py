"""Pinning the arena: its memory is registered with CUDA as it is backed, so that copies out of it run beside training."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Sequence

import torch

from penstock.wire.arena import Arena

log = logging.getLogger(__name__)


class Pins:
    """Registered ranges of one arena. Each range is pinned once and let go at the end."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._start = torch.frombuffer(arena.view[:8], dtype=torch.uint8).data_ptr()
        self._ranges: list[tuple[int, int]] = []
        self._end = arena.base
        self.denied = False
        self.seams: list[int] = []
        """Addresses where a range ends, in order: the next begins there, or what is not pinned yet."""

    @property
    def nbytes(self) -> int:
        return sum(size for _, size in self._ranges)

    def extend(self, end: int) -> None:
        """Pin what has been backed since the last call, up to arena offset `end`."""
        if end <= self._end or self.denied:
            return
        address, size = self._start + self._end, end - self._end
        begun_s = time.perf_counter()
        code = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))  # type: ignore[no-untyped-call]
        if code:
            # Locked-memory limits (ulimit -l) or an unusual kernel: copies then go through the driver's own buffers.
            self.denied = True
            log.warning(
                "cudaHostRegister of %s bytes is denied (error %s): copies are not asynchronous", size, code
            )
            return
        log.debug("pinned %s more bytes in %.3f s", size, time.perf_counter() - begun_s)
        self.seams.append(address + size)
        self._ranges.append((address, size))
        self._end = end

    def close(self) -> None:
        """Let go of all ranges; the copies out of them are complete."""
        for address, _ in self._ranges:
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
        self._ranges.clear()


def unsplit(tensor: torch.Tensor, seams: Sequence[int]) -> torch.Tensor:
    """The tensor, or where a seam goes through it a pinned copy: CUDA refuses to copy from two ranges at once, even where one begins at
    the other's end, and from one that is pinned in part. A batch lies across a seam only where batches differ in size."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type != "cpu":
        return tensor  # it has no one place, and none of ours
    address = tensor.data_ptr()
    at = bisect_right(seams, address)
    return pinned_copy(tensor) if at < len(seams) and seams[at] < address + tensor.nbytes else tensor


def pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """In memory of torch's own: `pin_memory()` would give the tensor itself, since it begins in pinned memory."""
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)
