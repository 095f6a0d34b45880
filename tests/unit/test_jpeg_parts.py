"""Our JPEG decoder gives libjpeg's pixels or leaves the file to libjpeg: whole images, parts of them, and damaged files.

Three builds of the same source are held to it: the one that is installed, the one for machines without our vectors, and one
under the address and undefined-behaviour sanitizers, which plays damaged files in a process of its own.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("PIL.Image")
pytest.importorskip("simplejpeg")

import simplejpeg
from PIL import Image

from penstock import accel
from penstock.pipeline.decode import Encoded, decode
from penstock.pipeline.header import BadImage
from penstock.transforms.windows import Window
from tests.conftest import FULL
from tests.unit import test_pixel_loops

SOURCES = sorted(Path(accel.__file__).parent.glob("*.c"))
ROOT = Path(__file__).parents[2]
needs_loops = pytest.mark.skipif(
    accel.compiled() is None, reason="there was no compiler when penstock was installed"
)
DAMAGED = 100_000 if FULL else 2_000


def photo(height: int, width: int, seed: int = 0) -> Any:
    """Smooth and noisy places, and a hard edge."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = 127 + 90 * np.sin(x / 17 + seed) * np.cos(y / 23)
    pixels = np.stack([waves, 255 - waves, (x * 3 + y * 5) % 256], axis=2)
    pixels[: height // 2, : width // 2] += rng.normal(0, 40, (height // 2, width // 2, 3))
    pixels[:, width * 2 // 3 :, 1] = 250
    return np.clip(pixels, 0, 255).astype(np.uint8)


def jpeg_of(pixels: Any, **options: Any) -> bytes:
    """By Pillow; `subsampling` as it names them."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **{"quality": 90, **options})
    return file.getvalue()


def theirs(data: bytes) -> Any:
    return simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True)


def compiler() -> str:
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        pytest.skip("needs a C compiler")
    return found


@pytest.fixture(scope="module")
def plain_loops(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library as other machines compile it."""
    path = tmp_path_factory.mktemp("plain") / "loops.so"
    options = ["-O2", "-ffp-contract=off", "-DPENSTOCK_PLAIN", "-shared", "-fPIC"]
    subprocess.run([compiler(), *options, "-o", str(path), *map(str, SOURCES), "-lm"], check=True)
    return accel.loops_in(str(path))


SAMPLINGS = ["4:4:4", "4:2:2", "4:2:0"]


@needs_loops
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", [(8, 8), (16, 16), (17, 33), (64, 48), (101, 77), (240, 321)])
@pytest.mark.parametrize("quality", [30, 75, 90, 100])
def test_whole_images_have_libjpegs_pixels(sampling: str, size: tuple[int, int], quality: int) -> None:
    data = jpeg_of(photo(*size), quality=quality, subsampling=sampling)
    found = accel.jpeg(data, size, Window.whole(size), to_the_end=True)
    assert found is not None, "it is a plain photo"
    assert np.array_equal(found, theirs(data))


@needs_loops
@settings(max_examples=400 if FULL else 80, deadline=None)
@given(st.data())
def test_parts_have_libjpegs_pixels(data: st.DataObject) -> None:
    size = data.draw(st.tuples(st.integers(6, 130), st.integers(6, 130)), label="size")
    file = jpeg_of(
        photo(*size, seed=data.draw(st.integers(0, 99))),
        quality=data.draw(st.sampled_from([40, 85, 97])),
        subsampling=data.draw(st.sampled_from(SAMPLINGS)),
        optimize=data.draw(st.booleans()),
        restart_marker_blocks=data.draw(st.sampled_from([0, 1, 3, 8])),
    )
    height, width = (data.draw(st.integers(1, side)) for side in size)
    top, left = data.draw(st.integers(0, size[0] - height)), data.draw(st.integers(0, size[1] - width))
    for to_the_end in (True, False):
        found = accel.jpeg(file, size, (top, left, height, width), to_the_end=to_the_end)
        assert found is not None
        assert np.array_equal(found, theirs(file)[top : top + height, left : left + width])


@needs_loops
def test_files_with_other_tables_do_not_disturb_each_other() -> None:
    """Threads keep the tables that they built last; those of `optimize` are each file's own."""
    files = [
        jpeg_of(photo(40, 56, seed), optimize=seed % 3 == 0, quality=30 + seed % 4 * 20) for seed in range(12)
    ]
    wanted = [theirs(data) for data in files]

    def played(seed: int) -> bool:
        rng = random.Random(seed)
        order = [rng.randrange(len(files)) for _ in range(300)]
        window = (8, 8, 20, 30)
        return all(
            np.array_equal(accel.jpeg(files[at], (40, 56), (0, 0, 40, 56), to_the_end=True), wanted[at])
            and np.array_equal(
                accel.jpeg(files[at], (40, 56), window, to_the_end=False), wanted[at][8:28, 8:38]
            )
            for at in order
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(played, range(4)))


@needs_loops
def test_a_file_without_tables_does_not_have_those_of_the_one_before() -> None:
    data = jpeg_of(photo(40, 56))
    assert accel.jpeg(data, (40, 56), (0, 0, 40, 56), to_the_end=True) is not None
    bare, at = data[:2], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        bare += b"" if data[at + 1] == 0xC4 else data[at:end]
        at = end
    assert len(bare) < at
    assert accel.jpeg(bare + data[at:], (40, 56), (0, 0, 40, 56), to_the_end=True) is None


@needs_loops
def test_grey_images_are_decoded_to_three_channels() -> None:
    data = jpeg_of(photo(75, 93)[:, :, 0])
    found = accel.jpeg(data, (75, 93), (3, 5, 60, 70), to_the_end=True)
    assert found is not None
    assert np.array_equal(found, theirs(data)[3:63, 5:75])


def test_other_machines_make_the_same_pixels(plain_loops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel, "compiled", lambda: plain_loops)
    for sampling in SAMPLINGS:
        data = jpeg_of(photo(120, 157), subsampling=sampling)
        found = accel.jpeg(data, (120, 157), (10, 20, 90, 100), to_the_end=True)
        assert found is not None
        assert np.array_equal(found, theirs(data)[10:100, 20:120])


def four_channels() -> bytes:
    file = io.BytesIO()
    Image.fromarray(photo(64, 64)).convert("CMYK").save(file, "JPEG")
    return file.getvalue()


UNUSUAL = {
    "progressive": lambda: jpeg_of(photo(64, 64), progressive=True),
    "other sampling": lambda: simplejpeg.encode_jpeg(photo(64, 64), colorsubsampling="440"),
    "four channels": four_channels,
}


@needs_loops
@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_unusual_is_left_to_libjpeg(what: str) -> None:
    data = UNUSUAL[what]()
    assert accel.jpeg(data, (64, 64), (0, 0, 64, 64), to_the_end=True) is None
    assert decode(data).shape == (64, 64, 3)


@needs_loops
def test_a_part_outside_of_the_image_or_of_another_size_is_refused() -> None:
    data = jpeg_of(photo(64, 48))
    for size, window in (
        ((64, 48), (0, 0, 65, 48)),
        ((64, 48), (60, 0, 5, 48)),
        ((64, 48), (-1, 0, 5, 5)),
        ((64, 48), (0, 40, 5, 9)),
        ((64, 47), (0, 0, 5, 5)),
    ):
        assert accel.jpeg(data, size, window, to_the_end=True) is None


# ---- damage


def test_damage_below_a_part_is_noticed_unless_decoding_is_fast() -> None:
    data = jpeg_of(photo(160, 120))
    cut = data[: len(data) * 3 // 4]
    top = Window(0, 0, 30, 120)
    with pytest.raises(BadImage):
        Encoded(cut).part(top)
    if accel.compiled() is not None:
        assert np.array_equal(Encoded(data, fast=True).part(top), theirs(data)[:30])


@needs_loops
def test_a_file_that_ends_early_or_goes_on_is_left_to_libjpeg() -> None:
    data = jpeg_of(photo(64, 64))
    whole = (0, 0, 64, 64)
    assert accel.jpeg(data, (64, 64), whole, to_the_end=True) is not None
    assert accel.jpeg(data + b"more", (64, 64), whole, to_the_end=True) is not None, (
        "libjpeg does not look there"
    )
    for broken in (data[:-2], data[:-40], data[:-2] + b"\x00\x00\xff\xd9", data[:-30] + data[-2:]):
        assert accel.jpeg(broken, (64, 64), whole, to_the_end=True) is None


def test_damaged_files_under_sanitizers(tmp_path: Path) -> None:
    """Damaged files never read or write a byte that is not theirs, and what is decoded all the same is what libjpeg makes of it. Nor do
    single ops at odd sizes (`test_pixel_loops.play`)."""
    played = under_sanitizers(tmp_path, "tests.unit.test_jpeg_parts", str(DAMAGED))
    assert played.returncode == 0, played.stderr[-4000:]
    decoded, same = map(int, played.stdout.split())
    assert decoded > DAMAGED // 100, "some damage leaves a file that can be decoded"
    assert same == decoded


def under_sanitizers(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module run with the path of loops in which every read and write is checked, and more arguments."""
    path = folder / "loops.so"
    options = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-shared", "-fPIC"]
    built = subprocess.run([compiler(), *options, "-o", str(path), *map(str, SOURCES), "-lm"], check=False)
    asan = subprocess.run(
        [compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    if built.returncode or not Path(asan.stdout.strip()).exists():
        pytest.skip("the compiler has no sanitizers")
    environment = {
        **os.environ,
        "LD_PRELOAD": asan.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    return subprocess.run(
        [sys.executable, "-m", module, str(path), *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )


def damaged(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, cut out, doubled or made markers; half of the time in the first ones, where the tables are."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        if len(found) < 4:
            break
        at = rng.randrange(2, min(len(found), 700) if rng.random() < 0.5 else len(found))
        match rng.randrange(6):
            case 0:
                found[at] = rng.randrange(256)
            case 1:
                found[at] ^= 1 << rng.randrange(8)
            case 2:
                del found[at : at + rng.randrange(1, 9)]
            case 3:
                found[at:at] = found[at : at + rng.randrange(1, 9)]
            case 4:
                found[at : at + 2] = bytes(
                    [0xFF, rng.choice([0xD8, 0xD9, 0xDA, 0xD0, 0xD3, 0xC0, 0xC4, 0x00, 0xFF])]
                )
            case 5:
                del found[at:]
    return bytes(found)


def play(path: str, count: int) -> tuple[int, int]:
    """How many damaged files were decoded, and how many of those as libjpeg does."""
    loops = accel.loops_in(path)
    accel.compiled = lambda: loops  # type: ignore[assignment]
    bases = [
        jpeg_of(
            photo(40 + 9 * n, 64 - 5 * n, n),
            subsampling=sampling,
            restart_marker_blocks=restart,
            quality=60 + 8 * n,
        )
        for n, (sampling, restart) in enumerate([("4:2:0", 0), ("4:2:0", 2), ("4:4:4", 0), ("4:2:2", 3)])
    ]
    sizes = [(40 + 9 * n, 64 - 5 * n) for n in range(4)]
    rng, decoded, same = random.Random(0), 0, 0
    for _ in range(count):
        at = rng.randrange(4)
        size, data = sizes[at], damaged(rng, bases[at])
        height, width = rng.randint(1, size[0]), rng.randint(1, size[1])
        top, left = rng.randint(0, size[0] - height), rng.randint(0, size[1] - width)
        to_the_end = rng.random() < 0.7
        found = accel.jpeg(data, size, (top, left, height, width), to_the_end=to_the_end)
        if found is None:
            continue
        try:
            reference = theirs(data)[top : top + height, left : left + width]
        except ValueError:
            if not to_the_end:
                continue  # what is wrong lies below the part
            reference = None
        decoded += 1
        same += reference is not None and np.array_equal(found, reference)
    return decoded, same


if __name__ == "__main__":
    print(*play(sys.argv[1], int(sys.argv[2])))
    test_pixel_loops.play()  # the same loops' other ops
