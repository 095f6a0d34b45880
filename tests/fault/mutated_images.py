"""One damaged image, drawn from a seed: what comes of it is an image of its header's size, or BadImage.

To see one: python -m tests.fault.mutated_images SEED
"""

from __future__ import annotations

import functools
import io
import json
import random
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.pipeline.decode import decode
from penstock.pipeline.header import BadImage, read_header

MAX_PIXELS = 1 << 18
SLOWEST_S = 2.0
HUGE = (0, 1, 255, 256, 4095, 16_383, 16_384, 32_767, 60_000, 65_535, 1 << 24, (1 << 31) - 1, (1 << 32) - 1)
MARKERS = [
    bytes([0xFF, code]) for code in (0xC0, 0xC2, 0xC4, 0xD0, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xE1, 0xEE, 0xFF)
]
TAGS = [
    b"IHDR",
    b"PLTE",
    b"IDAT",
    b"IEND",
    b"tRNS",
    b"acTL",
    b"fcTL",
    b"fdAT",
    b"VP8 ",
    b"VP8L",
    b"VP8X",
    b"ALPH",
    b"ANMF",
    b"RIFF",
]


@functools.cache
def bases() -> dict[str, bytes]:
    """Small images of every kind."""
    from PIL import Image

    rng = np.random.default_rng(3)
    coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 4), dtype=np.uint8))
    rgba = coarse.resize((61, 43), Image.Resampling.BICUBIC)
    rgb, grey = rgba.convert("RGB"), rgba.convert("L")
    deep = Image.fromarray(np.asarray(grey, np.uint16) * 257)

    def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
        out = io.BytesIO()
        image.save(out, form, **options)
        return out.getvalue()

    return {
        "jpeg": encoded(rgb, "JPEG"),
        "jpeg 4:4:4": encoded(rgb, "JPEG", subsampling=0, quality=95),
        "jpeg restarts": encoded(rgb, "JPEG", restart_marker_blocks=2),
        "jpeg progressive": encoded(rgb, "JPEG", progressive=True),
        "jpeg grey": encoded(grey, "JPEG"),
        "jpeg grey progressive": encoded(grey, "JPEG", progressive=True),
        "jpeg cmyk": encoded(rgb.convert("CMYK"), "JPEG"),
        "png": encoded(rgb, "PNG"),
        "png rgba": encoded(rgba, "PNG"),
        "png grey": encoded(grey, "PNG"),
        "png palette": encoded(rgb.quantize(40), "PNG", transparency=3),
        "png one bit": encoded(rgb.convert("1"), "PNG"),
        "png deep": encoded(deep, "PNG"),
        "png interlaced": interlaced(np.asarray(rgb)),
        "webp": encoded(rgb, "WEBP", quality=70),
        "webp lossless": encoded(rgb, "WEBP", lossless=True),
        "webp alpha": encoded(rgba, "WEBP", quality=60),
        "webp animated": encoded(rgb, "WEBP", save_all=True, append_images=[rgb.rotate(90)]),
    }


