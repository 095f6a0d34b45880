"""The compiled loops and memory: whatever the layout of an image or of `out`, a result is NumPy's or Pillow's, and no byte beside `out` changes.

What the loops cannot do as it lies is left to another way (None), or written to memory of its own; what nobody can do is a ValueError.
"""

from __future__ import annotations

import ctypes
import io
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("PIL.Image")

from PIL import Image, ImageEnhance

from penstock import accel
from penstock.transforms import cpu, tables
from penstock.transforms.steps import Interpolation
from tests.unit.test_jpeg_parts import jpeg_of, photo

pytestmark = pytest.mark.skipif(
    accel.compiled() is None, reason="there was no compiler when penstock was installed"
)
STEPS = [1, 1, 1, 2, 3, -1, -2]
NEW = (5, 9)
FAR_MAP = (0.9, 0.2, 1.0, -0.2, 0.9, 2.0)


@st.composite
def images(draw: Any, channels: int = 3) -> Any:
    """A view of a larger image: with gaps, backwards, turned, one row again and again, or as it is."""
    seed = draw(st.integers(0, 2**32 - 1))
    whole = np.random.default_rng(seed).integers(0, 256, (30, 40, channels + 1), dtype=np.uint8)
    if draw(st.booleans()):
        whole = np.ascontiguousarray(whole[:, :, :channels])
    image = whole[draw(st.integers(0, 6)) :, draw(st.integers(0, 6)) :, :channels]
    image = image[:: draw(st.sampled_from(STEPS)), :: draw(st.sampled_from(STEPS))]
    image = image[:, :, :: draw(st.sampled_from([1, 1, 1, -1]))]
    match draw(st.sampled_from(["", "", "turned", "one row", "as numbers of another kind"])):
        case "turned":
            image = image.swapaxes(0, 1)
        case "one row":
            image = np.broadcast_to(image[:1], image.shape)
        case "as numbers of another kind":
            image = image.view(np.int8) if image.flags.c_contiguous else image
    image = image[: draw(st.integers(1, 30)), : draw(st.integers(1, 40))]
    return np.ascontiguousarray(image) if draw(st.booleans()) else image


class Place:
    """Somewhere in a larger array, which remembers what was around it."""

    def __init__(self, shape: tuple[int, ...], kind: str) -> None:
        rows, columns, channels = shape
        self.buffer = np.full((2 * rows + 4, 2 * columns + 4, channels + 2), 0xA5, np.uint8)
        self.out: Any = None
        match kind:
            case "none":
                pass
            case "in one piece" | "read-only" | "of another kind":
                flat = self.buffer.reshape(-1)[7 : 7 + rows * columns * channels]
                self.out = flat.reshape(shape)
                if kind == "read-only":
                    self.out.flags.writeable = False
                if kind == "of another kind":
                    self.out = self.out.view(np.int8)
            case "gaps between rows":
                lines = self.buffer.reshape(-1)[: rows * (columns * channels + 5)].reshape(rows, -1)
                self.out = lines[:, : columns * channels].reshape(shape)  # a view: rows are split only
                assert np.may_share_memory(self.out, self.buffer)
            case "gaps between pixels":
                self.out = self.buffer[2 : 2 + rows, 2 : 2 + columns, 1 : 1 + channels]
            case "every other":
                self.out = self.buffer[2 : 2 + 2 * rows : 2, 2 : 2 + 2 * columns : 2, :channels]
            case "backwards":
                self.out = self.buffer.reshape(-1)[: rows * columns * channels].reshape(shape)[::-1]
            case "of another shape":
                self.out = self.buffer[:rows, : columns + 1, :channels]
        self.before = self.buffer.copy()

    def check(self, found: Any) -> None:
        """Only `out` has changed, and only if that is the result."""
        if found is self.out and self.out is not None:
            whole = np.zeros_like(self.buffer)
            view = np.ndarray(
                self.out.shape,
                np.uint8,
                whole.data,
                accel.pointer(self.out) - accel.pointer(self.buffer),
                self.out.strides,
            )
            view[...] = 1
            assert np.array_equal(self.buffer[whole == 0], self.before[whole == 0])
        else:
            assert np.array_equal(self.buffer, self.before)


