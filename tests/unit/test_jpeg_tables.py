"""Our JPEG decoder with tables of codes that no encoder makes: libjpeg's pixels, or the file is left to libjpeg."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest

pytest.importorskip("PIL.Image")

from PIL import Image

from penstock import accel
from tests.conftest import FULL
from tests.unit.odd_jpegs import odd_jpeg

FILES = 20_000 if FULL else 400
STRETCH = FILES // 4


LOOPS = accel.compiled()


@pytest.mark.skipif(
    LOOPS is None or not accel.jpeg_pays(LOOPS), reason="libjpeg decodes everything on this machine"
)
@pytest.mark.parametrize("first", range(0, FILES, STRETCH))
def test_whatever_codes_are_long_or_rare_pixels_are_those_of_libjpeg(first: int) -> None:
    by_us = 0
    for seed in range(first, first + STRETCH):
        data, (height, width) = odd_jpeg(seed)
        expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        rng = random.Random(seed)
        top, left = rng.randrange(height), rng.randrange(width)
        part = (top, left, rng.randint(1, height - top), rng.randint(1, width - left))
        for window in ((0, 0, height, width), part):
            top, left, rows, columns = window
            found = accel.jpeg(data, (height, width), window, to_the_end=rng.random() < 0.5)
            if found is None:  # values that are no photo's
                continue
            by_us += 1
            assert np.array_equal(found, expected[top : top + rows, left : left + columns]), (seed, window)
    assert by_us > STRETCH
