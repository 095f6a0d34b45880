"""Masks and boxes follow their image through geometric steps, as in torchvision's v2.

Rule 1: masks take the nearest pixel, and 0 outside. Their last two axes are height and width: one integer mask, or one mask per object.
Rule 2: boxes are float32, x1 y1 x2 y2 from the image's top left corner. A rotated box becomes the upright one around its corners.
Rule 3: boxes are clamped to the image. At the end, those of less than a pixel a side are dropped, with their labels and masks.
Rule 4: colours, blur and erasing change neither. A step that cannot be followed is an error, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.transforms.libs import pillow
from penstock.transforms.steps import GEOMETRIC, Code, Size, Step, program_size, size_after
from penstock.transforms.windows import is_inside

Masks = NDArray[Any]
Boxes = NDArray[np.float32]

MIN_SIDE = 1.0
"""Pixels; also the minimum area."""
NUMPY_MODES = ("edge", "reflect", "symmetric")


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    masks: Masks | None = None
    """Integers, height x width or objects x height x width."""
    boxes: Boxes | None = None
    """Objects x 4."""
    labels: NDArray[Any] | None = None
    """One per box; unchanged if there are no boxes."""

    @classmethod
    def of(cls, size: Size, masks: Any = None, boxes: Any = None, labels: Any = None) -> Targets:
        """Convert to arrays and check that they fit an image of `size`."""
        found = cls(
            masks=None if masks is None else np.asarray(masks),
            boxes=None if boxes is None else np.asarray(boxes).astype(np.float32).reshape(-1, 4),
            labels=None if labels is None else np.asarray(labels),
        )
        if found.masks is not None and (found.masks.ndim not in (2, 3) or found.masks.shape[-2:] != size):
            raise ValueError(f"masks of shape {found.masks.shape} do not belong to an image of {size}")
        if found.masks is not None and found.masks.dtype.kind not in "biu":
            raise ValueError(f"masks must be integers, got {found.masks.dtype}")
        if found.boxes is not None and found.labels is not None and len(found.boxes) != len(found.labels):
            raise ValueError(f"{len(found.labels)} labels do not belong to {len(found.boxes)} boxes")
        return found

    @property
    def empty(self) -> bool:
        return self.masks is None and self.boxes is None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the targets that are present as tensors that share no memory."""
        found = {"masks": self.masks, "boxes": self.boxes, "labels": self.labels}
        return {
            name: torch.from_numpy(np.array(value, order="C"))
            for name, value in found.items()
            if value is not None
        }


def follow(program: Sequence[Step], targets: Targets, size: Size) -> Targets:
    """Return masks, boxes and labels of an image of `size` after the program."""
    if targets.empty:
        return targets
    check(program, boxes=targets.boxes is not None)
    masks = None if targets.masks is None else moved_masks(program, targets.masks)
    if targets.boxes is None:
        return Targets(masks=masks, labels=targets.labels)
    boxes = clamped(moved_boxes(program, targets.boxes, size), program_size(program, size))
    kept = sound(boxes)
    if masks is not None and masks.ndim == 3 and len(masks) == len(boxes):
        masks = masks[kept]
    labels = None if targets.labels is None else targets.labels[kept]
    return Targets(masks=masks, boxes=boxes[kept], labels=labels)


def moved_masks(program: Sequence[Step], masks: Masks) -> Masks:
    for code, args in program:
        if code in GEOMETRIC:
            masks = MASK_STEPS[code](masks, *args)
    return masks


def moved_boxes(program: Sequence[Step], boxes: Boxes, size: Size) -> Boxes:
    """Move boxes; drop none, and clamp only after steps that can move them out of the image."""
    for step in program:
        if step.code in GEOMETRIC:
            boxes = BOX_STEPS[step.code](boxes, size, *step.args)
            size = size_after(step, size)
    return boxes


def check(program: Sequence[Step], *, boxes: bool) -> None:
    """Refuse steps that masks, or `boxes`, cannot follow."""
    for step in program:
        if step.code is Code.CALL:
            raise ConfigError(
                "a function of your own (Lambda) stands in a chain for images with masks or boxes: it may move pixels "
                "unseen. Apply it to the samples of the dataset instead"
            )
        if step.code in (Code.MIX, Code.MIX_TENSORS):
            raise ConfigError(
                "AugMix lays several versions of an image over each other: masks and boxes fit none"
            )
        if step.code is Code.PAD and boxes and step.args[5] != "constant":
            raise ConfigError(f"padding_mode {step.args[5]!r} repeats objects, for which there are no boxes")


# ---- masks


def crop_masks(masks: Masks, top: int, left: int, height: int, width: int) -> Masks:
    rows, columns = masks.shape[-2:]
    inside = masks[..., max(0, top) : max(0, top + height), max(0, left) : max(0, left + width)]
    if is_inside((top, left, height, width), (rows, columns)):
        return inside
    found = np.zeros((*masks.shape[:-2], height, width), masks.dtype)
    y, x = max(0, -top), max(0, -left)
    found[..., y : y + inside.shape[-2], x : x + inside.shape[-1]] = inside
    return found


