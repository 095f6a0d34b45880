"""Sizes that no image can have are refused where an op is made, not by an empty tensor later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL.Image")

from PIL import Image

from penstock import transforms as ours
from penstock.errors import ConfigError
from tests.torchvision_here import torchvision

NO_SIZES: list[Any] = [0, -3, (0, 5), (5, 0), (5, -1), (), (1, 2, 3), 8.5, (8.5,), "8"]


@pytest.mark.parametrize("size", NO_SIZES)
@pytest.mark.parametrize("op", ["Resize", "CenterCrop", "RandomCrop", "RandomResizedCrop"])
def test_a_size_that_is_none_is_refused_by_the_constructor(op: str, size: Any) -> None:
    with pytest.raises(ConfigError, match="size must be one number above 0, or"):
        getattr(ours, op)(size)


@pytest.mark.parametrize("size", NO_SIZES)
def test_torchvision_refuses_the_same_sizes(size: Any) -> None:
    torchvision()
    from torchvision.transforms import v2

    with pytest.raises((ValueError, TypeError)):
        v2.Resize(size)(Image.new("RGB", (30, 20)))


@pytest.mark.parametrize(
    ("size", "max_size", "said"),
    [
        (None, None, "needs max_size when size is None"),
        (None, 0, "max_size must be above 0"),
        (8, 8, "above the shorter side"),
        ((8,), 4, "above the shorter side"),
        ((8, 9), 20, "gives both sides"),
    ],
)
def test_a_max_size_that_cannot_be_kept_is_refused_by_the_constructor(
    size: Any, max_size: int | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        ours.Resize(size, max_size=max_size)
    torchvision()
    from torchvision.transforms import v2

    with pytest.raises(ValueError, match=r"size|height"):
        v2.Resize(size, max_size=max_size)(Image.new("RGB", (30, 20)))


@pytest.mark.parametrize(("size", "max_size"), [(None, 5), (1, 2), ((8,), 10)])
def test_an_image_of_which_nothing_would_be_left_is_an_error_of_its_sample(size: Any, max_size: int) -> None:
    thin = np.zeros((20, 300, 3), np.uint8)
    with pytest.raises(ValueError, match="leaves no pixel of an image of 20 x 300"):
        ours.Resize(size, max_size=max_size)(Image.fromarray(thin))


@pytest.mark.parametrize(
    ("size", "max_size"), [(7, None), ((7,), 30), ((7, 9), None), (None, 12), (np.int64(7), None)]
)
def test_sizes_that_can_be_are_torchvisions(size: Any, max_size: int | None) -> None:
    torchvision()
    from torchvision.transforms import v2

    image = Image.new("RGB", (30, 20))
    said = int(size) if isinstance(size, np.int64) else size
    found = ours.Resize(size, max_size=max_size)(image)
    assert found.size == v2.Resize(said, max_size=max_size)(image).size
