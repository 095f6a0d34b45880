"""Refuse damaged files that decoders accept silently.

Pillow checks neither the checksums of a PNG file's pixels nor its end, and fills missing rows with zeros. libjpeg decodes any
number of scans; each costs as much as all pixels and may take only a few bytes.
"""

from __future__ import annotations

import re
import zlib

import numpy as np

from penstock.pipeline.header import STANDALONE, BadImage

MOST_SCANS = 64
"""Scans in a JPEG file. Baseline files have 1, progressive ones about 10."""
MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
"""A JPEG marker with a length, or the end of image. Others stand alone or are data."""
PROFILE = b"ICC_PROFILE\0"
PIECE = 64 << 10
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Values per pixel, by PNG colour type."""
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row, then column and row steps, of each pass over an interlaced PNG image."""


def check_scans(data: bytes) -> None:
    """Refuse a JPEG file with very many scans. Count only what libjpeg would decode, not markers inside a segment (a thumbnail) or
    after the end of image (a phone's video)."""
    marker = int.from_bytes(b"\xff\xda", "little")
    even = np.frombuffer(data, "<u2", len(data) // 2)
    odd = np.frombuffer(data, "<u2", (len(data) - 1) // 2, offset=1)
    if np.count_nonzero(even == marker) + np.count_nonzero(odd == marker) <= MOST_SCANS:
        return  # the usual case, four times as fast as walking the segments
    at, scans = 2, 0
    while found := MARKER.search(data, at):
        code, at = found[0][1], found.end()
        if code == 0xD9:  # guard: jpeg-end
            break
        at += int.from_bytes(data[at : at + 2], "big")
        scans += code == 0xDA
    if scans > MOST_SCANS:
        raise BadImage(f"the JPEG file has {scans} scans, more than {MOST_SCANS}")


def without_profile(data: bytes) -> bytes:
    """Drop the ICC profile of a JPEG file: it changes no pixel here. In strict mode libjpeg refuses a file for a malformed profile;
    Pillow and our decoder ignore it."""
    kept, at = [data[:2]], 2
    while (
        data[at : at + 1] == b"\xff" and len(data) - at >= 4 and data[at + 1] not in (0xFF, 0xDA, *STANDALONE)
    ):
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] != 0xE2 or data[at + 4 : at + 16] != PROFILE:
            kept.append(data[at:end])
        at = end
    return b"".join([*kept, data[at:]])


def check_png(data: bytes) -> None:
    """Refuse a PNG file that is truncated or fails the checksum of a critical chunk."""
    at, view = 8, memoryview(data)
    while True:
        kind, end = data[at + 4 : at + 8], at + 12 + int.from_bytes(data[at : at + 4], "big")
        if len(kind) < 4 or end > len(data):
            raise BadImage("the PNG file is cut off")  # guard: png-end
        critical = not kind[0] & 0x20
        # guard: png-checksums
        if critical and zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            raise BadImage(
                f"the PNG file is corrupt: the checksum of its {kind.decode('latin-1')!r} chunk is wrong"
            )
        if kind == b"IEND":
            return
        at = end


def is_interlaced(data: bytes) -> bool:
    return data[28] != 0


def check_png_rows(data: bytes) -> None:
    """Refuse a PNG file (that passed `check_png`) with fewer pixels than its header says."""
    need = png_bytes(data)
    inflate, have, at = zlib.decompressobj(), 0, 8
    while have < need and at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IDAT":
            waiting = data[at + 8 : end - 4]
            while waiting and have < need and not inflate.eof:
                try:
                    have += len(inflate.decompress(waiting, PIECE))
                except zlib.error as exc:
                    raise BadImage(f"the PNG file is corrupt: {exc}") from exc
                waiting = inflate.unconsumed_tail
        at = end
    if have < need and not inflate.eof:
        have += len(inflate.flush())
    if have < need:
        raise BadImage(f"the PNG file has {have:,} bytes of pixels and should have {need:,}")


def png_bytes(data: bytes) -> int:
    """Return the byte count of a PNG file's rows, filter bytes included."""
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    bits = data[24] * SAMPLES[data[25]]
    passes = ADAM7 if is_interlaced(data) else ((0, 0, 1, 1),)
    sizes = [(len(range(x, width, dx)), len(range(y, height, dy))) for x, y, dx, dy in passes]
    return sum(rows * (1 + -(-columns * bits // 8)) for columns, rows in sizes if columns and rows)