def resize_masks(masks: Masks, height: int, width: int, *_: Any) -> Masks:
    rows, columns = masks.shape[-2:]
    if (rows, columns) == (height, width):
        return masks
    return masks[..., nearest(rows, height)[:, None], nearest(columns, width)[None, :]]


def nearest(before: int, after: int) -> NDArray[np.int64]:
    """Return the source index of each of `after` pixels, rounded as torch's "nearest": down, in float32."""
    scale = np.float32(before) / np.float32(after)
    return np.minimum((np.arange(after, dtype=np.float32) * scale).astype(np.int64), before - 1)


def pad_masks(masks: Masks, left: int, top: int, right: int, bottom: int, _: Any, mode: str) -> Masks:
    widths = [(0, 0)] * (masks.ndim - 2) + [(top, bottom), (left, right)]
    found: Masks = np.pad(masks, widths, mode=mode if mode in NUMPY_MODES else "constant")  # type: ignore[call-overload]
    return found


def warp_masks(masks: Masks, *args: Any) -> Masks:
    """Warp with Pillow, like the image. It warps an image of pixel indices, so masks may hold any integers."""
    rows, columns = masks.shape[-2:]
    module = pillow().Image
    places = np.arange(1, rows * columns + 1, dtype=np.int32).reshape(rows, columns)
    way = module.Resampling.NEAREST
    warped = module.fromarray(places).transform((columns, rows), module.Transform.AFFINE, args[:6], way)
    found = np.asarray(warped)
    flat = masks.reshape(*masks.shape[:-2], rows * columns)
    result: Masks = np.where(found > 0, flat[..., np.maximum(found, 1) - 1], masks.dtype.type(0))
    return result


MASK_STEPS: dict[Code, Callable[..., Masks]] = {
    Code.CROP: crop_masks, Code.RESIZE: resize_masks, Code.PAD: pad_masks, Code.AFFINE: warp_masks,
    Code.FLIP_H: lambda masks: masks[..., ::-1], Code.FLIP_V: lambda masks: masks[..., ::-1, :],
}  # fmt: skip


# ---- boxes


def clamped(boxes: Boxes, size: Size) -> Boxes:
    height, width = size
    found: Boxes = np.clip(boxes, np.float32(0), np.array([width, height, width, height], np.float32))
    return found


def sound(boxes: Boxes) -> NDArray[np.bool_]:
    """Whether each box is large enough; one with NaN is not."""
    sides = boxes[:, 2:] - boxes[:, :2]
    kept: NDArray[np.bool_] = (sides >= MIN_SIDE).all(axis=1) & (sides.prod(axis=1) >= MIN_SIDE)
    return kept


def moved(boxes: Boxes, x: int, y: int) -> Boxes:
    return boxes + np.array([x, y, x, y], np.float32)


def crop_boxes(boxes: Boxes, _: Size, top: int, left: int, height: int, width: int) -> Boxes:
    return clamped(moved(boxes, -left, -top), (height, width))


def resize_boxes(boxes: Boxes, size: Size, height: int, width: int, *_: Any) -> Boxes:
    across, down = width / size[1], height / size[0]
    return boxes * np.array([across, down, across, down], np.float32)


def flip_boxes_h(boxes: Boxes, size: Size) -> Boxes:
    found = boxes.copy()
    found[:, [2, 0]] = size[1] - boxes[:, [0, 2]]
    return found


def flip_boxes_v(boxes: Boxes, size: Size) -> Boxes:
    found = boxes.copy()
    found[:, [3, 1]] = size[0] - boxes[:, [1, 3]]
    return found


def pad_boxes(boxes: Boxes, size: Size, left: int, top: int, right: int, bottom: int, *_: Any) -> Boxes:
    return clamped(moved(boxes, left, top), (size[0] + top + bottom, size[1] + left + right))


def warp_boxes(boxes: Boxes, size: Size, *args: Any) -> Boxes:
    """Invert the map: steps say where a pixel comes from, a box needs where it goes."""
    a, b, c, d, e, f = args[:6]
    back = np.linalg.inv(np.array([[a, b, c], [d, e, f], [0, 0, 1]], np.float64))
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2).astype(np.float64)
    gone = corners @ back[:2, :2].T + back[:2, 2]
    around = np.concatenate([gone.min(axis=1), gone.max(axis=1)], axis=1).astype(np.float32)
    return clamped(around, size)


BOX_STEPS: dict[Code, Callable[..., Boxes]] = {
    Code.CROP: crop_boxes, Code.RESIZE: resize_boxes, Code.FLIP_H: flip_boxes_h, Code.FLIP_V: flip_boxes_v,
    Code.PAD: pad_boxes, Code.AFFINE: warp_boxes,
}  # fmt: skip
