"""Steps that torchvision runs on a tensor, also for a Pillow image (AugMix, GaussianBlur): the same pixels bit for bit, faster.

Rule 1: ops that depend only on a pixel's level, and perhaps on image statistics, run in torchvision for all 256 levels, then by table. A
        shift by whole pixels is a copy. Sharpening sums neighbours in integers.
Rule 2: torchvision's own functions do the rest (rotations, shears, saturation, blurs).
Rule 3: images are uint8, height x width x channels. torchvision gets a view of the same memory, as for Pillow images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock import accel
from penstock.transforms.steps import Interpolation
from penstock.transforms.tables import look_up

Image = NDArray[np.uint8]
Chain = tuple[float, Sequence[tuple[str, float]]]
LEVELS = np.arange(256, dtype=np.uint8)
SHIFTED_AT_MOST = 2048
"""Largest side for which single precision locates a shifted pixel to well within half a level."""
BY_LEVEL = frozenset({"Brightness", "Solarize"})


def mixed(image: Image, kept: float, chains: Sequence[Chain], version: str, way: int) -> Image:
    """AugMix: the weighted sum of the image and its chains' results, in single precision."""
    total = image.astype(np.float32) * np.float32(kept)
    for weight, ops in chains:
        changed = image
        for name, magnitude in ops:
            changed = applied(changed, name, magnitude, version, way)
        total += changed * np.float32(weight)
    return total.astype(np.uint8)


def applied(image: Image, name: str, magnitude: float, version: str, way: int) -> Image:
    if name in BY_LEVEL:
        levels = torch.from_numpy(LEVELS).reshape(1, 1, 16, 16)
        return look_up(image, theirs(levels, name, magnitude, version, way).numpy().reshape(256))
    if name == "AutoContrast":
        return stretched(image, version, way)
    if name in ("TranslateX", "TranslateY") and max(image.shape[:2]) <= SHIFTED_AT_MOST:
        return shifted(image, int(magnitude), across=name == "TranslateX")
    if name == "Equalize" and (table := accel.equalizing(image)) is not None:
        return look_up(image, table)
    if version == "v2" and name == "Contrast":
        return contrasted(image, 1.0 + magnitude)
    if name == "Sharpness" and min(image.shape[:2]) > 2:
        return sharpened(image, 1.0 + magnitude, version)
    return array(theirs(tensor(image), name, magnitude, version, way))


def theirs(image: torch.Tensor, name: str, magnitude: float, version: str, way: int) -> torch.Tensor:
    """Apply an op with torchvision, as that version's AugMix does."""
    modes = import_module("torchvision.transforms.functional").InterpolationMode
    mode = modes.NEAREST if way == Interpolation.NEAREST else modes.BILINEAR
    if version == "v1":
        apply: Callable[..., Any] = import_module("torchvision.transforms.autoaugment")._apply_op
        found: torch.Tensor = apply(image, name, magnitude, interpolation=mode, fill=None)
        return found
    base = import_module("torchvision.transforms.v2").AugMix
    v2: torch.Tensor = base._apply_image_or_video_transform(
        None, image, name, magnitude, interpolation=mode, fill=NO_FILL
    )
    return v2


NO_FILL = {"others": None}
"""Per input type, as in v2."""


def tensor(image: Image) -> torch.Tensor:
    """Return a batch of one, as torchvision makes it from a Pillow image."""
    if not image.flags.writeable:
        image = image.copy()  # torch warns about read-only memory
    return torch.from_numpy(image).permute(2, 0, 1)[None]


def array(image: torch.Tensor) -> Image:
    found: Image = image[0].permute(1, 2, 0).contiguous().numpy()
    return found


# ---- tables from torchvision


def stretched(image: Image, version: str, way: int) -> Image:
    """AutoContrast depends on each channel's lowest and highest level: run it on an image with all levels between them."""
    # rows first, which vectorises
    lowest, highest = image.min(axis=0).min(axis=0), image.max(axis=0).max(axis=0)
    levels = np.clip(LEVELS[:, None], lowest, highest).astype(np.uint8)
    found = theirs(tensor(levels.reshape(16, 16, -1)), "AutoContrast", 0.0, version, way)
    return look_up(image, array(found).reshape(256, -1))


def contrasted(image: Image, factor: float) -> Image:
    """v2's adjust_contrast, which blends with the mean grey."""
    pixels = tensor(image)
    if image.shape[2] == 3:
        r, g, b = pixels.unbind(dim=-3)
        greys = r.mul(0.2989).add_(g, alpha=0.587).add_(b, alpha=0.114).unsqueeze(dim=-3).floor_()
    else:
        greys = pixels.to(torch.float32)
    mean = torch.mean(greys, dim=(-3, -2, -1), keepdim=True)
    levels = torch.from_numpy(LEVELS).reshape(1, 1, 16, 16)
    table = levels.mul(factor).add_(mean, alpha=(1.0 - factor)).clamp_(0, 255).to(torch.uint8)
    return look_up(image, table.numpy().reshape(256))


# ---- positions and neighbours


def shifted(image: Image, by: int, *, across: bool) -> Image:
    found = np.zeros_like(image, order="C")
    length = image.shape[1] if across else image.shape[0]
    if abs(by) < length:
        to, come = slice(max(0, by), length + min(0, by)), slice(max(0, -by), length - max(0, by))
        if across:
            found[:, to] = image[:, come]
        else:
            found[to] = image[come]
    return found


def sharpened(image: Image, factor: float, version: str) -> Image:
    """adjust_sharpness: the smooth version weighs a pixel 5/13 and its eight neighbours 1/13 each; the border stays. It avoids torch's
    convolutions, which hang on some machines in a process forked from one that used them."""
    wide = image.astype(np.int16)
    rows = wide[:-2] + wide[1:-1]
    rows += wide[2:]
    total = rows[:, :-2] + rows[:, 1:-1]
    total += rows[:, 2:]
    inner = wide[1:-1, 1:-1]
    total += inner * 4 + 6
    smooth = total // 13  # rounded: thirteenths have no halves
    result = np.array(image)
    if version == "v1":
        result[1:-1, 1:-1] = smooth
        blend = factor * tensor(image) + (1.0 - factor) * tensor(result)
        return array(blend.clamp(0, 255).to(torch.uint8))
    found = torch.from_numpy(inner.astype(np.float32))
    difference = torch.from_numpy((smooth - inner).astype(np.float32))
    found.add_(difference, alpha=(1.0 - factor)).clamp_(0, 255)
    result[1:-1, 1:-1] = found.to(torch.uint8).numpy()
    return result


def blurred(image: Image, kernel: tuple[int, int], sigma: tuple[float, float], version: str) -> Image:
    """torchvision's GaussianBlur of a Pillow image."""
    name = "torchvision.transforms.v2.functional" if version == "v2" else "torchvision.transforms.functional"
    found = import_module(name).gaussian_blur(tensor(image), list(kernel), list(sigma))
    return array(found)
