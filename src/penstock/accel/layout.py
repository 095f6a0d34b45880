"""Check arguments for the compiled loops: C sees only addresses and numbers, so memory is checked here, before the call.

Rule 1: an input with another layout takes the slower path (`fits` and `fits_out` return False).
Rule 2: `out` is a request. If the loops cannot write to it, `room` returns other memory, and the caller copies or uses that.
Rule 3: an argument that no path could handle (a table of 5 values, a size of 0) is a ValueError that names it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 1 << 28
"""Largest side: three channels of it, and its resize weights, still fit C's int."""
FLOATS = 3e38
"""Numbers below this are finite in single precision."""


def pointer(array: NDArray[Any]) -> int:
    """Return an array's address. `ctypes.data` runs Python code for it, which is out of cache right after work on pixels."""
    found: int = array.__array_interface__["data"][0]
    return found


def fits(image: NDArray[np.uint8]) -> bool:
    """Whether the loops support an image's layout: uint8, 1 or 3 channels, no gaps between pixels, rows top to bottom."""
    if image.ndim != 3 or image.dtype != np.uint8:
        return False
    rows, columns, channels = image.shape
    below, beside, next_channel = image.strides
    whole = channels in (1, 3) and next_channel == 1 and beside == channels and below > 0
    return whole and 0 < rows <= MOST and 0 < columns <= MOST


def is_dense(image: NDArray[np.uint8]) -> bool:
    """Whether an image is contiguous, with any number of channels."""
    if image.ndim != 3 or image.dtype != np.uint8 or not image.flags.c_contiguous:
        return False
    rows, columns, channels = image.shape
    return bool(0 < rows <= MOST and 0 < columns * channels <= 3 * MOST)


def room(
    shape: tuple[int, ...], out: NDArray[np.uint8] | None, image: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Return memory for a result: `out` if it has the shape and is contiguous, writable and apart from `image`, the input; else new memory."""
    if (
        out is not None
        and out.shape == shape
        and out.dtype == np.uint8
        and out.flags.c_contiguous  # guard: loops-one-piece
        and out.flags.writeable
        and (image is None or not np.may_share_memory(image, out))  # guard: loops-overlap
    ):
        return out
    return np.empty(shape, np.uint8)


def fits_out(image: NDArray[np.uint8], out: Any) -> bool:
    """Whether the loops can write an image to a tensor as float planes; refuse another shape."""
    rows, columns, channels = image.shape
    if tuple(out.shape) != (channels, rows, columns):
        raise ValueError(f"out must be {channels} x {rows} x {columns}, got {tuple(out.shape)}")
    if out.device.type != "cpu" or not out.is_floating_point() or out.element_size() != 4:
        return False
    if not out.is_contiguous():
        return False
    start, end = pointer(image), pointer(image) + (rows - 1) * image.strides[0] + columns * channels
    first = out.data_ptr()
    return bool(first >= end or first + 4 * image.size <= start)


def check_numbers(numbers: NDArray[np.float32], shape: tuple[int, ...], what: str) -> None:
    """Refuse floats that are too few for C or not contiguous."""
    if numbers.dtype != np.float32 or numbers.shape != shape or not numbers.flags.c_contiguous:
        raise ValueError(
            f"{what} must be float32 of {shape} in one piece, got {numbers.dtype} of {numbers.shape}"
            f" with strides {numbers.strides}"
        )


def check_table(table: NDArray[np.uint8], channels: int) -> int:
    """Return the number of tables, one for all channels or one each; refuse others."""
    # guard: loops-table
    if table.dtype != np.uint8 or table.shape not in ((256,), (256, 1), (256, channels)):
        raise ValueError(
            f"a table must be uint8 of 256 values, or of 256 x {channels}, got {table.dtype} of {table.shape}"
        )
    return table.size // 256


def check_share(share: float) -> float:
    if not abs(share) < FLOATS:
        raise ValueError(f"a share must be a finite number, got {share}")
    return share


def check_sides(height: int, width: int) -> None:
    if not (0 < height <= MOST and 0 < width <= MOST):
        raise ValueError(f"height and width must be between 1 and {MOST:,}, got {height} x {width}")


def check_box(box: tuple[float, float, float, float], rows: int, columns: int) -> None:
    """Refuse a box (top, left, height, width) outside the image."""
    top, left, height, width = box
    inside = (
        top >= 0
        and left >= 0
        and height > 0
        and width > 0
        and top + height <= rows
        and left + width <= columns
    )
    if not inside or not all(map(math.isfinite, box)):
        raise ValueError(
            f"the box (top, left, height, width) {box} is not a part of an image of {rows} x {columns}"
        )
