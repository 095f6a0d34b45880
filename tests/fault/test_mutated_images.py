"""Damaged images: an image of the header's size or BadImage, nothing else, and never pixels that were not in the file.

Each seed is a damaged file of its own (`tests/fault/mutated_images.py`). `PENSTOCK_FULL=1` plays 100,000 of them by
`benchmarks/image_campaign.py`.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")

from penstock.pipeline.checks import MOST_SCANS
from penstock.pipeline.decode import decode
from penstock.pipeline.header import BadImage, read_header
from tests.conftest import FULL
from tests.fault.mutated_images import HUGE, bases, chunks_of, draw, mended, png_of, run

SEEDS = 5_000 if FULL else 1_600
PARTS = 4
"""Tests that the seeds are dealt out to, for the sake of parallel runs."""
CAMPAIGN = 100_000
ROOT = Path(__file__).parents[2]
GROWTH_BYTES = 64 << 20
"""Of a process that decodes a part of the seeds: some images at the pixel cap, and what the libraries keep."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_damaged_image_is_an_image_or_bad_image(part: int) -> None:
    command = [sys.executable, "-m", "tests.fault.mutated_images", str(part), str(SEEDS), str(PARTS)]
    # In a process of its own: a decoder that crashes fails the seed it was at.
    played = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=100
    )
    rows = [json.loads(line) for line in played.stdout.splitlines()]
    assert [row for row in rows if not row["ok"]] == []
    assert len(rows) == len(range(part, SEEDS, PARTS)), (
        f"ended with {played.returncode} after {rows[-1:]}: {played.stderr}"
    )
    assert sum(row["decoded"] for row in rows) > 0
    assert sum(row["refused"] for row in rows) > len(rows) / 2


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


