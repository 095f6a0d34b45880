"""What is cropped away later is not made: the result is the same as where each step is done on the whole image."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cv2")
pytest.importorskip("PIL.Image")

from penstock import accel
from penstock.pipeline.chain import executed, opened
from penstock.pipeline.decode import Encoded
from penstock.transforms import cpu
from penstock.transforms.cpu import execute
from penstock.transforms.steps import Code, Program, Step, size_after
from penstock.transforms.windows import stages
from tests.conftest import FULL
from tests.unit.test_jpeg_parts import jpeg_of, photo


@pytest.fixture(autouse=True, scope="module")
def no_image_is_small() -> Iterator[None]:
    """Of small ones all is made at once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cpu, "SMALL", 0)
        yield


factors = st.sampled_from([0.2, 0.8, 1.3, 1.9])
whole_numbers = st.integers(-30, 30).map(float)


def turned(degrees: float, shift: float) -> tuple[float, ...]:
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return cos, sin, shift, -sin, cos, -shift


affines = st.one_of(
    st.builds(turned, st.floats(-90, 90), st.floats(-20, 20)),
    st.builds(lambda x, y: (1.0, 0.0, x, 0.0, 1.0, y), whole_numbers, whole_numbers),
    st.builds(
        lambda level, shift: (1.0, level, shift, 0.0, 1.0, 0.0), st.floats(-0.9, 0.9), st.floats(-9, 9)
    ),
    st.builds(lambda level: (1.0, 0.0, 0.0, level, 1.0, 0.0), st.floats(-0.9, 0.9)),
    st.just((0.5, 0.0, 3.0, 0.0, 2.0, 0.0)),
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[tuple[int, int], Program]:
    """Steps of every kind that knows of windows, and some that do not."""
    first = size = draw(st.tuples(st.integers(4, 60), st.integers(4, 60)))
    program: Program = []
    for _ in range(draw(st.integers(1, 6))):
        height, width = (draw(st.integers(1, side)) for side in size)
        place = (draw(st.integers(0, size[0] - height)), draw(st.integers(0, size[1] - width)), height, width)
        step = draw(
            st.one_of(
                st.just(Step(Code.CROP, place)),
                st.just(Step(Code.CROP, (place[0] - 2, place[1], height + 3, width + 1))),
                st.sampled_from(
                    [Step(Code.FLIP_H), Step(Code.FLIP_V), Step(Code.INVERT), Step(Code.AUTOCONTRAST)]
                ),
                st.sampled_from(
                    [Step(Code.EQUALIZE), Step(Code.GRAY, (3,)), Step(Code.RESIZE, (20, 30, 2, True))]
                ),
                st.sampled_from([Step(Code.PAD, (1, 2, 3, 4, 7, "constant")), Step(Code.POSTERIZE, (3,))]),
                st.builds(
                    lambda code, factor: Step(code, (factor,)),
                    st.sampled_from([Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION, Code.SHARPNESS]),
                    factors,
                ),
                st.builds(
                    lambda matrix, way, fill: Step(Code.AFFINE, (*matrix, way, fill)),
                    affines,
                    st.sampled_from([0, 0, 0, 2]),
                    st.sampled_from([0, (9, 200, 30)]),
                ),
            )
        )
        program.append(step)
        size = size_after(step, size)
    return first, program


def image_of(size: tuple[int, int]) -> Any:
    return np.random.default_rng(size[0] * 100 + size[1]).integers(0, 256, (*size, 3)).astype(np.uint8)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "without a compiler"])
@settings(max_examples=600 if FULL else 150, deadline=None)
@given(case=programs())
def test_windows_change_no_pixel(compiled: bool, case: tuple[tuple[int, int], Program]) -> None:
    size, program = case
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(accel, "compiled", lambda: None)
        step_by_step = image_of(size)
        for step in program:
            step_by_step = execute([step], step_by_step)
        assert np.array_equal(execute(program, image_of(size)), step_by_step)
        plan = stages(program, size)
        top, left, height, width = plan[0].window
        part = image_of(size)[top : top + height, left : left + width]
        assert np.array_equal(execute(program, part, plan), step_by_step)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "without a compiler"])
@pytest.mark.parametrize("new", [(80, 90), (70, 75), (20, 110)], ids=str)
@pytest.mark.parametrize("then", ["nothing", "a crop", "brightness", "another flip"])
def test_a_flip_behind_a_resize_is_done_with_it(
    then: str, new: tuple[int, int], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the image has that size already, and where only a part of the result is wanted."""
    if not compiled:
        monkeypatch.setattr(accel, "compiled", lambda: None)
    more = {
        "nothing": [],
        "a crop": [Step(Code.CROP, (3, 5, 9, 11))],
        "brightness": [Step(Code.BRIGHTNESS, (1.5,))],
        "another flip": [Step(Code.FLIP_H)],
    }
    program = [Step(Code.RESIZE, (*new, 2, True)), Step(Code.FLIP_H), *more[then]]
    expected = image_of((80, 90))
    for step in program:
        expected = execute([step], expected)
    assert np.array_equal(execute(program, image_of((80, 90))), expected)


@pytest.mark.parametrize("flips", [[], [Step(Code.FLIP_H)], [Step(Code.FLIP_V)], [Step(Code.FLIP_H)] * 2])
@pytest.mark.parametrize("place", [(3, 5, 70, 60), (0, 0, 80, 90), (3, 5, 32, 32), (-4, 60, 50, 50)])
@pytest.mark.parametrize("how", [(2, True), (3, True), (0, False), (2, False)])
def test_a_part_that_is_resized_is_what_its_steps_make_one_by_one(
    flips: Program, place: tuple[int, ...], how: tuple[int, bool]
) -> None:
    expected = image_of((80, 90))
    program = [Step(Code.CROP, place), Step(Code.RESIZE, (32, 32, *how)), *flips]
    for step in program:
        expected = execute([step], expected)
    assert np.array_equal(execute(program, image_of((80, 90))), expected)


def test_a_crop_at_the_end_is_all_that_is_needed_unless_a_step_looks_at_all() -> None:
    crop = Step(Code.CROP, (10, 20, 5, 6))
    assert stages([Step(Code.FLIP_H), Step(Code.BRIGHTNESS, (2.0,)), crop], (40, 50))[0].window == (
        10,
        24,
        5,
        6,
    )
    shift = Step(Code.AFFINE, (1.0, 0.0, 3.0, 0.0, 1.0, 0.0, 0, 0))
    needed = stages([shift, crop], (40, 50))[0].window
    assert needed.height * needed.width < 100
    assert stages([Step(Code.EQUALIZE), crop], (40, 50))[0].is_whole


@given(programs(), st.booleans(), st.integers(0, 3))
@settings(max_examples=2000 if FULL else 60, deadline=None)
def test_what_is_left_of_a_program_on_the_pixels_it_needs_makes_the_same(
    drawn: tuple[tuple[int, int], Program], fast: bool, seed: int
) -> None:
    """An image may be opened in one place and finished in another."""
    (height, width), program = drawn
    image = Encoded(jpeg_of(photo(height, width, seed), quality=80), fast=fast)
    rest, pixels = opened(program, image)
    assert np.array_equal(execute(rest, pixels), executed(program, image))
