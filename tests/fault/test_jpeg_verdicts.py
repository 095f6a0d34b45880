"""A JPEG file is accepted or refused alike with the compiled loops and without them, with the same pixels, and never where libjpeg refuses it.

Each seed is a file of its own with changed segments (`tests/fault/jpeg_verdicts.py`). `PENSTOCK_FULL=1` plays 200,000 of them by
`benchmarks/jpeg_verdict_campaign.py`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")

from penstock import accel
from penstock.pipeline.checks import MOST_SCANS
from penstock.pipeline.decode import decode
from penstock.pipeline.header import BadImage
from tests.conftest import FULL
from tests.fault.jpeg_verdicts import (
    PROFILE,
    TABLES,
    Segments,
    by_pillow,
    draw,
    judged,
    put_together,
    run,
    tables_that_are_full,
    taken_apart,
    without_loops,
)
from tests.unit.odd_jpegs import LEVELS, RUNS, Bits, segment
from tests.unit.test_jpeg_parts import jpeg_of, photo

SEEDS = 4_000 if FULL else 2_400
PARTS = 2
CAMPAIGN = 200_000
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", range(PARTS))
def test_files_with_changed_segments_have_one_verdict(part: int) -> None:
    rows = [run(seed) for seed in range(part, SEEDS, PARTS)]
    assert [row for row in rows if not row["ok"]] == []
    assert sum(row["accepted"] for row in rows) > len(rows) / 5
    assert sum(row["refused"] for row in rows) > len(rows) / 5


def test_segments_are_changed_in_every_way() -> None:
    seen = {how for seed in range(SEEDS) for how in draw(seed)[0]}
    assert len(seen) == 10


@pytest.mark.skipif(not FULL, reason="the full campaign needs PENSTOCK_FULL=1")
def test_two_hundred_thousand_files() -> None:
    command = [sys.executable, "benchmarks/jpeg_verdict_campaign.py", "--schedules", str(CAMPAIGN)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0


# ---- Huffman tables

FLAT = (24, 32)


def flat_jpeg(which: int = -1, length: int = 0, more: int = 0) -> bytes:
    """A file of one colour. Its tables have one code of each length up to 12, but one of them has codes added (`tables_that_are_full`)."""
    head: Segments = [(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"), (0xDB, bytes([0] + [8] * 64))]
    for number, kind in enumerate((0x00, 0x10, 0x01, 0x11)):
        symbols = LEVELS if kind < 0x10 else [0x00, 0xF0, *RUNS[:10]]
        said = bytes([kind, *[1] * 12, *[0] * 4, *symbols])
        head.append((TABLES, tables_that_are_full(said, length, more) if number == which else said))
        assert number != which or head[-1][1] != said, "there are codes to add"
    shape = b"".join(bytes([part, 0x11, 0]) for part in (1, 2, 3))
    head.append((0xC0, bytes([8, 0, FLAT[0], 0, FLAT[1], 3]) + shape))
    blocks = 3 * (FLAT[0] // 8) * (FLAT[1] // 8)
    bits = Bits()
    bits.put(0, 2 * blocks)  # of each block the level, as before, and its end: codes of one bit
    return put_together(head, segment(0xDA, b"\3\1\0\2\x11\3\x11\0\x3f\0") + bits.ended() + b"\xff\xd9")


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("length", [1, 5, 9, 10, 11, 12, 13, 16])
def test_a_table_whose_last_code_is_all_ones_is_refused_as_by_libjpeg(which: int, length: int) -> None:
    data = flat_jpeg(which, length)
    assert by_pillow(data) is None, "libjpeg refuses it"
    assert judged(data) == ""
    with pytest.raises(BadImage):
        decode(data)
    loops = accel.compiled()
    if loops is not None:
        assert accel.jpeg(data, FLAT, (0, 0, *FLAT), to_the_end=True) is None


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("length", [13, 14, 16])
def test_a_table_that_has_all_codes_but_that_is_taken(which: int, length: int) -> None:
    data = flat_jpeg(which, length, more=-1)
    assert judged(data) == ""
    assert np.array_equal(decode(data), np.full((*FLAT, 3), 128, np.uint8))


# ---- colour profiles, which change no pixel

HEAD = b"ICC_PROFILE\0"
PROFILES = {
    "of no piece": [HEAD + b"\1\0profile"],
    "of fewer pieces than it says": [HEAD + b"\1\2profile"],
    "of more pieces than it says": [HEAD + b"\1\1profile", HEAD + b"\2\1profile"],
    "with a piece twice": [HEAD + b"\1\2profile", HEAD + b"\1\2profile"],
    "with a piece of number 0": [HEAD + b"\0\1profile"],
    "whose pieces do not agree": [HEAD + b"\1\2profile", HEAD + b"\2\3profile"],
    "without content": [HEAD + b"\1\1"],
    "cut off": [HEAD],
}


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("which", PROFILES)
def test_a_colour_profile_that_is_wrong_is_passed_over_with_and_without_the_loops(
    which: str, progressive: bool
) -> None:
    plain = jpeg_of(photo(40, 56), progressive=progressive)
    segments, rest = taken_apart(plain)
    data = put_together([*segments[:1], *((PROFILE, body) for body in PROFILES[which]), *segments[1:]], rest)
    assert judged(data) == ""
    assert np.array_equal(decode(data), decode(plain))
    with without_loops():
        assert np.array_equal(decode(data), decode(plain))


def test_a_good_colour_profile_changes_nothing() -> None:
    pixels = photo(40, 56)
    data, plain = jpeg_of(pixels, icc_profile=bytes(range(256)) * 300), jpeg_of(pixels)
    assert data.count(HEAD) == 2
    assert judged(data) == ""
    assert np.array_equal(decode(data), decode(plain))


# ---- what looks like a scan


@pytest.mark.parametrize("place", ["behind the end", "in a comment"])
def test_markers_that_begin_no_scan_do_not_count_as_scans(place: str) -> None:
    """Photos of phones have a video behind them, in which any two bytes come up; a maker's note may hold anything."""
    plain = jpeg_of(photo(40, 56))
    many = b"\0\2" + b"\xff\xda\0\2" * (MOST_SCANS + 1)  # each with a length
    segments, rest = taken_apart(plain)
    data = plain + many if place == "behind the end" else put_together([*segments, (0xFE, many)], rest)
    assert judged(data) == ""
    assert np.array_equal(decode(data), decode(plain))
