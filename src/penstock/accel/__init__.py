"""Our few compiled loops, where a compiler was there when we were installed; callers have a slower way to the same result."""

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
"""Bytes of which a checksum is worth a call into the library."""


def compiled() -> ctypes.CDLL | None:
    """The compiled library, or None."""
    return looked_for()[0]


def missing() -> str:
    """Why there are no compiled loops; nothing where they are there."""
    return "" if compiled() is not None else looked_for()[1]


@cache
def looked_for() -> tuple[ctypes.CDLL | None, str]:
    """The compiled library, or None and why not."""
    spec = importlib.util.find_spec("penstock.accel._loops")
    if spec is None or spec.origin is None:
        return None, "its compiled loops are missing, since no C compiler was found when it was installed"
    try:
        return loops_in(spec.origin), ""
    except (
        OSError,
        AttributeError,
    ) as exc:  # it is not for this machine, or older than this file, in a working copy
        return None, f"its compiled loops cannot be loaded ({exc})"


def loops_in(path: str) -> ctypes.CDLL:
    """The loops in a file."""
    loops = ctypes.CDLL(path)
    address, number, stride = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
    loops.penstock_resample.argtypes = [address, stride, *[number] * 3, address, address, *[number] * 5]
    loops.penstock_planes.argtypes = [address, stride, *[number] * 3, address, address]
    loops.penstock_grey_sum.argtypes = [address, stride, number, number]
    loops.penstock_grey_sum.restype = ctypes.c_int64
    loops.penstock_saturate.argtypes = [address, stride, number, number, ctypes.c_float, address]
    loops.penstock_normal.argtypes = [address, stride, number, number, address, address, number]
    loops.penstock_affine.argtypes = [
        address,
        stride,
        *[number] * 5,
        address,
        *[number] * 4,
        address,
        address,
    ]
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
    """The compiled checksum, where the processor has instructions for it; or None. (data, start, end, value before)."""
    loops = compiled()
    if not hasattr(loops, "penstock_crc32") or not loops.penstock_crc32_is_fast():  # type: ignore[union-attr]
        return None  # or the library is older than this file, in a working copy
    loop = loops.penstock_crc32  # type: ignore[union-attr]
    loop.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_uint32]
    loop.restype = ctypes.c_uint32
    return loop


def crc32(data: Any, start: int = 0, end: int | None = None, before: int = 0) -> int:
    """zlib's, of a part of some bytes."""
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
            at = data if type(data) is bytes else address_of(data)
            before, start = loop(at, start, whole, before), whole
    return zlib.crc32(memoryview(data)[start:stop], before) if start < stop else before


def address_of(data: Any) -> int:
    """Of the first of some bytes."""
    return pointer(np.frombuffer(data, np.uint8))


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
    """Pillow's antialiased bilinear or bicubic resizing of an image, or a box of it, bit for bit, and where that is asked for with left and
    right changed; None where it must be done otherwise. The result of the first direction is rounded, so it matters which one that is."""
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
"""A part of an image of three channels, for `finish`: where it begins, bytes from row to row; where a number lies that shows that it is still
there, or 0, and that number; where it goes, as `normal` has it; where `normal`'s numbers are, or 0: it goes there as pixels; its height and
width, and those that it is to have; whether cubic, down first, mirrored, as `resize` has it; and whether `normal` divides."""


def finish(parts: Sequence[bytes]) -> list[int]:
    """Resize them, and normalise them or not, one after the other; those of which nothing was written, since they were something else when they
    had been read. Only where there are compiled loops."""
    loops, gone = compiled(), ctypes.create_string_buffer(len(parts))
    assert loops is not None
    if any(len(part) != PART.size for part in parts):
        raise ValueError(f"each part is packed into {PART.size} bytes, got {[len(part) for part in parts]}")
    if loops.penstock_finish(b"".join(parts), len(parts), gone):
        raise MemoryError(f"no memory to resize {len(parts)} images")
    return [at for at, one in enumerate(gone.raw) if one]


def planes(image: NDArray[np.uint8], out: Any, table: NDArray[np.float32]) -> bool:
    """`table[channel][value]` of each pixel into `out`, a contiguous float32 tensor of channels x height x width."""
    loops = compiled()
    if loops is None or not fits(image) or not fits_out(image, out):
        return False
    rows, columns, channels = image.shape
    check_numbers(table, (channels, 256), "table")
    sizes = (image.strides[0], channels, rows, columns)
    loops.penstock_planes(pointer(image), *sizes, out.data_ptr(), pointer(table))
    return True


