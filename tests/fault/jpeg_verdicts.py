"""One JPEG file with changed segments, drawn from a seed: with the compiled loops and without them it is accepted or refused alike, with the same
pixels, and nothing is accepted that libjpeg refuses.

To see one: python -m tests.fault.jpeg_verdicts SEED
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock import accel
from penstock.pipeline.decode import Encoded, decode
from penstock.pipeline.header import BadImage
from penstock.transforms.windows import Window
from tests.unit.odd_jpegs import odd_jpeg, segment
from tests.unit.test_jpeg_parts import jpeg_of, photo

MAX_PIXELS = 1 << 18
TABLES, STEPS, FRAME, RESTARTS, PROFILE = 0xC4, 0xDB, 0xC0, 0xDD, 0xE2
Segments = list[tuple[int, bytes]]
"""Marker and content of each, before the scan."""
OTHERS = (
    (0xEE, b"Adobe\0d\0\0\0\0\0"),
    (0xEE, b"Adobe\0d\0\0\0\0\1"),
    (0xEE, b"Adobe\0d\0\0\0\0\2"),
    (0xE0, b"JFIF\0\1\2\0\0\1\0\1\0\0"),
    (0xE0, b"JFIF\0\2\2\0\0\1\0\1\0\0"),
    (0xE1, b"Exif\0\0"),
    (0xFE, b"\xff\xda" * 80),
    (0xDC, b"\0\x28"),
    (0xCC, b"\0\0"),
    (0xF0, b""),
)


@functools.cache
def bases() -> list[bytes]:
    """Photos of all samplings, grey ones, and valid files with tables that no encoder would write."""
    ways = [("4:2:0", 0, 75, False), ("4:2:0", 2, 90, True), ("4:4:4", 0, 85, True), ("4:2:2", 3, 60, False)]
    photos = [
        jpeg_of(
            photo(40 + 9 * n, 64 - 5 * n, n),
            subsampling=sampling,
            restart_marker_blocks=restart,
            quality=quality,
            optimize=optimize,
        )
        for n, (sampling, restart, quality, optimize) in enumerate(ways)
    ]
    grey = jpeg_of(photo(30, 40)[:, :, 0], optimize=True)
    slow = jpeg_of(photo(30, 40), progressive=True)
    return [*photos, grey, slow, *(odd_jpeg(seed)[0] for seed in range(30))]


def taken_apart(data: bytes) -> tuple[Segments, bytes]:
    """Its segments, and the scan with all that follows."""
    at, found = 2, []
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((data[at + 1], data[at + 4 : end]))
        at = end
    return found, data[at:]


def put_together(segments: Segments, rest: bytes) -> bytes:
    return b"\xff\xd8" + b"".join(segment(marker, body) for marker, body in segments) + rest


# ---- changes


def tables_that_are_full(said: bytes, length: int, more: int = 0) -> bytes:
    """A Huffman table with as many codes of a length as there is room for, so that the last is all ones; or `more`."""
    counts, symbols = bytearray(said[1:17]), bytearray(said[17:])
    code = 0
    for at in range(length):
        code = 2 * code + counts[at]
    missing = (1 << length) - code + more
    if not 0 < missing <= 255 - counts[length - 1] or len(symbols) + missing > 256:
        return said
    at = sum(counts[:length])
    symbols[at:at] = bytes([symbols[-1]]) * missing
    counts[length - 1] += missing
    return said[:1] + bytes(counts) + bytes(symbols)


def profile(rng: random.Random) -> Segments:
    """A colour profile in pieces: right, numbered wrongly, or cut off in its head."""
    count = rng.randrange(1, 4)
    said = rng.choice((count, count, 0, count + 1, 255))
    numbers = rng.choice((range(1, count + 1), [1] * count, range(count), range(2, count + 2)))
    pieces = [
        (PROFILE, b"ICC_PROFILE\0" + bytes([at, said]) + rng.randbytes(rng.randrange(99))) for at in numbers
    ]
    return pieces if rng.random() < 0.8 else [(PROFILE, b"ICC_PROFILE\0\1\1"[: rng.randrange(15)])]


def change(segments: Segments, rng: random.Random) -> str:
    """Change one thing; what."""
    of = [at for at, (marker, _) in enumerate(segments) if marker == TABLES]
    how = rng.choice(
        ("full table", "moved code", "profile", "byte", "gone", "doubled", "length", "new", "odd")
    )
    at = rng.choice(of) if of and how in ("full table", "moved code") else rng.randrange(len(segments))
    marker, body = segments[at]
    match how:
        case "full table" if len(body) >= 17 and marker == TABLES:
            segments[at] = marker, tables_that_are_full(body, rng.randint(1, 16), rng.choice((0, 0, -1, 1)))
        case "moved code" if len(body) >= 17 and marker == TABLES:
            said = bytearray(body)
            for _ in range(rng.choice((1, 2, 4))):
                one, other = rng.sample(range(1, 17), 2)
                if said[one] and said[other] < 255:
                    said[one], said[other] = said[one] - 1, said[other] + 1
            segments[at] = marker, bytes(said)
        case "profile":
            segments[at:at] = profile(rng)
        case "byte" if body:
            place = rng.randrange(len(body))
            value = rng.choice((0, 1, 2, 3, 7, 8, 16, 17, 255, rng.randrange(256)))
            segments[at] = marker, body[:place] + bytes([value]) + body[place + 1 :]
        case "gone" if len(segments) > 1:
            del segments[at]
        case "doubled":
            segments.insert(rng.randrange(len(segments) + 1), (marker, body))
        case "length":
            segments[at] = marker, rng.choice((body[:-1], body + rng.randbytes(rng.randrange(1, 5))))
        case "new":
            kind = rng.choice((RESTARTS, STEPS, TABLES, FRAME, 0xC1, 0xC2, 0xE1, 0xFE))
            segments.insert(at, (kind, rng.choice((rng.randbytes(rng.randrange(6)), b"\0\0", b"\0\1"))))
        case "odd":
            segments.insert(at, rng.choice(OTHERS))
    return how


def draw(seed: int) -> tuple[list[str], bytes]:
    """What is done to a file, and what it then is."""
    rng = random.Random(seed)
    segments, rest = taken_apart(rng.choice(bases()))
    done = [change(segments, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    if rng.random() < 0.1:
        done.append("something behind the end")
        rest += rng.choice((b"\xff\xda" * 80, rng.randbytes(50), b"\xff\xd8\xff\xe0"))
    return done, put_together(segments, rest)


# ---- playing


@contextlib.contextmanager
def without_loops() -> Iterator[None]:
    """As where there was no compiler."""
    loops = accel.compiled
    accel.compiled = lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        accel.compiled = loops


def verdict(data: bytes) -> Any:
    """The pixels, or None where the file is refused."""
    try:
        return decode(data, max_pixels=MAX_PIXELS)
    except BadImage:
        return None


def by_pillow(data: bytes) -> Any:
    """The pixels; None where libjpeg refuses the file, False where Pillow does not get that far: it reads segments itself, and stumbles over some."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(data), formats=("JPEG",))
        except Exception:  # whatever its reader raises
            return False
        try:
            return np.asarray(image.convert("RGB"))
        except OSError:
            return None


