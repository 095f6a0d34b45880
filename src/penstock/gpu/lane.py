"""The GPU lane: a batch as workers leave it, with pixels of some samples and parcels of others, becomes a batch on the device.

It runs in the thread that brings batches to the device, on that thread's stream. Pixels arrive as uint8 and are scaled and
normalised on the device; parcels are decoded there and their programs executed by the kernels, straight into their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from penstock.gpu.parcels import Parcel, SharedNumber, unpacked
from penstock.policy.share import FIRST, Seen, ShareSearch
from penstock.transforms.tail import Tail


class Makes(Protocol):
    """What makes pixels of parcels: writes each into its place in `out`, as the tail says."""

    def __call__(self, parcels: Sequence[Parcel], out: torch.Tensor) -> None: ...


class GpuLane:
    """Finishes batches of `Parcels`, and says through `share` how many of their samples it will have from now on."""

    def __init__(
        self,
        tail: Tail,
        device: torch.device,
        makes: Makes | None,
        share: SharedNumber,
        *,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        fixed_share: float | None = None,
    ) -> None:
        self._tail, self._device, self._makes, self._share = tail, device, makes, share
        self._dtype = dtype or tail.dtype
        self._format = memory_format or torch.contiguous_format
        self._search = None if fixed_share is not None else ShareSearch()
        self._newest = (0, 0)
        self._last: Any = None
        self.samples = self.packed = 0
        share.set(FIRST if fixed_share is None else fixed_share)

    def finish(self, batch: Any) -> list[Any]:
        """(images on the device, what else the batch has, still where it was)."""
        images, *others, records = batch
        if self._last is not None:
            self._last.synchronize()  # so that time here is the device's time, and never more than a batch is under way
        parcels = unpacked(records)
        self._newest = (len(images), len(parcels))
        self.samples += len(images)
        self.packed += len(parcels)
        pixels = images.to(self._device, non_blocking=True)
        out = torch.empty(images.shape, dtype=self._dtype, device=self._device, memory_format=self._format)
        normalised(self._tail, pixels, out)
        if parcels and self._makes is not None:
            self._makes(parcels, out)
        if self._device.type == "cuda":
            self._last = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._last.record()
        return [out, *others]

    def on_batch(self, pull_s: float, work_s: float, put_s: float) -> None:
        if self._search is not None:
            self._share.set(self._search.on_batch(Seen(pull_s, work_s, put_s, *self._newest)))


def normalised(tail: Tail, pixels: torch.Tensor, out: torch.Tensor) -> None:
    """What `tail` makes of uint8 pixels, step by step as on the CPU, so that it is the same."""
    if not tail.dtype.is_floating_point:
        out.copy_(pixels)
        return
    values = pixels.to(torch.float32)
    if tail.scale == "divide":
        values /= 255
    elif tail.scale == "multiply":
        values *= 1.0 / 255
    if tail.mean:
        mean, std = (constant(numbers, pixels.device) for numbers in (tail.mean, tail.std))
        values.sub_(mean).div_(std)
    out.copy_(values)


_constants: dict[tuple[tuple[float, ...], torch.device], torch.Tensor] = {}


def constant(numbers: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """A number per channel on the device, brought there once."""
    found = _constants.get((numbers, device))
    if found is None:
        found = _constants[numbers, device] = torch.tensor(numbers, device=device).view(-1, 1, 1)
    return found