def split(image: NDArray[np.uint8], out: Any) -> bool:
    """The three channels of an image into `out`, a contiguous uint8 tensor of 3 x height x width."""
    loops = compiled()
    if loops is None or not fits(image) or image.shape[2] != 3 or not out.is_contiguous():
        return False
    loops.penstock_split(pointer(image), image.strides[0], *image.shape[:2], out.data_ptr())
    return True


def flip(image: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """The image with left and right changed."""
    loops = compiled()
    if loops is None or not fits(image):
        return None
    rows, columns, channels = image.shape
    out = np.empty((rows, columns, channels), np.uint8)
    loops.penstock_flip(pointer(image), image.strides[0], channels, rows, columns, pointer(out))
    return out


def normal(image: NDArray[np.uint8], out: Any, numbers: NDArray[np.float32], *, divides: bool) -> bool:
    """(value * scale - mean) / std, or (value / scale - mean) / std, of each pixel of three channels into `out`, as `planes` does;
    `numbers` are the scale, the means and the stds."""
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
"""The greatest height and width that fit into a JPEG file."""


@cache
def jpeg_pays(loops: ctypes.CDLL) -> bool:
    """Whether `jpeg` is faster than libjpeg on this machine."""
    return bool(loops.penstock_jpeg_pays())


def is_part(window: tuple[int, int, int, int], size: tuple[int, int]) -> bool:
    """Whether a part lies within a JPEG image, which is of no greater size than the format allows."""
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
    """A part (top, left, height, width) of a JPEG image of this size, as libjpeg decodes it; None where libjpeg must do it itself: it is
    no plain photo, or something is wrong with it. What lies below the part is read only `to_the_end`, to see that it is whole."""
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
    """Whether `saturate` and `sharpen` round a blend once, or its product and then its sum."""
    loops = compiled()
    return loops is not None and bool(loops.penstock_fuses())


def grey_sum(image: NDArray[np.uint8]) -> int | None:
    """The sum of the greys of an image of three channels."""
    loops = compiled()
    if loops is None or not fits(image) or image.shape[2] != 3:
        return None
    return int(loops.penstock_grey_sum(pointer(image), image.strides[0], image.shape[0], image.shape[1]))


def saturate(
    image: NDArray[np.uint8], share: float, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8] | None:
    """Each pixel blended with its own grey: 0 is grey, 1 the image, more is more."""
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
    """Each pixel but those of the border blended with a smooth version of the image: 0 is smooth, 1 the image, more is more."""
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
    """What each value becomes: by a table of 256, or of 256 x 3 for three channels."""
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
    """The table, 256 x channels, that makes values of each channel about equally frequent."""
    loops = compiled()
    if loops is None or not fits(image):
        return None
    rows, columns, channels = image.shape
    table = np.empty((256, channels), np.uint8)
    loops.penstock_equalizing(pointer(image), image.strides[0], rows, columns, channels, pointer(table))
    return table


def stretching(image: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """The table, 256 x 3, that stretches values of each of three channels to all of them."""
    loops = compiled()
    if loops is None or not fits(image) or image.shape[2] != 3:
        return None
    table = np.empty((256, 3), np.uint8)
    loops.penstock_stretching(pointer(image), image.strides[0], *image.shape[:2], pointer(table))
    return table


FIXED = 32700.0
"""Coordinates within this fit into the loops' fixed point (16 bits before the point), and so does one step more, with all rounding."""
FAR = 1 << 20
"""Windows and parts within this: rounding of a map's numbers comes to no more than 16 pixels over them."""


def affine(
    part: NDArray[np.uint8],
    corner: tuple[int, int],
    window: tuple[int, int, int, int],
    matrix: tuple[float, ...],
    fill: tuple[int, ...],
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8] | None:
    """A window (top, left, height, width) of an image under a map from output to input: the nearest pixels, `fill` outside. `part`
    is what there is of the image, from the corner (top, left) on; outside of it is outside of the image."""
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
    """Whether a map's coordinates are small enough for the loops, everywhere in a window and one pixel around it."""
    top, left, height, width = window
    a, b, c, d, e, f = matrix
    corners = [
        (a * x + b * y + c, d * x + e * y + f)
        for x in (left - 1, left + width + 1)
        for y in (top - 1, top + height + 1)
    ]
    near = max(abs(top), abs(left), height, width) <= FAR and min(height, width) > 0
    return near and all(abs(v) < FIXED for place in corners for v in place)  # not where one is NaN
