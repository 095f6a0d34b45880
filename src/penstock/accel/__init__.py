"""The compiled loops, if a C compiler was present at installation. Callers have a slower path to the same result."""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.accel.layout import (
    MOST,
    check_box,
    check_numbers,
    check_share,
    check_sides,
    check_table,
    fits,
    fits_out,
    is_dense,
    pointer,
    room,
)

__all__ = [
    "MOST",
    "Box",
    "affine",
    "compiled",
    "crc32",
    "equalizing",
    "finish",
    "fits",
    "fuses",
    "grey_sum",
    "jpeg",
    "jpeg_pays",
    "look_up",
    "loops_in",
    "normal",
    "planes",
    "pointer",
    "resize",
    "room",
    "saturate",
    "sharpen",
    "stretching",
]

WORTH_A_CALL = 4096
"""Minimum bytes for which a checksum is worth a call into the library."""


def compiled() -> ctypes.CDLL | None:
    return looked_for()[0]


def missing() -> str:
    """Say why there are no compiled loops; "" if there are."""
    return "" if compiled() is not None else looked_for()[1]


@cache
def looked_for() -> tuple[ctypes.CDLL | None, str]:
    """Return the compiled library, or None and the reason."""
    spec = importlib.util.find_spec("penstock.accel._loops")
    if spec is None or spec.origin is None:
        return None, "its compiled loops are missing, since no C compiler was found when it was installed"
    try:
        return loops_in(spec.origin), ""
    except (
        OSError,
        AttributeError,
    ) as exc:  # not for this machine, or older than this file, in a working copy
        return None, f"its compiled loops cannot be loaded ({exc})"


def loops_in(path: str) -> ctypes.CDLL:
    loops = ctypes.CDLL(path)
    address, number, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
    loops.penstock_resample.argtypes = [address, stride, *[number] * 3, address, address, *[number] * 5]
    loops.penstock_planes.argtypes = [address, stride, *[number] * 3, address, address]
    loops.penstock_grey_sum.argtypes = [address, stride, number, number]
    loops.penstock_grey_sum.restype = ctypes.c_int64
    loops.penstock_saturate.argtypes = [address, stride, number, number, ctypes.c_float, address]
    loops.penstock_normal.argtypes = [address, stride, number, number, address, address, number]
    loops.penstock_affine.argtypes = [address, stride, *[number] * 5, address, *[number] * 4, *[address] * 2]
    loops.penstock_jpeg.argtypes = [ctypes.c_char_p, stride, *[number] * 7, address]
    loops.penstock_fuses.argtypes = []
    loops.penstock_sharpen.argtypes = [address, number, number, number, ctypes.c_float, address]
    loops.penstock_look_up.argtypes = [address, stride, address, number, address]
    loops.penstock_equalizing.argtypes = [address, stride, *[number] * 3, address]
    loops.penstock_stretching.argtypes = [address, stride, number, number, address]
    loops.penstock_flip.argtypes = [address, stride, *[number] * 3, address]
    loops.penstock_split.argtypes = [address, stride, number, number, address]
    loops.penstock_finish.argtypes = [ctypes.c_char_p, number, address]
    loops.penstock_fence.argtypes = []
    silent = ("fence", "planes", "normal", "saturate", "affine", "look_up", "equalizing", "stretching")
    for name in (*silent, "flip", "split"):
        getattr(loops, f"penstock_{name}").restype = None
    return loops


@cache
def fast_crc32() -> Any:
    """Return the compiled checksum (data, start, end, previous value) if the processor has instructions for it; or None."""
    loops = compiled()
    if not hasattr(loops, "penstock_crc32") or not loops.penstock_crc32_is_fast():  # type: ignore[union-attr]
        return None  # or the library is older than this file, in a working copy
    loop = loops.penstock_crc32  # type: ignore[union-attr]
    loop.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_uint32]
    loop.restype = ctypes.c_uint32
    return loop


def crc32(data: Any, start: int = 0, end: int | None = None, before: int = 0) -> int:
    """Return zlib's crc32 of a range of bytes."""
    size = len(data)
    stop = size if end is None else end
    if type(data) is not bytes:
        view = memoryview(data)
        if view.ndim != 1 or view.itemsize != 1 or not view.contiguous:
            raise ValueError(f"a checksum is of plain bytes, got {view.ndim} dimensions of {view.format!r}")
    if not 0 <= start <= stop <= size:
        raise ValueError(f"bytes {start} to {stop} are not a part of {size}")
    whole = stop - (stop - start) % 16
    if whole - start >= WORTH_A_CALL:
        loop = fast_crc32()
        if loop is not None:
            at = data if type(data) is bytes else pointer(np.frombuffer(data, np.uint8))
            before, start = loop(at, start, whole, before), whole
    return zlib.crc32(memoryview(data)[start:stop], before) if start < stop else before


Box = tuple[float, float, float, float]
"""Top, left, height and width."""
FOUR_DOUBLES = struct.Struct("4d")


