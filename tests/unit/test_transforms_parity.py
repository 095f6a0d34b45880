"""Each op beside torchvision's own, fed the same draw, on Pillow images: what is done by table or by moving pixels is exact, what
is resampled or blurred stays within the bounds that docs/transforms.md states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock import accel
from penstock.transforms.augment import steps_of
from penstock.transforms.cpu import execute
from penstock.transforms.draws import Draws
from penstock.transforms.ops import CenterCrop, Pad, Resize
from penstock.transforms.steps import Code, Interpolation, Program, Step
from tests.torchvision_here import torchvision

Pixels = NDArray[np.uint8]
NEAREST, BILINEAR = int(Interpolation.NEAREST), int(Interpolation.BILINEAR)


def images() -> dict[str, Pixels]:
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:61, 0:83]
    smooth = np.stack([127 + 120 * np.sin(x / 9), 127 + 120 * np.cos(y / 7), (x + y) % 256], axis=2)
    return {
        "noise": rng.integers(0, 256, (37, 53, 3), dtype=np.uint8),
        "smooth": smooth.astype(np.uint8),
        "flat": np.full((20, 20, 3), 93, np.uint8),
        "narrow": rng.integers(90, 120, (64, 17, 3), dtype=np.uint8),
        "two values": (rng.integers(0, 2, (30, 31, 3)) * 255).astype(np.uint8),
    }


IMAGES = images()
each_image = pytest.mark.parametrize("name", IMAGES)


def theirs(name: str, function: Callable[[Any, Any], Any]) -> Pixels:
    """What torchvision's functional makes of the image."""
    torchvision()
    from PIL import Image
    from torchvision.transforms.v2 import functional

    return np.asarray(function(functional, Image.fromarray(IMAGES[name])))


def ours(name: str, program: Program) -> Pixels:
    found = execute(program, IMAGES[name])
    return found[:, :, 0] if found.shape[2] == 1 else found