def judged(data: bytes, window_seed: int = 0) -> str:
    """What is wrong with our verdicts on a file, or ''."""
    ours = verdict(data)
    with without_loops():
        plain = verdict(data)
    if (ours is None) != (plain is None):
        return f"{'refused' if ours is None else 'accepted'} with the compiled loops, but not without them"
    if ours is None:
        return ""
    if not np.array_equal(ours, plain):
        return "other pixels with the compiled loops than without them"
    theirs = by_pillow(data)
    if theirs is None:
        return "accepted, though libjpeg refuses it"
    if theirs is not False and not np.array_equal(ours, theirs):
        return "other pixels than Pillow's"
    rng, (rows, columns) = random.Random(window_seed), ours.shape[:2]
    height, width = rng.randint(1, rows), rng.randint(1, columns)
    window = Window(rng.randint(0, rows - height), rng.randint(0, columns - width), height, width)
    part = Encoded(data, max_pixels=MAX_PIXELS).part(window)
    top, left, _, _ = window
    same = np.array_equal(part, ours[top : top + height, left : left + width])
    return "" if same else f"other pixels in the part {tuple(window)}"


def run(seed: int) -> dict[str, Any]:
    done, data = draw(seed)
    bad = judged(data, seed)
    accepted = int(verdict(data) is not None)
    row = {"seed": seed, "ok": not bad, "accepted": accepted, "refused": 1 - accepted}
    return row if not bad else {**row, "why": f"{' and '.join(done)}: {bad}"}


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        print(json.dumps(run(number)), flush=True)