def resize(
    image: NDArray[np.uint8],
    height: int,
    width: int,
    *,
    cubic: bool,
    down_first: bool,
    box: Box | None = None,
    mirrored: bool = False,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8] | None:
    """Resize an image, or a box of it, as Pillow's antialiased bilinear or bicubic, bit for bit; with `mirrored` also flip it horizontally.
    None if unsupported. `down_first` matters, since the result of the first direction is rounded."""
    loops = compiled()
    if loops is None or not fits(image):
        return None
    rows, columns, channels = image.shape
    check_sides(height, width)
    if box is not None:
        check_box(box, rows, columns)
    out = room((height, width, channels), out, image)
    place = FOUR_DOUBLES.pack(*(box or (0.0, 0.0, rows, columns)))
    failed = loops.penstock_resample(
        *(pointer(image), image.strides[0], channels, rows, columns, place),
        *(pointer(out), height, width, cubic, down_first, mirrored),
    )
    if failed:
        raise MemoryError(f"no memory to resize {rows} x {columns} to {height} x {width}")
    return out


PART = struct.Struct("@PlPqPP8i")
"""A crop of a three-channel image for `finish`: address and row stride; address of a number that shows the image is still there, or 0, and its
expected value; destination, as in `normal`; address of `normal`'s numbers, or 0 to write pixels; old and new height and width; whether
cubic, down first, mirrored, as in `resize`; whether `normal` divides."""


def finish(parts: Sequence[bytes]) -> list[int]:
    """Resize, and perhaps normalise, crops. Return those not written because their image changed during the read. Needs compiled loops."""
    loops, gone = compiled(), ctypes.create_string_buffer(len(parts))
    assert loops is not None
    if any(len(part) != PART.size for part in parts):
        raise ValueError(f"each part is packed into {PART.size} bytes, got {[len(part) for part in parts]}")
    if loops.penstock_finish(b"".join(parts), len(parts), gone):
        raise MemoryError(f"no memory to resize {len(parts)} images")
    return [at for at, one in enumerate(gone.raw) if one]


def planes(image: NDArray[np.uint8], out: Any, table: NDArray[np.float32]) -> bool:
    """Write `table[channel][value]` of each pixel to `out`, a contiguous float32 tensor, channels x height x width."""
    loops = compiled()
    if loops is None or not fits(image) or not fits_out(image, out):
        return False
    rows, columns, channels = image.shape
    check_numbers(table, (channels, 256), "table")
    sizes = (image.strides[0], channels, rows, columns)
    loops.penstock_planes(pointer(image), *sizes, out.data_ptr(), pointer(table))
    return True


def split(image: NDArray[np.uint8], out: Any) -> bool:
    """Write an image's three channels to `out`, a contiguous uint8 tensor, 3 x height x width."""
    loops = compiled()
    if loops is None or not fits(image) or image.shape[2] != 3 or not out.is_contiguous():
        return False
    loops.penstock_split(pointer(image), image.strides[0], *image.shape[:2], out.data_ptr())
    return True