PLACES = [
    "none",
    "in one piece",
    "read-only",
    "of another kind",
    "gaps between rows",
    "gaps between pixels",
    "every other",
    "backwards",
    "of another shape",
]


def picture(image: Any) -> Any:
    return Image.fromarray(np.ascontiguousarray(image))


def resized(image: Any, new: tuple[int, int] = NEW) -> Any:
    across = picture(image).resize((new[1], image.shape[0]), Image.Resampling.BILINEAR)
    return np.asarray(across.resize((new[1], new[0]), Image.Resampling.BILINEAR))


def moved(image: Any) -> Any:
    size = image.shape[1::-1]
    return np.asarray(picture(image).transform(size, Image.Transform.AFFINE, FAR_MAP, fillcolor=(1, 2, 3)))


TABLE = np.random.default_rng(0).integers(0, 256, (256, 3), dtype=np.uint8)
OPS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "resize": (
        lambda image, out: accel.resize(image, *NEW, cubic=False, down_first=False, out=out),
        resized,
    ),
    "saturate": (
        lambda image, out: accel.saturate(image, 1.7, out),
        lambda image: np.asarray(ImageEnhance.Color(picture(image)).enhance(1.7)),
    ),
    "sharpen": (
        lambda image, out: accel.sharpen(image, 1.7, out),
        lambda image: np.asarray(ImageEnhance.Sharpness(picture(image)).enhance(1.7)),
    ),
    "look_up": (
        lambda image, out: accel.look_up(image, TABLE, out),
        lambda image: np.stack([TABLE[image[:, :, c], c] for c in range(3)], axis=2),
    ),
    "look_up by one table, with gaps": (
        lambda image, out: accel.look_up(image, TABLE[:, 1], out),
        lambda image: TABLE[:, 1][image],
    ),
    "affine": (
        lambda image, out: accel.affine(image, (0, 0), (0, 0, *image.shape[:2]), FAR_MAP, (1, 2, 3), out),
        moved,
    ),
}


def fits_pillow(op: str) -> bool:
    """Whether the installed Pillow rounds blends as the loops do."""
    return op not in ("saturate", "sharpen") or accel.fuses() == cpu.pillow_fuses()


@pytest.mark.parametrize("op", OPS)
@given(image=images(), kind=st.sampled_from(PLACES))
def test_results_are_right_and_bytes_beside_out_are_left_alone(op: str, image: Any, kind: str) -> None:
    play, expected = OPS[op]
    shape = (*NEW, 3) if op == "resize" else image.shape
    place, before = Place(shape, kind), image.copy()
    found = play(image, place.out)
    place.check(found)
    assert np.array_equal(image, before)
    if found is None:
        assert not (image.flags.c_contiguous and image.dtype == np.uint8 and min(image.shape[:2]) > 2)
    elif fits_pillow(op):
        assert np.array_equal(found, expected(image))
    if kind == "in one piece" and found is not None:
        assert found is place.out, "it could be written there"


@pytest.mark.parametrize("op", [op for op in OPS if op != "resize"])
@given(image=images(), shift=st.integers(-1, 1))
def test_an_image_is_not_written_over_while_it_is_read(op: str, image: Any, shift: int) -> None:
    """`out` begins where the image does, or a byte beside it."""
    play, expected = OPS[op]
    memory = np.zeros(image.size + 2, np.uint8)
    given = memory[1 : 1 + image.size].reshape(image.shape)
    given[...] = image.view(np.uint8) if image.dtype == np.int8 else image
    before = memory.copy()
    out = memory[1 + shift : 1 + shift + image.size].reshape(image.shape)
    found = play(given, out)
    assert found is not out
    assert np.array_equal(memory, before)
    if found is not None and fits_pillow(op):
        assert np.array_equal(found, expected(given))


