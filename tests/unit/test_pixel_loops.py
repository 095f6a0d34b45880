"""Single ops of the compiled loops beside what numpy and Pillow make of the same pixels, at sizes where vectors end in the middle of a row."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from penstock import accel
from penstock.transforms import cpu, tables
from penstock.transforms.windows import Window, under

needs_loops = pytest.mark.skipif(
    accel.compiled() is None, reason="there was no compiler when penstock was installed"
)
SHAPES = [(1, 1), (3, 3), (5, 11), (7, 32), (16, 33), (31, 29), (150, 152), (224, 224)]


def image_of(shape: tuple[int, int], channels: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (*shape, channels), dtype=np.uint8)


LEVELS = ["plain", "avx2", "wide", "dots", "permutes"]


@pytest.fixture(params=range(len(LEVELS)), ids=LEVELS)
def vectors(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each way in which processors work, as far as this one has it; Arm's have two, of 16 bytes (as "avx2") and with products of bytes (as "dots")."""
    loops: Any = accel.compiled()
    if loops is None or loops.penstock_vectors(request.param) != request.param:
        pytest.skip("this processor does not have it")
    yield
    loops.penstock_vectors(len(LEVELS))


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_looked_up(shape: tuple[int, int], channels: int) -> None:
    image, table = image_of(shape, channels), image_of((256, 1), channels, 1)[:, 0]
    found = accel.look_up(image, table[:, 0])
    assert found is not None
    assert np.array_equal(found, table[:, 0][image])
    if channels == 3:
        found = accel.look_up(image, table)
        assert found is not None
        assert np.array_equal(found, np.stack([table[image[:, :, c], c] for c in range(3)], axis=2))


@needs_loops
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_mirrored_also_in_a_part_of_an_image(shape: tuple[int, int], channels: int) -> None:
    image = image_of((shape[0] + 3, shape[1] + 5), channels)
    for part in (image, image[1 : 1 + shape[0], 2 : 2 + shape[1]]):
        found = accel.flip(part)
        assert found is not None
        assert np.array_equal(found, part[:, ::-1])


@needs_loops
@pytest.mark.parametrize("shape", SHAPES)
def test_channels_become_planes_also_of_a_part_of_an_image(shape: tuple[int, int]) -> None:
    image = image_of((shape[0] + 3, shape[1] + 5), 3)
    part = image[1 : 1 + shape[0], 2 : 2 + shape[1]]
    out = torch.zeros((3, *shape), dtype=torch.uint8)
    assert accel.split(part, out)
    assert np.array_equal(out.numpy(), part.transpose(2, 0, 1))