@pytest.fixture(params=[True, False], ids=["compiled", "without a compiler"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(accel, "compiled", lambda: None)
    elif accel.compiled() is None:
        pytest.skip("there was no compiler when penstock was installed")


FACTORS = (0.0, 0.1, 0.5, 0.73, 1.0, 1.27, 1.9, 3.0)
EXACT: dict[str, tuple[Program, Callable[[Any, Any], Any]]] = {
    **{
        f"brightness {f}": ([Step(Code.BRIGHTNESS, (f,))], lambda F, x, f=f: F.adjust_brightness(x, f))
        for f in FACTORS
    },
    **{
        f"contrast {f}": ([Step(Code.CONTRAST, (f,))], lambda F, x, f=f: F.adjust_contrast(x, f))
        for f in FACTORS
    },
    **{
        f"saturation {f}": ([Step(Code.SATURATION, (f,))], lambda F, x, f=f: F.adjust_saturation(x, f))
        for f in FACTORS
    },
    **{
        f"sharpness {f}": ([Step(Code.SHARPNESS, (f,))], lambda F, x, f=f: F.adjust_sharpness(x, f))
        for f in FACTORS
    },
    **{
        f"hue {h}": ([Step(Code.HUE, (h,))], lambda F, x, h=h: F.adjust_hue(x, h))
        for h in (-0.5, -0.21, 0.0, 0.1, 0.5)
    },
    **{
        f"posterize {b}": ([Step(Code.POSTERIZE, (b,))], lambda F, x, b=b: F.posterize(x, b))
        for b in range(1, 9)
    },
    **{
        f"solarize {t}": ([Step(Code.SOLARIZE, (t,))], lambda F, x, t=t: F.solarize(x, t))
        for t in (0, 1, 99.5, 128, 255, 256)
    },
    "invert": ([Step(Code.INVERT)], lambda F, x: F.invert(x)),
    "autocontrast": ([Step(Code.AUTOCONTRAST)], lambda F, x: F.autocontrast(x)),
    "equalize": ([Step(Code.EQUALIZE)], lambda F, x: F.equalize(x)),
    "grey": ([Step(Code.GRAY, (1,))], lambda F, x: F.to_grayscale(x, 1)),
    "grey of three": ([Step(Code.GRAY, (3,))], lambda F, x: F.to_grayscale(x, 3)),
    "flip": ([Step(Code.FLIP_H)], lambda F, x: F.horizontal_flip(x)),
    "upside down": ([Step(Code.FLIP_V)], lambda F, x: F.vertical_flip(x)),
    "crop": ([Step(Code.CROP, (3, 2, 11, 9))], lambda F, x: F.crop(x, 3, 2, 11, 9)),
    "crop beyond the image": ([Step(Code.CROP, (-4, 5, 40, 90))], lambda F, x: F.crop(x, -4, 5, 40, 90)),
    **{
        f"pad {mode}": (
            [Step(Code.PAD, (3, 2, 1, 4, 7, mode))],
            lambda F, x, mode=mode: F.pad(x, [3, 2, 1, 4], 7, mode),
        )
        for mode in ("constant", "edge", "reflect", "symmetric")
    },
}


@pytest.mark.usefixtures("compiled")
@each_image
@pytest.mark.parametrize("case", EXACT)
def test_what_is_done_by_table_or_by_moving_pixels_is_exact(case: str, name: str) -> None:
    program, function = EXACT[case]
    np.testing.assert_array_equal(ours(name, program), theirs(name, function))


MAGNITUDES = {
    "ShearX": (-0.3, 0.09, 0.3), "ShearY": (-0.99, 0.05, 0.3), "TranslateX": (-20.0, 3.9), "TranslateY": (-3.9, 11.0),
    "Rotate": (-135.0, -30.0, 9.0, 45.0, 90.0), "Brightness": (-0.9, 0.27), "Color": (-0.5, 0.9), "Contrast": (-0.3, 0.9),
    "Sharpness": (-0.9, 0.9), "Posterize": (4.0, 7.0), "Solarize": (0.7, 0.1), "AutoContrast": (0.0,), "Equalize": (0.0,),
    "Invert": (0.0,), "Identity": (0.0,),
}  # fmt: skip


@pytest.mark.usefixtures("compiled")
@each_image
@pytest.mark.parametrize("interpolation", [NEAREST, BILINEAR], ids=["nearest", "bilinear"])
@pytest.mark.parametrize("op", MAGNITUDES)
def test_an_op_of_a_policy_is_exact(op: str, interpolation: int, name: str) -> None:
    torchvision()
    from torchvision.transforms import InterpolationMode, v2

    way = InterpolationMode.NEAREST if interpolation == NEAREST else InterpolationMode.BILINEAR
    policy = v2.AutoAugment()
    for magnitude in MAGNITUDES[op]:
        size = IMAGES[name].shape[:2]
        expected = theirs(
            name,
            lambda _, x, m=magnitude: policy._apply_image_or_video_transform(
                x, op, m, interpolation=way, fill={}
            ),
        )
        np.testing.assert_array_equal(
            ours(name, steps_of(op, magnitude, size, interpolation, None)), expected
        )


# ---- bounds


def difference(mine: Pixels, other: Pixels) -> tuple[int, float]:
    """The greatest and the mean difference."""
    apart = np.abs(mine.astype(int) - other.astype(int))
    return int(apart.max()), float(apart.mean())


@pytest.mark.usefixtures("compiled")
@each_image
@pytest.mark.parametrize("size", [(24, 24), (90, 50), (7, 11), (37, 90), (10, 53), (200, 5), (1, 1)], ids=str)
@pytest.mark.parametrize(
    "way", [Interpolation.BILINEAR, Interpolation.BICUBIC, Interpolation.LANCZOS], ids=lambda way: way.name
)
def test_antialiased_resizing_is_pillows(way: Interpolation, size: tuple[int, int], name: str) -> None:
    mine = ours(name, [Step(Code.RESIZE, (*size, int(way), True))])
    expected = theirs(name, lambda F, x: F.resize(x, list(size), int(way), antialias=True))
    np.testing.assert_array_equal(mine, expected)


def test_any_size_becomes_any_other_as_pillow_has_it() -> None:
    """Pillow 13 begins with the direction that leaves less to do; the roundings in between show which it was."""
    from PIL import Image

    torchvision()
    rng = np.random.default_rng(4)
    for _ in range(300):
        height, width, new_height, new_width = (int(n) for n in rng.integers(1, 130, 4))
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        for way in (Interpolation.BILINEAR, Interpolation.BICUBIC):
            expected = np.asarray(Image.fromarray(pixels).resize((new_width, new_height), int(way)))
            found = execute([Step(Code.RESIZE, (new_height, new_width, int(way), True))], pixels)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("compiled")
def test_a_part_of_an_image_is_resized_without_looking_beyond_it() -> None:
    from PIL import Image

    torchvision()
    rng = np.random.default_rng(3)
    for _ in range(100):
        whole = rng.integers(0, 256, (*rng.integers(20, 90, 2), 3), dtype=np.uint8)
        top, left, height, width = (int(n) for n in rng.integers(1, 19, 4))
        new = tuple(int(n) for n in rng.integers(1, 60, 2))
        program = [Step(Code.CROP, (top, left, height, width)), Step(Code.RESIZE, (*new, BILINEAR, True))]
        part = Image.fromarray(whole).crop((left, top, left + width, top + height))
        expected = np.asarray(part.resize((new[1], new[0]), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(execute(program, whole), expected)


@each_image
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_blur_is_within_one_level(sigma: float, name: str) -> None:
    mine = ours(name, [Step(Code.BLUR, (5, 3, sigma, sigma))])
    most, mean = difference(mine, theirs(name, lambda F, x: F.gaussian_blur(x, [5, 3], [sigma, sigma])))
    assert most <= 1
    assert mean <= 0.35


def test_nearest_resizing_takes_pixels_as_they_are() -> None:
    mine = ours("noise", [Step(Code.RESIZE, (20, 90, NEAREST, False))])
    expected = theirs("noise", lambda F, x: F.resize(x, [20, 90], NEAREST))
    np.testing.assert_array_equal(mine, expected)


# ---- sizes


@pytest.mark.parametrize("size", [10, [10], [30, 20], (200, 7)])
@pytest.mark.parametrize("max_size", [None, 40])
@each_image
def test_resize_aims_at_torchvisions_size(size: Any, max_size: int | None, name: str) -> None:
    if max_size is not None and (not isinstance(size, int) and len(size) == 2):
        pytest.skip("torchvision takes max_size with one side only")
    height, width, _ = IMAGES[name].shape
    expected = theirs(name, lambda F, x: F.resize(x, size, max_size=max_size))
    assert Resize(size, max_size=max_size).target((height, width)) == expected.shape[:2]


@each_image
@pytest.mark.parametrize("size", [(11, 8), (15, 90), (80, 20)], ids=str)
def test_the_middle_is_torchvisions(size: tuple[int, int], name: str) -> None:
    program = CenterCrop(size).draw(Draws(0), IMAGES[name].shape[:2])
    np.testing.assert_array_equal(
        ours(name, program), theirs(name, lambda F, x: F.center_crop(x, list(size)))
    )


def test_padding_may_be_one_number_two_or_four() -> None:
    for padding in (2, [3], [1, 2], [1, 2, 3, 4]):
        program = Pad(padding).draw(Draws(0), (37, 53))
        np.testing.assert_array_equal(
            ours("noise", program), theirs("noise", lambda F, x, p=padding: F.pad(x, p))
        )
