"""Samples in torchvision's types, for tests of ops that take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.torchvision_here import torchvision

SIZE = (61, 83)
RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (*SIZE, 3), dtype=np.uint8)
CORNERS = [[10, 5, 30, 45], [0, 0, 83, 61], [70.5, 2.25, 80.75, 60], [40, 30, 41, 31], [1, 55, 20, 61]]
MASK = RNG.integers(0, 1 << 24, SIZE, dtype=np.int64)
MASKS = RNG.integers(0, 2, (5, *SIZE), dtype=np.uint8)


def tv() -> Any:
    torchvision()
    from torchvision import tv_tensors

    return tv_tensors


def pil(pixels: NDArray[np.uint8] = PIXELS) -> Any:
    tv()
    from PIL import Image

    return Image.fromarray(pixels)


def tensor_image(pixels: NDArray[np.uint8] = PIXELS) -> Any:
    return tv().Image(torch.from_numpy(pixels).permute(2, 0, 1).contiguous())


def boxes(form: str = "XYXY", dtype: torch.dtype = torch.float32) -> Any:
    tv()
    from torchvision.transforms.v2 import functional

    corners = tv().BoundingBoxes(torch.tensor(CORNERS, dtype=dtype), format="XYXY", canvas_size=SIZE)
    return functional.convert_bounding_box_format(corners, new_format=form)


def target(form: str = "XYXY") -> dict[str, Any]:
    return {
        "boxes": boxes(form),
        "whole": boxes(form, torch.int64),
        "mask": tv().Mask(torch.from_numpy(MASK)),
        "masks": tv().Mask(torch.from_numpy(MASKS)),
        "points": tv().KeyPoints(torch.tensor([[3.0, 4.0], [80.0, 60.0]]), canvas_size=SIZE),
        "labels": torch.arange(5),
        "name": ("a.jpg", 3, None),
    }


def seeded(seed: int, op: Any, *inputs: Any) -> Any:
    torch.manual_seed(seed)
    return op(*inputs)