@given(
    image=images(),
    part=st.tuples(*[st.integers(0, 12)] * 2),
    mirrored=st.booleans(),
    kind=st.sampled_from(PLACES),
)
def test_a_resized_box_is_right_wherever_it_lies(
    image: Any, part: tuple[int, int], mirrored: bool, kind: str
) -> None:
    top, left = (min(at, side - 1) for at, side in zip(part, image.shape, strict=False))
    box = (top + 0.25, left + 0.5, image.shape[0] - top - 0.25, image.shape[1] - left - 0.5)
    place = Place((*NEW, 3), kind)
    found = accel.resize(image, *NEW, cubic=True, down_first=False, box=box, mirrored=mirrored, out=place.out)
    place.check(found)
    if found is not None:
        rows, columns = image.shape[:2]
        across = picture(image).resize(
            (NEW[1], rows), Image.Resampling.BICUBIC, (box[1], 0.0, float(columns), float(rows))
        )
        down = across.resize(
            (NEW[1], NEW[0]), Image.Resampling.BICUBIC, (0.0, box[0], float(NEW[1]), float(rows))
        )
        theirs = np.asarray(down)
        assert np.array_equal(found, theirs[:, ::-1] if mirrored else theirs)


# ---- what is found out about an image


@given(image=images())
def test_statistics_are_those_of_numpy(image: Any) -> None:
    plain = image.dtype == np.uint8
    total, spread, stretched = accel.grey_sum(image), accel.equalizing(image), accel.stretching(image)
    if total is not None:
        assert plain
        assert total == int(np.asarray(picture(image).convert("L")).sum(dtype=np.int64))
    if spread is not None:
        assert plain
        counts = np.stack([np.bincount(image[:, :, c].ravel(), minlength=256) for c in range(3)])
        assert np.array_equal(spread, tables.equalize(counts))
    if stretched is not None:
        assert plain
        least, most = image.min(axis=(0, 1)).tolist(), image.max(axis=(0, 1)).tolist()
        assert np.array_equal(stretched, tables.autocontrast(least, most))


# ---- to floats

LEVELS = np.linspace(-1, 1, 3 * 256, dtype=np.float32).reshape(3, 256)
NUMBERS = np.array([1 / 255, 0.5, 0.4, 0.3, 0.2, 0.3, 0.25], np.float32)
FLOAT_PLACES = ["in one piece", "turned", "gaps", "of doubles", "of integers"]


