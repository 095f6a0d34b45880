"""Look-up tables of 256 pixel values; consecutive ones are composed into one.

They tabulate Pillow's functions value by value, so they are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from penstock import accel
from penstock.transforms.steps import Code, Step

Table = NDArray[np.uint8]
"""256 values for all channels, or 256 x channels."""

IDENTITY: Table = np.arange(256, dtype=np.uint8)
LEVELS = np.arange(256.0)[:, None]


@lru_cache(maxsize=512)
def table_of(step: Step) -> Table:
    """Return the table of a step that does not depend on the image. Cached: policies have few."""
    table = _table_of(step)
    table.flags.writeable = False
    return table


def _table_of(step: Step) -> Table:
    match step:
        case Step(Code.BRIGHTNESS, (factor,)):
            return blend(0, factor, fused=False)  # adding to 0 rounds nothing
        case Step(Code.POSTERIZE, (bits,)):
            kept: Table = IDENTITY & np.uint8(0xFF << (8 - bits) & 0xFF)
            return kept
        case Step(Code.SOLARIZE, (threshold,)):
            bent: Table = np.where(threshold > IDENTITY, IDENTITY, 255 - IDENTITY).astype(np.uint8)
            return bent
        case Step(Code.INVERT):
            return np.subtract(255, IDENTITY, dtype=np.uint8)
    raise ValueError(f"{step} has no table of its own")


@lru_cache(maxsize=1024)
def blend(base: int, factor: float, *, fused: bool) -> Table:
    """Tabulate base + factor * (value - base), truncated, in single precision as Pillow's blend. `fused` rounds to single once, else product
    and sum each."""
    values, share = np.arange(256, dtype=np.float32) - np.float32(base), np.float32(factor)
    if fused:  # double precision loses nothing before
        values = (base + np.float64(share) * values).astype(np.float32)
    else:
        values = np.float32(base) + share * values
    table: Table = np.clip(values, 0, 255).astype(np.uint8)
    table.flags.writeable = False
    return table


def autocontrast(low: Sequence[int], high: Sequence[int]) -> Table:
    """Stretch each channel's values from its [low, high] to [0, 255]."""
    lowest, wide = np.array(low, np.float64), np.subtract(high, low, dtype=np.float64)
    scale = 255.0 / np.where(wide > 0, wide, 255.0)
    stretched = LEVELS * scale + -lowest * scale
    table: Table = np.minimum(np.maximum(stretched, 0.0), 255.0).astype(np.uint8)
    table[:, wide <= 0] = IDENTITY[:, None]
    return table


def equalize(histograms: NDArray[np.int64]) -> Table:
    """Equalise each channel's histogram (channels x 256 counts)."""
    last = 255 - (histograms[:, ::-1] > 0).argmax(axis=1)
    below = np.cumsum(histograms, axis=1) - histograms
    step = below[np.arange(len(last)), last] // 255
    spread = (step // 2 + below.T) // np.maximum(step, 1)
    table: Table = np.minimum(spread, 255).astype(np.uint8)
    table[:, step == 0] = IDENTITY[:, None]
    return table


def look_up(
    image: NDArray[np.uint8], table: Table, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Apply a table to an image; into `out`, if the loops can write there."""
    flat = np.ascontiguousarray(image)
    quick = accel.look_up(flat, table, out)
    if quick is not None:
        return quick
    if table.ndim == 1:
        return table.take(flat)
    return np.stack([table[:, c].take(flat[:, :, c]) for c in range(flat.shape[2])], axis=2)


def composed(first: Table, then: Table) -> Table:
    """Compose two consecutive tables into one."""
    if first.ndim == 1 and then.ndim == 1:
        return then[first]
    channels = max(table.shape[1] for table in (first, then) if table.ndim == 2)
    one = np.broadcast_to(first[:, None], (256, channels)) if first.ndim == 1 else first
    two = np.broadcast_to(then[:, None], (256, channels)) if then.ndim == 1 else then
    return np.stack([two[one[:, c], c] for c in range(channels)], axis=1)
