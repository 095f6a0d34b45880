"""A sample prepared with OpenCV, written plainly: what a user would write who leaves Pillow for speed. It does not antialias."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

cv2.setNumThreads(0)

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SIDE = 224
STRENGTH = 9 / 30
"""Magnitude 9 of 31 bins, as RandAugment(2, 9)."""
LEVELS = np.arange(256, dtype=np.float32)
SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
SCALE = [1 / (255 * std) for std in STD]
SHIFT = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]

Image = Any


def read(path: str) -> Image:
    image = cv2.imread(path, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def place(rows: int, columns: int) -> tuple[int, int, int, int]:
    """Top, left, height and width, as RandomResizedCrop draws them."""
    for _ in range(10):
        area = rows * columns * random.uniform(0.08, 1.0)
        shape = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < width <= columns and 0 < height <= rows:
            return random.randint(0, rows - height), random.randint(0, columns - width), height, width
    side = min(rows, columns)
    return (rows - side) // 2, (columns - side) // 2, side, side


def crop(image: Image, at: tuple[int, int, int, int]) -> Image:
    top, left, height, width = at
    part = image[top : top + height, left : left + width]
    return cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)


def warp(image: Image, matrix: list[list[float]]) -> Image:
    """Each pixel of the result comes from where the matrix says."""
    flags = cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(image, np.array(matrix, np.float32), (image.shape[1], image.shape[0]), flags=flags)


def rotate(image: Image, degrees: float) -> Image:
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0)
    return cv2.warpAffine(image, matrix, (width, height), flags=cv2.INTER_NEAREST)


def look_up(image: Image, levels: Any) -> Image:
    return cv2.LUT(image, np.clip(levels, 0, 255).astype(np.uint8))


def contrast(image: Image, factor: float) -> Image:
    mean = round(cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0])
    return look_up(image, mean + (LEVELS - mean) * factor)


def colour(image: Image, factor: float) -> Image:
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(image, factor, grey, 1 - factor, 0)


def sharpness(image: Image, factor: float) -> Image:
    return cv2.addWeighted(image, factor, cv2.filter2D(image, -1, SMOOTH), 1 - factor, 0)


def autocontrast(image: Image) -> Image:
    tables = []
    for channel in cv2.split(image):
        low, high, _, _ = cv2.minMaxLoc(channel)
        levels = (LEVELS - low) * (255 / (high - low)) if high > low else LEVELS
        tables.append(np.clip(levels, 0, 255).astype(np.uint8))
    return cv2.LUT(image, np.stack(tables, axis=-1)[:, None])


def equalize(image: Image) -> Image:
    return cv2.merge([cv2.equalizeHist(channel) for channel in cv2.split(image)])


# Each takes the image and a sign; those without a direction pass over it.
OPS: dict[str, Callable[[Image, int], Image]] = {
    "Identity": lambda i, _: i,
    "ShearX": lambda i, s: warp(i, [[1, s * 0.3 * STRENGTH, 0], [0, 1, 0]]),
    "ShearY": lambda i, s: warp(i, [[1, 0, 0], [s * 0.3 * STRENGTH, 1, 0]]),
    "TranslateX": lambda i, s: warp(i, [[1, 0, s * 150 / 331 * STRENGTH * i.shape[1]], [0, 1, 0]]),
    "TranslateY": lambda i, s: warp(i, [[1, 0, 0], [0, 1, s * 150 / 331 * STRENGTH * i.shape[0]]]),
    "Rotate": lambda i, s: rotate(i, s * 30 * STRENGTH),
    "Brightness": lambda i, s: look_up(i, LEVELS * (1 + s * 0.9 * STRENGTH)),
    "Color": lambda i, s: colour(i, 1 + s * 0.9 * STRENGTH),
    "Contrast": lambda i, s: contrast(i, 1 + s * 0.9 * STRENGTH),
    "Sharpness": lambda i, s: sharpness(i, 1 + s * 0.9 * STRENGTH),
    "Posterize": lambda i, _: look_up(i, np.arange(256) & -(1 << round(4 * STRENGTH))),
    "Solarize": lambda i, _: look_up(i, np.where(LEVELS < 255 * (1 - STRENGTH), LEVELS, 255 - LEVELS)),
    "AutoContrast": lambda i, _: autocontrast(i),
    "Equalize": lambda i, _: equalize(i),
}
CHOICES = list(OPS.values())


def rand_augment(image: Image) -> Image:
    for _ in range(2):
        image = random.choice(CHOICES)(image, random.choice((-1, 1)))
    return image


def normalise(image: Image) -> Image:
    out = np.empty((3, SIDE, SIDE), np.float32)
    for channel in range(3):
        cv2.multiply(image[:, :, channel], SCALE[channel], dst=out[channel], dtype=cv2.CV_32F)
        cv2.add(out[channel], SHIFT[channel], dst=out[channel])
    return out


class Prepare:
    """From a path to float32, channels x height x width."""

    def __init__(self, workload: str) -> None:
        self.workload = workload

    def __call__(self, path: str) -> Image:
        image = read(path)
        if self.workload == "W3":
            image = rand_augment(image)
        image = crop(image, place(*image.shape[:2]))
        if random.random() < 0.5:
            image = cv2.flip(image, 1)
        if self.workload == "W1":
            image = rand_augment(image)
        return normalise(image)
