"""Pin the arena: register its memory with CUDA as it grows, so that copies overlap training."""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Sequence

import torch

from penstock.wire.arena import Arena

log = logging.getLogger(__name__)


class Pins:
    """The pinned ranges of one arena. Each is pinned once and released at the end."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._start = torch.frombuffer(arena.view[:8], dtype=torch.uint8).data_ptr()
        self._ranges: list[tuple[int, int]] = []
        self._end = arena.base
        self.denied = False
        self.seams: list[int] = []
        """Sorted addresses where a pinned range ends; the next range, or unpinned memory, starts there."""

    @property
    def nbytes(self) -> int:
        return sum(size for _, size in self._ranges)

    def extend(self, end: int) -> None:
        """Pin arena memory added since the last call, up to offset `end`."""
        if end <= self._end or self.denied:
            return
        address, size = self._start + self._end, end - self._end
        begun_s = time.perf_counter()
        code = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))  # type: ignore[no-untyped-call]
        if code:
            # Locked-memory limits (ulimit -l) or an unusual kernel: copies then go through the driver's buffers.
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
        """Unpin all ranges. All copies out of them must be complete."""
        for address, _ in self._ranges:
            torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
        self._ranges.clear()


def unsplit(tensor: torch.Tensor, seams: Sequence[int]) -> torch.Tensor:
    """Return the tensor, or a pinned copy if a seam crosses it: CUDA refuses to copy from two ranges at once, even adjacent ones, and from
    a partly pinned one. A batch crosses a seam only if batches differ in size."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type != "cpu":
        return tensor  # no single address, or not in the arena
    address = tensor.data_ptr()
    at = bisect_right(seams, address)
    return pinned_copy(tensor) if at < len(seams) and seams[at] < address + tensor.nbytes else tensor


def pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy into torch's own pinned memory. `pin_memory()` would return the tensor itself, since it starts in pinned memory."""
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)