@needs_loops
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_made_equally_frequent_also_in_a_part_of_an_image(
    shape: tuple[int, int], channels: int
) -> None:
    whole = image_of((shape[0] + 4, shape[1] + 4), channels)
    for image in (whole[2:-2, 1:-3], whole[2:-2, 1:-3] // 9 * 7, whole[2:-2, 1:-3] * 0):
        counts = [np.bincount(image[:, :, c].ravel(), minlength=256) for c in range(channels)]
        assert np.array_equal(accel.equalizing(image), tables.equalize(np.stack(counts)))


def stretched(image: np.ndarray) -> np.ndarray:
    return tables.autocontrast(image.min(axis=(0, 1)).tolist(), image.max(axis=(0, 1)).tolist())


@needs_loops
@pytest.mark.parametrize("shape", SHAPES)
def test_the_least_and_the_greatest_are_found_also_in_a_part_of_an_image(shape: tuple[int, int]) -> None:
    whole = image_of((shape[0] + 4, shape[1] + 4), 3)
    whole[2:-2, 1:-3] //= 2
    whole[2:-2, 1:-3] += 50  # what is outside has smaller and greater ones
    image = whole[2:-2, 1:-3]
    assert np.array_equal(accel.stretching(image), stretched(image))


@needs_loops
@pytest.mark.parametrize("at", range(0, 101, 7))
@pytest.mark.parametrize("value", [3, 250])
def test_the_least_and_the_greatest_are_found_wherever_they_are(at: int, value: int) -> None:
    image = np.full((3, 101, 3), 100, np.uint8)
    image[1, at, at % 3] = value
    assert np.array_equal(accel.stretching(image), stretched(image))


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("share", [0.0, 0.1, 0.55, 0.73, 1.0, 1.7, 1.9, 7.25, -3.0])
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_sharpness_and_saturation_are_pillows(shape: tuple[int, int], share: float) -> None:
    image = image_of(shape, 3)
    picture = Image.fromarray(image)
    sharp, full = accel.sharpen(image, share), accel.saturate(image, share)
    assert np.array_equal(sharp, ImageEnhance.Sharpness(picture).enhance(share))
    assert np.array_equal(full, ImageEnhance.Color(picture).enhance(share))


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("shape", SHAPES)
def test_greys_are_pillows(shape: tuple[int, int]) -> None:
    whole = image_of((shape[0] + 4, shape[1] + 4), 3)
    for image in (whole[2:-2, 1:-3], np.full((*shape, 3), 255, np.uint8)):
        grey = np.asarray(Image.fromarray(np.ascontiguousarray(image)).convert("L"))
        assert accel.grey_sum(image) == grey.sum()


@pytest.mark.usefixtures("vectors")
def test_the_greys_of_a_row_may_be_more_than_32_bits_hold() -> None:
    row = np.broadcast_to(np.uint8(255), (1, 1, 3)).repeat(9_000_001, axis=1)
    assert accel.grey_sum(row) == 255 * 9_000_001


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES[2:])
def test_photos_are_pillows(shape: tuple[int, int], subsampling: int) -> None:
    file = io.BytesIO()
    Image.fromarray(image_of(shape, 3)).save(file, "JPEG", quality=95, subsampling=subsampling)
    found = accel.jpeg(file.getvalue(), shape, (0, 0, *shape), to_the_end=True)
    assert found is not None
    assert np.array_equal(found, Image.open(file))


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("cubic", [False, True])
@pytest.mark.parametrize("new", [(1, 1), (5, 7), (33, 9), (64, 224), (224, 31)])
@pytest.mark.parametrize("shape", SHAPES)
def test_resizing_is_pillows_whatever_the_processor_has(
    shape: tuple[int, int], new: tuple[int, int], cubic: bool, channels: int
) -> None:
    image = image_of(shape, channels)
    if shape[0] > 2:
        image[: shape[0] // 2] = 255 * (image[: shape[0] // 2] > 127)  # what overshoots is clipped
    way = Image.Resampling.BICUBIC if cubic else Image.Resampling.BILINEAR
    found = accel.resize(image, *new, cubic=cubic, down_first=False)
    across = Image.fromarray(image.squeeze(2) if channels == 1 else image).resize((new[1], shape[0]), way)
    expected = np.asarray(across.resize((new[1], new[0]), way)).reshape(*new, channels)
    assert np.array_equal(found, expected)
    mirrored = accel.resize(image, *new, cubic=cubic, down_first=False, mirrored=True)
    assert np.array_equal(mirrored, expected[:, ::-1])


@needs_loops
def test_every_sum_of_neighbours_is_divided_rightly() -> None:
    sums = np.arange(13 * 255 + 6 + 1, dtype=np.uint32)
    assert np.array_equal(sums * 5042 >> 16, sums // 13)


@needs_loops
def test_where_there_were_no_loops_nothing_is_learnt_about_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu.pillow_chooses.cache_clear()
    chooses = cpu.goes_down_first((40, 20), (9, 18))
    cpu.pillow_chooses.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(accel, "compiled", lambda: None)
        assert not cpu.goes_down_first((40, 20), (9, 18))
    assert cpu.goes_down_first((40, 20), (9, 18)) == chooses


@pytest.mark.usefixtures("vectors")
def test_maps_are_pillows() -> None:
    play()


def play() -> None:
    """Maps of all kinds, of images whose memory ends where they end. Under sanitizers: see `test_jpeg_parts`."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        shape = tuple(int(side) for side in rng.integers(3, 40, 2))
        image = image_of(shape, 3)
        accel.look_up(image, image_of((256, 1), 1)[:, 0, 0])
        accel.look_up(image, image_of((256, 1), 3)[:, 0])
        accel.equalizing(image)
        accel.stretching(image)
        accel.sharpen(image, 1.9)
        accel.saturate(image, 1.9)
        turn, scale = rng.uniform(-3.2, 3.2), rng.choice([0.5, 0.98, 1.0, 1.3])
        cos, sin = scale * np.cos(turn), scale * np.sin(turn)
        right, down = rng.uniform(-20, 40, 2)
        for matrix in (
            (cos, -sin, right, sin, cos, down),
            (1.0, sin, right, 0.0, 1.0, down),
            (1.0, 0.0, right, sin, 1.0, down),
        ):
            found = accel.affine(image, (0, 0), (0, 0, *shape), matrix, (1, 2, 3))
            theirs = Image.fromarray(image).transform(
                shape[::-1], Image.Transform.AFFINE, matrix, fillcolor=(1, 2, 3)
            )
            assert np.array_equal(found, theirs), matrix
            top, left = (int(rng.integers(side)) for side in shape)
            window = Window(top, left, shape[0] - top, shape[1] - left)
            y, x, rows, columns = under(matrix, shape, window)
            part = accel.affine(image[y : y + rows, x : x + columns], (y, x), window, matrix, (1, 2, 3))
            assert np.array_equal(part, found[top:, left:]), (matrix, window)


BEFORE_A_WALL = """
import ctypes, io, itertools, mmap
import numpy as np
from PIL import Image
from penstock import accel

def walled():
    memory = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
    wall = memory.size - mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(memory.ctypes.data + wall), mmap.PAGESIZE, 0) == 0
    return memory[:wall]

memory, results, new = walled(), walled(), np.empty

def empty(shape, dtype=float):
    size = int(np.prod(shape))
    return results[results.size - size :].reshape(shape) if dtype is np.uint8 else new(shape, dtype)

np.empty = empty
loops = accel.compiled()
table = np.arange(256, dtype=np.uint8)
maps = [(0.9, -0.3, 5.0, 0.3, 0.9, -2.0), (1.0, 0.0, 0.0, 0.2, 1.0, 0.0), (1.0, 0.3, 0.0, 0.0, 1.0, 0.0)]
shapes, sizes = [(1, 1), (2, 5), (5, 7), (9, 40), (40, 9), (31, 200)], [(1, 1), (7, 9), (150, 224), (3, 401)]

def photo(size, subsampling):
    file = io.BytesIO()
    Image.fromarray(np.full((*size, 3), 77, np.uint8)).save(file, "JPEG", subsampling=subsampling)
    return file.getvalue()

photos = {size: [photo(size, subsampling) for subsampling in range(3)] for size in shapes}
for level, channels, (rows, columns) in itertools.product(range(5), (1, 3), shapes):
    loops.penstock_vectors(level)
    image = memory[memory.size - rows * columns * channels :].reshape(rows, columns, channels)
    accel.look_up(image, table)
    strided = image[:, : columns // 2 + 1]
    accel.equalizing(image)
    accel.equalizing(strided)
    accel.sharpen(image, 1.3)
    for matrix in maps:
        accel.affine(image, (0, 0), (0, 0, rows, columns), matrix, (1, 2, 3)[:channels])
    if channels == 3:
        accel.look_up(image, np.stack([table] * 3, axis=1))
        for each in (image, strided):
            accel.stretching(each)
            accel.saturate(each, 1.3)
            accel.grey_sum(each)
        for data in photos[rows, columns]:
            assert accel.jpeg(data, (rows, columns), (0, 0, rows, columns), to_the_end=True) is not None or rows * columns < 40
    for (height, width), down_first in itertools.product(sizes, (False, True)):
        for cubic, mirrored in ((False, False), (True, False), (False, True)):
            accel.resize(image, height, width, cubic=cubic, down_first=down_first, mirrored=mirrored)
print("all")
"""


@needs_loops
def test_nothing_is_read_or_written_behind_images() -> None:
    """Their last byte is the last before memory that may not be read or written: whoever does ends the program."""
    ended = subprocess.run([sys.executable, "-c", BEFORE_A_WALL], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "all\n"), ended.stderr[-2000:]


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("divides", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_pixels_are_normalised_as_arrays_are_step_by_step(shape: tuple[int, int], divides: bool) -> None:
    image, rng = image_of(shape, 3), np.random.default_rng(1)
    for turn in range(20):
        means, stds = rng.uniform(-1, 1, 3).astype(np.float32), rng.uniform(0.01, 2, 3).astype(np.float32)
        stds[turn % 3] *= turn % 4 != 3  # a quotient that is no number, or infinite
        scale = np.float32(rng.choice([255.0, 1 / 255.0, rng.uniform(0.001, 300.0)]))
        room, values = torch.empty(image.size + 1), image.astype(np.float32)
        found = room[turn % 2 : image.size + turn % 2].view(
            3, *shape
        )  # large ones are written in another way where vectors begin
        assert accel.normal(image, found, np.array([scale, *means, *stds], np.float32), divides=divides)
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = ((values / scale if divides else values * scale) - means) / stds
        assert np.array_equal(found.numpy(), expected.transpose(2, 0, 1), equal_nan=True)


@pytest.mark.parametrize("share", [0.1, 0.73, 1.7, 1.95, -3.0])
def test_a_blend_by_table_is_pillows(share: float) -> None:
    values = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    for base in range(256):
        table = tables.blend(base, share, fused=cpu.pillow_fuses())
        theirs = Image.blend(Image.new("L", (256, 1), base), values, share)
        assert np.array_equal(table, np.asarray(theirs)[0]), base


@needs_loops
def test_where_pillow_rounds_otherwise_than_the_loops_it_blends_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = image_of((31, 29), 3)
    expected = [cpu.saturation(image, 1.7), cpu.sharpness(image, 1.7)]
    monkeypatch.setattr(accel, "fuses", lambda: not cpu.pillow_fuses())
    found = [cpu.saturation(image, 1.7), cpu.sharpness(image, 1.7)]
    assert all(isinstance(theirs, Image.Image) for theirs in found)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(expected, found, strict=True))
