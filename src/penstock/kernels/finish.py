"""Scale and normalise finished pixels on the device: one pass from uint8 to the batch's dtype and layout."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch

from penstock.kernels.run import interpreted, tail_table
from penstock.transforms.tail import Tail, normalise

BLOCK = 1024


def normalised(tail: Tail, pixels: torch.Tensor, out: torch.Tensor) -> None:
    """Write `tail` of uint8 pixels to `out`, with the CPU's numbers. Pixels: samples x channels x height x width, planar or interleaved, rows
    without gaps."""
    if not tail.dtype.is_floating_point:
        out.copy_(pixels)
    elif pixels.is_cuda and has_triton():
        looked_up(tail, pixels, out)
    else:
        out.copy_(normalise(pixels.to(torch.float32), tail.scale, tail.mean, tail.std))


def looked_up(tail: Tail, pixels: torch.Tensor, out: torch.Tensor) -> None:
    """Look up each level in the CPU's table: its numbers, in any dtype."""
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
    """Return the table on the device, copied there once."""
    key = (tail.scale, tuple(tail.mean), tuple(tail.std), dtype, channels, device)
    found = _levels.get(key)
    if found is None:
        found = _levels[key] = tail_table(tail, dtype, channels).to(device)
    return found
