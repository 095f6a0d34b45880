"""Pixels that the CPU has prepared, scaled and normalised on the device: one pass from uint8 to the batch's dtype and layout."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch

from penstock.kernels.run import interpreted, tail_table
from penstock.transforms.tail import Tail, normalise

BLOCK = 1024


def normalised(tail: Tail, pixels: torch.Tensor, out: torch.Tensor) -> None:
    """What `tail` makes of uint8 pixels (samples x channels x height x width, in planes or not, but a row at the end of the other), the
    CPU's numbers, into `out`."""
    if not tail.dtype.is_floating_point:
        out.copy_(pixels)
    elif pixels.is_cuda and has_triton():
        looked_up(tail, pixels, out)
    else:
        out.copy_(normalise(pixels.to(torch.float32), tail.scale, tail.mean, tail.std))


def looked_up(tail: Tail, pixels: torch.Tensor, out: torch.Tensor) -> None:
    """Each level in the CPU's table: its numbers, whatever their dtype here."""
    from penstock.kernels.levels import look_up

    samples, channels, height, width = pixels.shape
    area = height * width
    table = levels(tail, out.dtype, channels, out.device)
    block = area if interpreted() else BLOCK
    grid = (-(-area // block), samples)
    look_up[grid](
        *(pixels, out, table, area, width, *pixels.stride()[:2], pixels.stride(3), *out.stride()),
        channels=channels,
        block=power_of_two(block),
    )


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


_levels: dict[Any, torch.Tensor] = {}


def levels(tail: Tail, dtype: torch.dtype, channels: int, device: torch.device) -> torch.Tensor:
    """The table on the device, brought there once."""
    key = (tail.scale, tuple(tail.mean), tuple(tail.std), dtype, channels, device)
    found = _levels.get(key)
    if found is None:
        found = _levels[key] = tail_table(tail, dtype, channels).to(device)
    return found