def interlaced(pixels: Any) -> bytes:
    """An Adam7 PNG file, which Pillow does not write."""
    from penstock.pipeline.checks import ADAM7

    height, width = pixels.shape[:2]
    rows = b"".join(
        b"\0" + row.tobytes()
        for x, y, dx, dy in ADAM7
        for row in pixels[y::dy, x::dx]
        if pixels[y::dy, x::dx].size
    )
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 1])
    return png_of([(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")])


# ---- damage

Damage = Callable[[bytearray, random.Random], bytes]


def flips(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def flips_in_the_head(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 2, 6))):
        data[rng.randrange(min(len(data), 64))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(data)


def cut(data: bytearray, rng: random.Random) -> bytes:
    return bytes(data[: rng.randrange(len(data))])


def block(data: bytearray, rng: random.Random) -> slice:
    start = rng.randrange(len(data))
    return slice(start, start + rng.choice((1, 2, 4, 16, 100, 400)))


def doubled(data: bytearray, rng: random.Random) -> bytes:
    part, at = data[block(data, rng)], rng.randrange(len(data))
    return bytes(data[:at] + part * rng.choice((1, 1, 2, 50)) + data[at:])


def removed(data: bytearray, rng: random.Random) -> bytes:
    del data[block(data, rng)]
    return bytes(data)


def overwritten(data: bytearray, rng: random.Random) -> bytes:
    where = block(data, rng)
    fill = rng.choice((b"\0", b"\xff", bytes([rng.randrange(256)]), None))
    count = len(data[where])
    data[where] = rng.randbytes(count) if fill is None else fill * count
    return bytes(data)


def marked(data: bytearray, rng: random.Random) -> bytes:
    """A marker, a chunk's name or a few bytes of length put into the file, or over what is there."""
    at, what = rng.randrange(len(data)), rng.choice((*MARKERS, *TAGS, b"\xff\xff\xff\xff", b"\0\0\0\0"))
    return bytes(data[:at] + what + data[at + rng.choice((0, len(what))) :])


def spliced(data: bytearray, rng: random.Random) -> bytes:
    other = rng.choice(list(bases().values()))
    return bytes(data[: rng.randrange(len(data))]) + other[rng.randrange(len(other)) :]


def resized(data: bytearray, rng: random.Random) -> bytes:
    """Another size in the header, checksums right."""
    value = rng.choice((*HUGE, rng.randrange(1, 600)))
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        at = rng.choice((16, 20))
        data[at : at + 4] = value.to_bytes(4, "big")
        return mended(bytes(data))
    if data[:2] == b"\xff\xd8":
        frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        at = frame + rng.choice((5, 7))
        data[at : at + 2] = (value & 0xFFFF).to_bytes(2, "big")
        return bytes(data)
    at = rng.choice((21, 24, 26, 27, 28))
    data[at : at + 2] = (value & 0xFFFF).to_bytes(2, "little")
    return bytes(data)


def deep_png(data: bytearray, rng: random.Random) -> bytes:
    """Damage behind the checksums: in a chunk's content, or in the pixels before they are compressed."""
    chunks = list(chunks_of(bytes(data)))
    if not chunks:
        return overwritten(data, rng)
    at = rng.randrange(len(chunks))
    kind, body = chunks[at]
    if kind == b"IDAT" and rng.random() < 0.5:
        try:
            rows = zlib.decompressobj().decompress(body, 1 << 20)
        except zlib.error:
            rows = body
        body = zlib.compress(any_of(SIMPLE, rng)(bytearray(rows or b"\0"), rng))
    elif body:
        body = any_of(SIMPLE, rng)(bytearray(body), rng)
    how = rng.randrange(6)
    if how == 0:
        chunks.insert(rng.randrange(len(chunks)), (kind, body))
    elif how == 1:
        chunks.insert(rng.randrange(len(chunks)), (rng.choice(TAGS), body))
    else:
        chunks[at] = kind, body
    return png_of(chunks)


def deep_webp(data: bytearray, rng: random.Random) -> bytes:
    """Damage in a RIFF file whose length stays right."""
    if data[:4] != b"RIFF":
        return marked(data, rng)
    found = bytearray(any_of(SIMPLE, rng)(data, rng))
    found[4:8] = (len(found) - 8 & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(found)


SIMPLE: tuple[Damage, ...] = (flips, flips_in_the_head, cut, doubled, removed, overwritten)
DAMAGES: tuple[Damage, ...] = (*SIMPLE, marked, spliced, resized, deep_png, deep_webp)


def any_of(damages: tuple[Damage, ...], rng: random.Random) -> Damage:
    return rng.choice(damages)


def chunks_of(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while data.startswith(b"\x89PNG") and at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], data[at + 8 : end]
        at = end + 4


def png_of(chunks: list[tuple[bytes, bytes]]) -> bytes:
    parts = [
        len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")
        for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def mended(data: bytes) -> bytes:
    return png_of(list(chunks_of(data)))


# ---- playing


def draw(seed: int) -> tuple[str, list[str], bytes]:
    """Which image, what is done to it, and what it then is."""
    rng = random.Random(seed)
    kind, data = rng.choice(list(bases().items()))
    done: list[str] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        damage = any_of(DAMAGES, rng)
        done.append(damage.__name__)
        data = damage(bytearray(data or b"\0"), rng)
    return kind, done, data


def run(seed: int) -> dict[str, Any]:
    """Decode one damaged image and say how it went."""
    kind, done, data = draw(seed)
    bad, image, began_s = "", None, time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image = decode(data, max_pixels=MAX_PIXELS)
    except BadImage:
        pass
    except Exception as exc:
        bad = f"{type(exc).__name__}: {exc}"
    if time.perf_counter() - began_s > SLOWEST_S:
        bad = f"it took {time.perf_counter() - began_s:.1f} s"
    if image is not None:
        header = read_header(data)
        if image.shape != (header.height, header.width, 3) or header.pixels > MAX_PIXELS:
            bad = f"{image.shape} for {header}"
        elif image.dtype != np.uint8 or not image.flags.writeable:
            bad = f"{image.dtype}, writable: {image.flags.writeable}"
    row = {"seed": seed, "ok": not bad, "decoded": int(image is not None), "refused": int(image is None)}
    return row if not bad else {**row, "why": f"{kind}, {' and '.join(done)}: {bad}"}


if __name__ == "__main__":
    for number in range(*map(int, sys.argv[1:])) if len(sys.argv) > 2 else [int(sys.argv[1])]:
        print(json.dumps(run(number)), flush=True)
