"""Decode images to uint8, height x width x 3, with Pillow's pixels bit for bit.

A truncated or corrupt file is an error of its sample: no decoder here fills in grey.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import accel
from penstock.pipeline.checks import (
    PROFILE,
    check_png,
    check_png_rows,
    check_scans,
    is_interlaced,
    without_profile,
)
from penstock.pipeline.header import MAX_PIXELS, BadImage, Header, read_header
from penstock.transforms.libs import has_simplejpeg, pillow, simplejpeg
from penstock.transforms.windows import Window

Image = NDArray[np.uint8]


class Encoded:
    """An image in its file: the header is parsed, pixels are decoded once the needed part is known.

    `fast`: do not read rows below the requested part (damage there goes unnoticed), and allow decoding at reduced scale
    (`reduced`). `strict=False`: without simplejpeg, Pillow decodes the JPEG files that the compiled loops leave; it ignores some
    damage, as torchvision does.
    """

    __slots__ = ("_data", "fast", "header", "size", "strict")

    def __init__(
        self, data: bytes, *, max_pixels: int = MAX_PIXELS, fast: bool = False, strict: bool = True
    ) -> None:
        self._data, self.fast, self.strict = data if type(data) is bytes else bytes(data), fast, strict
        self.header = read_header(data, max_pixels=max_pixels)
        self.size = (self.header.height, self.header.width)

    def part(self, window: Window, out: Image | None = None) -> Image:
        """Decode a part; raises BadImage. `out`: write there if the decoder can."""
        if self.header.format == "jpeg":
            found = accel.jpeg(self._data, self.size, window, to_the_end=not self.fast, out=out)
            if found is not None:
                return found
        top, left, height, width = window
        return decode_whole(self._data, self.header, strict=self.strict)[
            top : top + height, left : left + width
        ]

    def reduced(self, factor: int) -> Image | None:
        """Decode the whole image with its sides divided by 2, 4 or 8 (rounded up), from its low frequencies only; None if unsupported."""
        if self.header.format != "jpeg" or self.header.channels not in (1, 3):
            return None
        least = (-(-self.size[0] // factor), -(-self.size[1] // factor))
        pixels = strictly(self._data, "RGB", least)
        return pixels if pixels.shape[:2] == least else None


def decode(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Image:
    """Decode an image; raises BadImage."""
    image = Encoded(data, max_pixels=max_pixels)
    return image.part(Window.whole(image.size))


def decode_whole(data: bytes, header: Header, *, strict: bool = True) -> Image:
    """Decode with libraries: they support every format and have the last word on damage."""
    strict = strict or has_simplejpeg()
    if header.format == "jpeg" and header.channels in (1, 3) and strict:
        pixels = strictly(data, "RGB")
    else:
        pixels = decode_by_pillow(data, header, strict=strict)
    if pixels.shape != (header.height, header.width, 3):
        raise BadImage(f"the file has {pixels.shape[0]} x {pixels.shape[1]} pixels, not what its header says")
    return pixels


def strictly(data: bytes, colours: str, least: tuple[int, int] = (0, 0)) -> Image:
    """Decode a JPEG with libjpeg and treat its warnings as errors (it would fill in grey), except those about ICC profiles. Use the
    smallest scale that gives at least `least` (height, width)."""
    check_scans(data)  # guard: jpeg-scans
    if PROFILE in data:
        data = without_profile(data)  # guard: jpeg-profile
    library = simplejpeg(
        "a JPEG file that the compiled loops leave to libjpeg (a progressive or damaged one)"
    )
    try:
        pixels: Image = library.decode_jpeg(  # guard: jpeg-warnings
            data, colorspace=colours, min_height=least[0], min_width=least[1], min_factor=1, strict=True
        )
    except (ValueError, RuntimeError) as exc:
        raise BadImage(f"the JPEG file cannot be decoded: {exc}") from exc
    return pixels


def decode_by_pillow(data: bytes, header: Header, *, strict: bool = True) -> Image:
    """Decode the other formats with Pillow: PNG, WebP, JPEG in other colour spaces."""
    if header.format == "png":
        check_png(data)
    if header.format == "jpeg" and strict:
        # Pillow ignores libjpeg's warnings; such files are rare enough to decode twice.
        strictly(data, "CMYK")  # guard: jpeg-by-pillow
    module: Any = pillow().Image
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with module.open(io.BytesIO(data), formats=(header.format.upper(),)) as image:
                if image.size != (header.width, header.height):  # guard: second-header
                    raise BadImage(
                        f"its size is {image.size[1]} x {image.size[0]}, and another at its beginning"
                    )
                image.load()
                if header.format == "png" and (is_interlaced(data) or not last_row(image).any()):
                    check_png_rows(data)  # guard: png-rows
                return np.array(image if image.mode == "RGB" else image.convert("RGB"))
    except (BadImage, MemoryError):
        raise
    except Exception as exc:  # decoders raise anything on damaged files
        raise BadImage(f"the file cannot be decoded: {type(exc).__name__}: {exc}") from exc


def last_row(image: Any) -> Any:
    """Return the last row: all zero if it was missing from the file."""
    return np.asarray(image.crop((0, image.height - 1, image.width, image.height)))