def float_place(shape: tuple[int, ...], kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A place for planes, and the memory around it."""
    channels, rows, columns = shape
    dtype = {"of doubles": torch.float64, "of integers": torch.int32}.get(kind, torch.float32)
    around = torch.full((channels + 2, rows + 2, 2 * columns + 2), 7, dtype=dtype)
    if kind == "turned":
        return around[:channels, :rows, :columns].new_full((channels, columns, rows), 7).mT, around
    if kind == "gaps":
        return around[1:-1, 1:-1, 1 : 1 + 2 * columns : 2], around
    return around.view(-1)[3 : 3 + channels * rows * columns].view(shape), around


@pytest.mark.parametrize("way", ["planes", "normal"])
@given(image=images(), kind=st.sampled_from(FLOAT_PLACES))
def test_floats_are_those_of_numpy_or_left_to_it(way: str, image: Any, kind: str) -> None:
    shape = (3, *image.shape[:2])
    out, around = float_place(shape, kind)
    before = around.clone()
    if way == "planes":
        done = accel.planes(image, out, LEVELS)
        expected = np.stack([LEVELS[c][image[:, :, c]] for c in range(3)])
    else:
        done = accel.normal(image, out, NUMBERS, divides=False)
        scaled = image.transpose(2, 0, 1).astype(np.float32) * NUMBERS[0]
        expected = (scaled - NUMBERS[1:4, None, None]) / NUMBERS[4:, None, None]
    assert not done or (out.is_contiguous() and out.dtype == torch.float32 and image.dtype == np.uint8)
    assert done or kind != "in one piece" or not accel.fits(image)
    if done:
        assert np.array_equal(out.numpy(), expected)
        out.fill_(7)
    assert torch.equal(around, before)


def test_floats_are_not_written_over_the_image_that_they_come_of() -> None:
    memory = np.zeros(3 * 8 * 8 * 4, np.uint8)
    image = memory[100 : 100 + 3 * 8 * 8].reshape(8, 8, 3)
    out = torch.from_numpy(memory.view(np.float32)).view(3, 8, 8)
    assert not accel.planes(image, out, LEVELS)
    assert not accel.normal(image, out, NUMBERS, divides=False)


# ---- checksums


@given(
    data=st.binary(min_size=0, max_size=300),
    times=st.integers(1, 60),
    ends=st.tuples(st.integers(0, 18_000), st.integers(0, 18_000)),
    before=st.integers(0, 2**32 - 1),
    kind=st.sampled_from([bytes, bytearray, memoryview, np.frombuffer]),
)
def test_checksums_of_parts_are_zlibs(
    data: bytes, times: int, ends: tuple[int, int], before: int, kind: Any
) -> None:
    whole = b"x" + data * times
    start, end = sorted(min(at, len(whole)) for at in ends)
    given = np.frombuffer(whole, np.uint8) if kind is np.frombuffer else kind(whole)
    assert accel.crc32(given, start, end, before) == zlib.crc32(whole[start:end], before)


@pytest.mark.parametrize(
    ("data", "start", "end"),
    [
        (bytes(10_000), 0, 10_001),
        (bytes(10_000), -1, 10_000),
        (bytes(10_000), 9_000, 1),
        (bytes(10), 0, 1 << 40),
        (np.zeros(10_000, np.float32), 0, None),
        (np.zeros((100, 100), np.uint8), 0, None),
        (memoryview(bytes(20_000))[::2], 0, None),
    ],
)
def test_a_checksum_of_what_is_not_there_is_refused(data: Any, start: int, end: int | None) -> None:
    with pytest.raises(ValueError, match=r"a checksum is of plain bytes|are not a part of"):
        accel.crc32(data, start, end)


# ---- arguments that C would take at their word

IMAGE = np.zeros((20, 30, 3), np.uint8)
WRONG: dict[str, Callable[[], Any]] = {
    "a table of 5 x 3": lambda: accel.look_up(IMAGE, np.zeros((5, 3), np.uint8)),
    "a table of 255": lambda: accel.look_up(IMAGE, np.zeros(255, np.uint8)),
    "a table of 256 x 2": lambda: accel.look_up(IMAGE, np.zeros((256, 2), np.uint8)),
    "a table of words": lambda: accel.look_up(IMAGE, np.zeros(256, np.uint16)),
    "a table of three dimensions": lambda: accel.look_up(IMAGE, np.zeros((256, 3, 1), np.uint8)),
    "no rows": lambda: accel.resize(IMAGE, 0, 5, cubic=False, down_first=False),
    "fewer than no columns": lambda: accel.resize(IMAGE, 5, -1, cubic=False, down_first=False),
    "more rows than C counts": lambda: accel.resize(IMAGE, 2**32 + 5, 5, cubic=False, down_first=False),
    "a box beyond the image": lambda: boxed((0, 0, 21, 30)),
    "a box left of the image": lambda: boxed((0, -1, 20, 30)),
    "a box of nothing": lambda: boxed((0, 0, 0, 30)),
    "a box of no number": lambda: boxed((0, 0, float("nan"), 30)),
    "levels of one channel": lambda: accel.planes(IMAGE, torch.empty(3, 20, 30), LEVELS[:1]),
    "levels with gaps": lambda: accel.planes(IMAGE, torch.empty(3, 20, 30), LEVELS[::-1]),
    "doubles as levels": lambda: accel.planes(IMAGE, torch.empty(3, 20, 30), LEVELS.astype(np.float64)),  # type: ignore[arg-type]
    "planes of another shape": lambda: accel.planes(IMAGE, torch.empty(3, 30, 20), LEVELS),
    "too few numbers": lambda: accel.normal(IMAGE, torch.empty(3, 20, 30), NUMBERS[:6], divides=False),
    "normal to one plane": lambda: accel.normal(IMAGE, torch.empty(1, 20, 30), NUMBERS, divides=False),
    "a share of no number": lambda: accel.saturate(IMAGE, float("nan")),
    "a share without end": lambda: accel.sharpen(IMAGE, float("inf")),
    "a share that single precision does not hold": lambda: accel.sharpen(IMAGE, 1e39),
    "one value to fill three channels": lambda: accel.affine(IMAGE, (0, 0), (0, 0, 20, 30), FAR_MAP, (1,)),
    "a part that is cut off": lambda: accel.finish([bytes(accel.PART.size - 1)]),
}


def boxed(box: tuple[float, float, float, float]) -> Any:
    return accel.resize(IMAGE, 5, 5, cubic=False, down_first=False, box=box)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_argument_is_refused_before_c_sees_it(what: str) -> None:
    with pytest.raises(ValueError, match=r"must be|must have|is not a part|is packed into"):
        WRONG[what]()


@pytest.mark.parametrize(
    "matrix",
    [
        (float("nan"), 0.1, 0.0, 0.1, 1.0, 0.0),
        (1.0, 0.1, float("inf"), 0.1, 1.0, 0.0),
        (1e300, 0.1, 0.0, 0.1, 1.0, 0.0),
        (1.0, 0.1, 40_000.0, 0.1, 1.0, 0.0),
        (30_000.0, 0.1, 0.0, 0.1, 1.0, 0.0),
    ],
)
def test_maps_beyond_fixed_point_are_left_to_pillow(matrix: tuple[float, ...]) -> None:
    assert accel.affine(IMAGE, (0, 0), (0, 0, 1, 1), matrix, (1, 2, 3)) is None


def test_an_empty_image_is_left_to_others() -> None:
    for shape in ((0, 5, 3), (5, 0, 3), (5, 5, 0)):
        image = np.zeros(shape, np.uint8)
        assert accel.look_up(image, TABLE[:, 0]) is None
        assert accel.grey_sum(image) is None
        assert accel.equalizing(image) is None
        assert accel.resize(image, 5, 5, cubic=False, down_first=False) is None
        assert accel.sharpen(image, 1.5) is None


@given(
    size=st.tuples(*[st.sampled_from([24, 32, -24, 0, 2**32 + 24, 2**31, 65_536])] * 2),
    window=st.tuples(*[st.sampled_from([0, 1, 8, 24, 32, -1, 2**31 - 1, 2**32, 2**32 + 8])] * 4),
    kind=st.sampled_from(PLACES),
)
def test_a_part_of_a_photo_lies_within_it(
    size: tuple[int, int], window: tuple[int, int, int, int], kind: str
) -> None:
    """Numbers of more than 32 bits would be cut off on their way into C."""
    file = jpeg_of(photo(24, 32))
    top, left, height, width = window
    fits = size == (24, 32) and 0 <= top < top + height <= 24 and 0 <= left < left + width <= 32
    place = Place((height, width, 3) if fits else (2, 2, 3), kind)
    found = accel.jpeg(file, size, window, to_the_end=True, out=place.out)
    place.check(found)
    loops = accel.compiled()
    assert loops is not None
    assert (found is not None) == (fits and accel.jpeg_pays(loops))
    if found is not None:
        whole = np.asarray(Image.open(io.BytesIO(file)))
        assert np.array_equal(found, whole[top : top + height, left : left + width])


@pytest.mark.parametrize("data", [bytearray(jpeg_of(photo(24, 32))), None, "text", 5])
def test_a_photo_must_be_bytes(data: Any) -> None:
    with pytest.raises((TypeError, ctypes.ArgumentError)):
        accel.jpeg(data, (24, 32), (0, 0, 24, 32), to_the_end=True)


@given(image=images(), kind=st.sampled_from(PLACES))
def test_steps_of_a_program_are_right_with_any_layout(image: Any, kind: str) -> None:
    """By whichever way: where the loops do not take an image, another library does."""
    image = image.view(np.uint8) if image.dtype == np.int8 else image
    place = Place((*NEW, 3), kind)
    found = cpu.resize(image, *NEW, Interpolation.BILINEAR, True, out=place.out)
    place.check(found)
    if image.shape[:2] != NEW and not cpu.goes_down_first(image.shape[:2], NEW):
        assert np.array_equal(found, resized(image))
    place = Place(image.shape, kind)
    found = tables.look_up(image, TABLE, place.out)
    place.check(found)
    assert np.array_equal(found, OPS["look_up"][1](image))