@pytest.mark.skipif(not FULL, reason="the full campaign needs PENSTOCK_FULL=1")
def test_a_hundred_thousand_damaged_images() -> None:
    command = [sys.executable, "benchmarks/image_campaign.py", "--schedules", str(CAMPAIGN)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def test_damage_of_every_kind_is_done_to_every_kind_of_image() -> None:
    seen = {(kind, how) for kind, done, _ in map(draw, range(SEEDS)) for how in done}
    assert {kind for kind, _ in seen} == set(bases())
    assert len({how for _, how in seen}) == 11


def test_memory_stays_within_the_cap() -> None:
    for seed in range(200):
        run(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(200, 1000):
        run(seed)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < GROWTH_BYTES


# ---- truncation: an error wherever it falls


@pytest.mark.parametrize("kind", bases())
def test_a_file_cut_off_anywhere_is_refused(kind: str) -> None:
    data = bases()[kind]
    assert decode(data).shape == (43, 61, 3)
    for length in range(len(data)):
        with pytest.raises(BadImage):
            decode(data[:length])


@pytest.mark.parametrize(
    "kind", [kind for kind in bases() if kind.startswith("jpeg") and "progressive" not in kind]
)
def test_a_jpeg_with_an_end_put_into_its_scan_is_refused(kind: str) -> None:
    data = bases()[kind]
    for length in range(data.index(b"\xff\xda") + 14, len(data) - 2):
        with pytest.raises(BadImage):
            decode(data[:length] + b"\xff\xd9")


@pytest.mark.parametrize("kind", [kind for kind in bases() if kind.startswith("png")])
def test_a_png_with_any_byte_changed_is_refused(kind: str) -> None:
    data = bases()[kind]
    wanted = decode(data)
    for at in range(8, len(data), 3):
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        try:
            found = decode(damaged)
        except BadImage:
            continue
        in_ancillary = [kind for kind, _ in chunks_of(data) if kind[0] & 0x20]
        assert in_ancillary, f"byte {at} was changed unnoticed"
        assert found.shape == wanted.shape


@pytest.mark.parametrize("kind", [kind for kind in bases() if kind.startswith("png")])
def test_a_png_with_fewer_rows_than_it_says_is_refused(kind: str) -> None:
    (_, head), *rest = chunks_of(bases()[kind])
    for rows in (44, 45, 60, 400):
        taller = png_of([(b"IHDR", head[:4] + rows.to_bytes(4, "big") + head[8:]), *rest])
        with pytest.raises(BadImage):
            decode(taller)


@pytest.mark.parametrize("kind", [kind for kind in bases() if kind.startswith("png")])
def test_a_png_whose_compressed_rows_end_early_is_refused(kind: str) -> None:
    chunks = list(chunks_of(bases()[kind]))
    packed = b"".join(body for name, body in chunks if name == b"IDAT")
    rows = zlib.decompress(packed)
    before = [chunk for chunk in chunks if chunk[0] not in (b"IDAT", b"IEND")]
    for kept in (0, 1, len(rows) // 2, len(rows) - 1):
        with pytest.raises(BadImage):
            decode(png_of([*before, (b"IDAT", zlib.compress(rows[:kept])), (b"IEND", b"")]))
    for kept in (0, 1, len(packed) // 2, len(packed) * 9 // 10):
        with pytest.raises(BadImage):
            decode(png_of([*before, (b"IDAT", packed[:kept]), (b"IEND", b"")]))


@pytest.mark.parametrize("kind", ["png", "png palette", "png interlaced", "webp lossless", "jpeg"])
def test_an_image_that_is_black_at_its_end_is_an_image(kind: str) -> None:
    import PIL.Image

    black = PIL.Image.new("P" if kind == "png palette" else "RGB", (9, 7))
    out = io.BytesIO()
    if kind == "png interlaced":
        from tests.fault.mutated_images import interlaced

        out.write(interlaced(np.asarray(black)))
    else:
        black.save(out, kind.partition(" ")[0], **({"lossless": True} if "lossless" in kind else {}))
    assert decode(out.getvalue()).max() == 0


# ---- bombs: refused by the header


def bombs() -> dict[str, bytes]:
    jpeg, png, webp, lossless = (
        bytearray(bases()[kind]) for kind in ("jpeg", "png", "webp", "webp lossless")
    )
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = (60_000).to_bytes(2, "big") * 2
    png[16:24] = (60_000).to_bytes(4, "big") * 2
    webp[26:30] = b"\xff\x3f\xff\x3f"
    lossless[21:25] = ((1 << 28) - 1).to_bytes(4, "little")
    extended = b"VP8X" + (10).to_bytes(4, "little") + bytes(4) + (59_999).to_bytes(3, "little") * 2
    canvas = b"WEBP" + extended + bytes(bases()["webp"][12:])
    return {
        "jpeg": bytes(jpeg),
        "png": mended(bytes(png)),
        "webp": bytes(webp),
        "webp lossless": bytes(lossless),
        "webp extended": b"RIFF" + len(canvas).to_bytes(4, "little") + canvas,
    }


@pytest.mark.parametrize("kind", bombs())
def test_a_bomb_is_refused_before_anything_is_allocated(kind: str) -> None:
    data = bombs()[kind]
    assert len(data) < 8_000
    tracemalloc.start()
    try:
        with pytest.raises(BadImage, match="more than max_pixels"):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


LIMITED = """
import resource, sys
from penstock.pipeline.decode import decode
from penstock.pipeline.header import BadImage
from penstock.transforms.libs import pillow, simplejpeg
pillow(), simplejpeg("")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20),) * 2)
for line in sys.stdin:
    try:
        decode(bytes.fromhex(line), max_pixels=1 << 18)
    except BadImage:
        print("refused", flush=True)
"""


def test_bombs_are_refused_where_there_is_no_memory_for_them() -> None:
    """Also those whose second header says another size than the first, which is the one that is checked."""
    files = [*bombs().values(), two_headers()]
    lines = "\n".join(data.hex() for data in files)
    command = [sys.executable, "-c", LIMITED]
    played = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (played.stdout.split(), played.returncode) == (["refused"] * len(files), 0), played.stderr


def two_headers() -> bytes:
    chunks = list(chunks_of(bases()["png"]))
    (_, head), size = chunks[0], (12_000).to_bytes(4, "big")
    return png_of([chunks[0], (b"IHDR", size * 2 + head[8:]), *chunks[1:]])


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    data = bases()["jpeg progressive"]
    scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(BadImage, match=f"scans, more than {MOST_SCANS}"):
        decode(data[:-2] + scan * 200 + b"\xff\xd9")


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(
    "kind", ["jpeg", "jpeg progressive", "jpeg cmyk", "png", "png interlaced", "webp", "webp lossless"]
)
def test_any_size_in_a_header_is_refused_or_told_as_it_is(kind: str, value: int) -> None:
    for seed in range(4):
        data = resized_to(kind, value, seed)
        try:
            found: Any = decode(data, max_pixels=1 << 18)
        except BadImage:
            continue
        assert found.shape[:2] == read_header(data)[1:3]


def resized_to(kind: str, value: int, seed: int) -> bytes:
    data = bytearray(bases()[kind])
    if kind.startswith("png"):
        at = 16 + 4 * (seed % 2)
        data[at : at + 4] = value.to_bytes(4, "big")
        return mended(bytes(data))
    if kind.startswith("jpeg"):
        at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2")) + (5, 7)[seed % 2]
        data[at : at + 2] = (value & 0xFFFF).to_bytes(2, "big")
        return bytes(data)
    at = (21, 23, 26, 28)[seed]
    data[at : at + 2] = (value & 0xFFFF).to_bytes(2, "little")
    return bytes(data)


def test_a_second_header_of_another_size_is_refused() -> None:
    with pytest.raises(BadImage, match="12000 x 12000, and another at its beginning"):
        decode(two_headers())