def flip(image: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Flip an image horizontally."""
    loops = compiled()
    if loops is None or not fits(image):
        return None
    rows, columns, channels = image.shape
    out = np.empty((rows, columns, channels), np.uint8)
    loops.penstock_flip(pointer(image), image.strides[0], channels, rows, columns, pointer(out))
    return out


def normal(image: NDArray[np.uint8], out: Any, numbers: NDArray[np.float32], *, divides: bool) -> bool:
    """Write (value * scale - mean) / std, or with `divides` (value / scale - mean) / std, of three channels to `out`, as `planes` does.
    `numbers`: scale, means, stds."""
    loops = compiled()
    if loops is None or not fits(image) or image.shape[2] != 3 or not fits_out(image, out):
        return False
    rows, columns, _ = image.shape
    check_numbers(numbers, (7,), "numbers")
    loops.penstock_normal(
        pointer(image), image.strides[0], rows, columns, out.data_ptr(), pointer(numbers), divides
    )
    return True


JPEG_SIDE = 65535
"""The largest side of a JPEG image."""


@cache
def jpeg_pays(loops: ctypes.CDLL) -> bool:
    """Whether `jpeg` is faster than libjpeg on this machine."""
    return bool(loops.penstock_jpeg_pays())


def is_part(window: tuple[int, int, int, int], size: tuple[int, int]) -> bool:
    """Whether a window lies inside a JPEG image of valid size."""
    top, left, height, width = window
    below, beside = size[0] - height, size[1] - width
    return max(size) <= JPEG_SIDE and min(height, width) > 0 and 0 <= top <= below and 0 <= left <= beside


def jpeg(
    data: bytes,
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    *,
    to_the_end: bool,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8] | None:
    """Decode a window (top, left, height, width) of a JPEG image of `size`, as libjpeg does. None if libjpeg must do it: the file is no plain
    photo, or is damaged. `to_the_end`: also read what lies below the window, to check that it is intact."""
    loops = compiled()
    if loops is None or not jpeg_pays(loops) or not is_part(window, size):
        return None
    if type(data) is not bytes:
        raise TypeError(f"a JPEG file must be bytes, got {type(data).__name__}")
    out = room((window[2], window[3], 3), out)
    found = loops.penstock_jpeg(data, len(data), *size, *window, to_the_end, pointer(out))
    if found < 0:
        raise MemoryError(f"no memory to decode {window[2]} x {window[3]} pixels")
    return None if found else out


def fuses() -> bool:
    """Whether `saturate` and `sharpen` round a blend once, or product and sum separately."""
    loops = compiled()
    return loops is not None and bool(loops.penstock_fuses())


def grey_sum(image: NDArray[np.uint8]) -> int | None:
    """Return the sum of the grey values of a three-channel image."""
    loops = compiled()
    if loops is None or not fits(image) or image.shape[2] != 3:
        return None
    return int(loops.penstock_grey_sum(pointer(image), image.strides[0], image.shape[0], image.shape[1]))


def saturate(
    image: NDArray[np.uint8], share: float, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8] | None:
    """Blend each pixel with its grey: 0 is grey, 1 the image, above 1 more saturated."""
    loops = compiled()
    if loops is None or not fits(image) or image.shape[2] != 3:
        return None
    out = room(image.shape, out, image)
    sizes = (image.strides[0], *image.shape[:2])
    loops.penstock_saturate(pointer(image), *sizes, check_share(share), pointer(out))
    return out


def sharpen(
    image: NDArray[np.uint8], share: float, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8] | None:
    """Blend each pixel except the border with a smoothed image: 0 is smooth, 1 the image, above 1 sharper."""
    loops = compiled()
    if loops is None or not is_dense(image) or min(image.shape[:2]) < 3:
        return None
    rows, columns, channels = image.shape
    out = room(image.shape, out, image)
    sizes = (rows, columns * channels, channels)
    done = loops.penstock_sharpen(pointer(image), *sizes, check_share(share), pointer(out))
    return out if done else None


def look_up(
    image: NDArray[np.uint8], table: NDArray[np.uint8], out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8] | None:
    """Map each value by a table of 256, or of 256 x 3 for three channels."""
    loops = compiled()
    if loops is None or not is_dense(image):
        return None
    tables = check_table(table, image.shape[2])
    if tables not in (1, 3):
        return None
    table, out = np.ascontiguousarray(table), room(image.shape, out, image)
    loops.penstock_look_up(pointer(image), image.size, pointer(table), tables, pointer(out))
    return out


def equalizing(image: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Return the table, 256 x channels, that equalises each channel's histogram."""
    loops = compiled()
    if loops is None or not fits(image):
        return None
    rows, columns, channels = image.shape
    table = np.empty((256, channels), np.uint8)
    loops.penstock_equalizing(pointer(image), image.strides[0], rows, columns, channels, pointer(table))
    return table


def stretching(image: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Return the table, 256 x 3, that stretches each channel to the full range."""
    loops = compiled()
    if loops is None or not fits(image) or image.shape[2] != 3:
        return None
    table = np.empty((256, 3), np.uint8)
    loops.penstock_stretching(pointer(image), image.strides[0], *image.shape[:2], pointer(table))
    return table


FIXED = 32700.0
"""Coordinates below this, plus one step and rounding, fit the loops' fixed point (16 integer bits)."""
FAR = 1 << 20
"""Limit for windows and parts: within it, rounding of a map's numbers adds up to at most 16 pixels."""


def affine(
    part: NDArray[np.uint8],
    corner: tuple[int, int],
    window: tuple[int, int, int, int],
    matrix: tuple[float, ...],
    fill: tuple[int, ...],
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8] | None:
    """Map a window (top, left, height, width) of the output to the nearest input pixels; `fill` outside. `matrix` maps output to input. `part`
    is the available part of the image, beginning at `corner` (top, left); beyond it is outside."""
    loops = compiled()
    if loops is None or not fits(part) or not fits_fixed(window, matrix):
        return None
    rows, columns, channels = part.shape
    if len(fill) != channels:
        raise ValueError(f"fill must have a value for each of {channels} channels, got {fill}")
    if max(*map(abs, corner), rows, columns) > FAR:
        return None
    out = room((*window[2:], channels), out, part)
    numbers, outside = np.array(matrix, np.float64), np.array(fill, np.uint8)
    loops.penstock_affine(
        *(pointer(part), part.strides[0], channels, *corner, rows, columns),
        *(pointer(out), *window, pointer(numbers), pointer(outside)),
    )
    return out


def fits_fixed(window: tuple[int, int, int, int], matrix: tuple[float, ...]) -> bool:
    """Whether a map's coordinates fit the loops, everywhere in a window and one pixel around it."""
    top, left, height, width = window
    a, b, c, d, e, f = matrix
    corners = [
        (a * x + b * y + c, d * x + e * y + f)
        for x in (left - 1, left + width + 1)
        for y in (top - 1, top + height + 1)
    ]
    near = max(abs(top), abs(left), height, width) <= FAR and min(height, width) > 0
    return near and all(abs(v) < FIXED for place in corners for v in place)  # False for NaN
