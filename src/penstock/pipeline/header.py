"""Parse the header of an encoded image: format, height, width, channels. Nothing is decoded or allocated.

Rule 1: only the given bytes are read. A truncated or invalid header is an error of that sample.
Rule 2: an image above the cap is refused here, before any allocation.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

MAX_PIXELS = 100_000_000
"""Larger images are refused unless the user raises the limit: a file of a few kilobytes can claim gigabytes."""

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})
"""JPEG markers without a length."""
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG markers of segments that hold the size."""
PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}


class BadImage(ValueError):
    """The bytes are not a decodable image."""


class Header(NamedTuple):
    format: str
    """`jpeg`, `png` or `webp`."""
    height: int
    width: int
    channels: int
    frame: int = 0
    """The frame marker of a JPEG: 0xC0 is baseline, 0xC2 progressive."""

    @property
    def pixels(self) -> int:
        return self.height * self.width


def read_header(data: bytes, *, max_pixels: int = MAX_PIXELS) -> Header:
    """Parse the header; raises BadImage if the bytes are no image or the image is too large."""
    if data[:2] == b"\xff\xd8":
        header = jpeg_header(data)
    elif data[:8] == PNG_MAGIC:
        header = png_header(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        header = webp_header(data)
    else:
        raise BadImage(f"not a JPEG, PNG or WebP file: it begins with {data[:8]!r}")
    if header.height < 1 or header.width < 1:
        raise BadImage(f"the header says {header.height} x {header.width} pixels")
    if header.pixels > max_pixels:  # guard: pixel-cap
        raise BadImage(
            f"the header says {header.height} x {header.width} pixels, more than max_pixels={max_pixels:,}: "
            f"raise it if such images are meant"
        )
    return header


def jpeg_header(data: bytes) -> Header:
    at = 2
    while True:
        start = data.find(b"\xff", at)
        if start < 0 or start + 2 > len(data):
            raise BadImage("the JPEG header is cut off")
        marker, at = data[start + 1], start + 2
        if marker in (0x00, 0xFF):
            at = start + 1 if marker == 0xFF else at
            continue
        if marker in STANDALONE:
            continue
        if marker in (0xD9, 0xDA):
            raise BadImage("the JPEG file has no frame before its data")
        if at + 2 > len(data):
            raise BadImage("the JPEG header is cut off")
        length = int.from_bytes(data[at : at + 2], "big")
        if length < 2:
            raise BadImage("a JPEG segment has no length")
        if marker in FRAMES:
            if at + 8 > len(data):
                raise BadImage("the JPEG header is cut off")
            height, width = struct.unpack_from(">HH", data, at + 3)
            return Header("jpeg", height, width, data[at + 7], marker)
        at += length


def png_header(data: bytes) -> Header:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise BadImage("the PNG header is cut off")
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[25] not in PNG_CHANNELS:
        raise BadImage(f"PNG colour type {data[25]} does not exist")
    return Header("png", height, width, PNG_CHANNELS[data[25]])


def webp_header(data: bytes) -> Header:
    kind = data[12:16]
    if len(data) < 30:
        raise BadImage("the WebP header is cut off")
    if kind == b"VP8X":
        width, height = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        return Header("webp", height, width, 4 if data[20] & 0x10 else 3)
    if kind == b"VP8L":
        if data[20] != 0x2F:
            raise BadImage("the WebP file has no lossless signature")
        bits = int.from_bytes(data[21:25], "little")
        return Header("webp", 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF), 4 if bits >> 28 & 1 else 3)
    if kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise BadImage("the WebP file has no key frame")
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
        return Header("webp", height, width, 3)
    raise BadImage(f"WebP chunk {kind!r} does not begin an image")
