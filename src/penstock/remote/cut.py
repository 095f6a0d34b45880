"""Samples cut where they have the fewest bytes: uint8 pixels travel, and the ferry does the last step (`transforms.tail`) into their slots.

Both sides derive the form on the way from the batch's layout: its first leaf, an image of floats, is uint8 there, height x width x channels.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from penstock.dataset.unfinished import Unfinished
from penstock.transforms.tail import Tail
from penstock.wire.dtypes import TORCH, TORCH_NAMES
from penstock.wire.layout import Layout, Leaf, Node


class NotCut(Exception):
    """A sample has no earlier form: the dataset has finished it."""


def cut_layout(layout: Layout, dtype: torch.dtype) -> Layout | None:
    """Return the layout of cut samples; None if samples of this layout are not cut."""
    root = layout.root
    if not isinstance(root, Node) or root.type is not tuple:
        return None
    image = root.children[0]
    if (
        not isinstance(image, Leaf)
        or image.kind != "tensor"
        or image.dtype is not dtype
        or len(image.shape) != 3
    ):
        return None
    channels, height, width = image.shape
    pixels = replace(
        image, dtype=torch.uint8, shape=(height, width, channels), nbytes=channels * height * width
    )
    return Layout(replace(root, children=(pixels, *root.children[1:])))


def cut_sample(sample: Any) -> Any:
    """Return a sample with the image's pixels in place of the image."""
    image = sample[0] if type(sample) is tuple and sample else None
    if type(image) is not Unfinished or image.pixels is None:
        raise NotCut
    pixels = image.pixels
    early = Unfinished(torch.uint8, tuple(pixels.shape), lambda slot: np.copyto(slot.numpy(), pixels))
    return (early, *sample[1:])


def finish_rows(tail: Tail, pixels: memoryview, shape: tuple[int, ...], slots: memoryview) -> None:
    """Do the last step for rows of pixels."""
    height, width, channels = shape
    images = np.frombuffer(pixels, np.uint8).reshape(-1, height, width, channels)
    outs = torch.frombuffer(slots, dtype=tail.dtype).view(len(images), channels, height, width)
    for image, out in zip(images, outs, strict=True):
        tail.finish(image, out)


def tail_text(tail: Tail) -> bytes:
    return json.dumps([TORCH_NAMES[tail.dtype], tail.scale, tail.mean, tail.std]).encode()


def tail_of(text: bytes) -> Tail:
    dtype, scale, mean, std = json.loads(text)
    return Tail(TORCH[dtype], scale, tuple(mean), tuple(std))
