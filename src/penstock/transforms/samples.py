"""Apply steps to samples as torchvision's v2 takes them: pytrees of images, masks, boxes and anything else.

Rule 1: one draw transforms the whole sample.
Rule 2: Pillow images and tv_tensors are what their types say. If there is no image among them, the first plain tensor of two or more
        dimensions is the image. Everything else passes through.
Rule 3: our steps handle uint8 images, masks and upright float32 boxes. torchvision's kernels handle other kinds, with the same steps. User
        functions and torchvision's ops, which are no steps, are called on the sample.
Rule 4: a sample keeps its structure, and each value its type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum, auto
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.errors import ConfigError
from penstock.torch_private import tree_flatten, tree_unflatten
from penstock.transforms.cpu import array, execute, picture
from penstock.transforms.libs import torchvision_v2
from penstock.transforms.steps import (
    GEOMETRIC,
    Code,
    Drawing,
    Program,
    Size,
    Step,
    drawn_in_row,
    program_size,
)
from penstock.transforms.targets import check, moved_boxes, moved_masks


class ValueKind(Enum):
    PICTURE = auto()
    """A Pillow image."""
    TENSOR = auto()
    """The plain tensor taken for an image."""
    IMAGE = auto()
    """torchvision's Image or Video."""
    MASK = auto()
    BOXES = auto()
    POINTS = auto()
    OTHER = auto()


IMAGES = frozenset({ValueKind.PICTURE, ValueKind.TENSOR, ValueKind.IMAGE})
TV_TENSORS = {
    "Image": ValueKind.IMAGE,
    "Video": ValueKind.IMAGE,
    "Mask": ValueKind.MASK,
    "BoundingBoxes": ValueKind.BOXES,
    "KeyPoints": ValueKind.POINTS,
}


# ---- the values of a sample


def kinds_of(values: Sequence[Any]) -> list[ValueKind]:
    kinds = [kind_of(value) for value in values]
    plain = [at for at, kind in enumerate(kinds) if kind is ValueKind.TENSOR and values[at].ndim >= 2]
    taken = plain[:1] if not {ValueKind.PICTURE, ValueKind.IMAGE} & set(kinds) else []
    return [
        ValueKind.OTHER if kind is ValueKind.TENSOR and at not in taken else kind
        for at, kind in enumerate(kinds)
    ]


def kind_of(value: Any) -> ValueKind:
    """Check imported libraries only: a value cannot come from one that is not imported."""
    if isinstance(value, torch.Tensor):
        known = sys.modules.get("torchvision.tv_tensors")
        if known is None or not isinstance(value, known.TVTensor):
            return ValueKind.TENSOR
        found = (kind for name, kind in TV_TENSORS.items() if isinstance(value, getattr(known, name, ())))
        return next(found, ValueKind.OTHER)
    pictures = sys.modules.get("PIL.Image")
    return (
        ValueKind.PICTURE if pictures is not None and isinstance(value, pictures.Image) else ValueKind.OTHER
    )


def size_of(value: Any, kind: ValueKind) -> Size:
    if kind is ValueKind.PICTURE:
        return value.height, value.width
    height, width = value.canvas_size if kind in (ValueKind.BOXES, ValueKind.POINTS) else value.shape[-2:]
    return height, width


def common_size(values: Sequence[Any], kinds: Sequence[ValueKind]) -> Size:
    sizes = {
        size_of(value, kind) for value, kind in zip(values, kinds, strict=True) if kind is not ValueKind.OTHER
    }
    if not sizes:
        raise TypeError("there is no image in the sample, nor a mask, boxes or points")
    if len(sizes) > 1:
        raise ValueError(f"a sample is moved as one, but its parts are of several sizes: {sorted(sizes)}")
    return sizes.pop()


def wrapped(tensor: torch.Tensor, like: Any, **changed: Any) -> Any:
    """Return a tensor as the same type as `like`."""
    known = sys.modules.get("torchvision.tv_tensors")
    if known is None or not isinstance(like, known.TVTensor):
        return tensor
    return known.wrap(tensor, like=like, **changed)


# ---- steps


def moved_sample(drawings: Iterable[Drawing], sample: Any) -> Any:
    """Draw for the sample's size and apply the program to all its values."""
    values, spec = tree_flatten(sample)
    kinds = kinds_of(values)
    before = common_size(values, kinds)
    program = drawn_in_row(drawings, before)
    if not program:
        return sample
    if not IMAGES.issuperset(set(kinds) - {ValueKind.OTHER}):
        check(program, boxes=bool({ValueKind.BOXES, ValueKind.POINTS} & set(kinds)))
    moved = [
        value if kind is ValueKind.OTHER else MOVES[kind](filled(program, value), value, before)
        for value, kind in zip(values, kinds, strict=True)
    ]
    return tree_unflatten(moved, spec)


FILLS = {Code.PAD: 4, Code.AFFINE: 7}
"""Position of the fill in a step's arguments."""


def filled(program: Program, value: Any) -> Program:
    """Select the fill for this value's type, if there is one per type, as in torchvision."""
    found = []
    for code, args in program:
        at = FILLS.get(code)
        if at is not None and isinstance(args[at], Mapping):
            fills = args[at]
            fill = next((fills[kind] for kind in type(value).__mro__ if kind in fills), fills.get("others"))
            args = (*args[:at], 0 if fill is None else fill, *args[at + 1 :])  # noqa: PLW2901
        found.append(Step(code, args))
    return found


def moved_image(program: Program, value: Any, _: Size) -> Any:
    frames = pixels(value)
    if frames is None:
        return by_torchvision(program, value)
    done = [execute(program, frame) for frame in frames]
    if not isinstance(value, torch.Tensor):
        return picture(np.ascontiguousarray(done[0]))
    return stacked([torch.from_numpy(np.ascontiguousarray(one.transpose(2, 0, 1))) for one in done], value)


def pixels(value: Any) -> list[NDArray[np.uint8]] | None:
    """Return an image, or every frame of a video, as our steps take it; None if unsupported."""
    if not isinstance(value, torch.Tensor):
        return [array(value)] if value.mode in ("L", "RGB") else None
    fits = value.dtype == torch.uint8 and value.ndim >= 3 and value.shape[-3] in (1, 3) and value.numel() > 0
    if not fits or value.device.type != "cpu":
        return None
    frames = (
        value.as_subclass(torch.Tensor).flatten(0, -4)
        if value.ndim > 3
        else [value.as_subclass(torch.Tensor)]
    )
    return [np.ascontiguousarray(frame.permute(1, 2, 0).numpy()) for frame in frames]


def stacked(frames: list[torch.Tensor], like: torch.Tensor) -> Any:
    if like.ndim == 3:
        return wrapped(frames[0], like)
    return wrapped(torch.stack(frames).reshape(*like.shape[:-3], *frames[0].shape), like)


def moved_mask(program: Program, value: Any, _: Size) -> Any:
    numbers = {
        step.args[4] for step in program if step.code is Code.PAD and isinstance(step.args[4], (int, float))
    }
    if numbers - {0} or value.dtype == torch.bfloat16 or value.device.type != "cpu":
        return by_torchvision(geometry(program), value)
    found = moved_masks(program, value.as_subclass(torch.Tensor).detach().numpy())
    return wrapped(torch.from_numpy(np.ascontiguousarray(found)), value)


def moved_tv_boxes(program: Program, value: Any, size: Size) -> Any:
    upright = value.format.value in ("XYXY", "XYWH", "CXCYWH")
    clamps = getattr(value, "clamping_mode", "soft") is not None
    if not upright or not clamps or value.dtype != torch.float32 or value.device.type != "cpu":
        return by_torchvision(geometry(program), value)
    convert, corners = torchvision_v2().functional.convert_bounding_box_format, type(value.format).XYXY
    boxes = convert(value.as_subclass(torch.Tensor).detach(), old_format=value.format, new_format=corners)
    found = torch.from_numpy(np.ascontiguousarray(moved_boxes(program, boxes.numpy(), size)))
    found = convert(found, old_format=corners, new_format=value.format)
    return wrapped(found, value, canvas_size=program_size(program, size))


MOVES: dict[ValueKind, Callable[[Program, Any, Size], Any]] = {
    ValueKind.PICTURE: moved_image, ValueKind.TENSOR: moved_image, ValueKind.IMAGE: moved_image,
    ValueKind.MASK: moved_mask, ValueKind.BOXES: moved_tv_boxes,
    ValueKind.POINTS: lambda program, value, _: by_torchvision(geometry(program), value),
}  # fmt: skip


def geometry(program: Program) -> Program:
    return [step for step in program if step.code in GEOMETRIC]


# ---- torchvision's kernels, driven by the same steps


def by_torchvision(program: Program, value: Any) -> Any:
    functional = torchvision_v2().functional
    for code, args in program:
        if code not in THEIRS:
            raise ConfigError(
                f"{code.name.lower()} can be done to uint8 images (grey or RGB), their masks and upright float32 boxes, "
                f"not to this {type(value).__name__}: put it before the op that made it so, or leave it out"
            )
        value = THEIRS[code](functional, value, *args)
    return value


def solarized(functional: Any, value: Any, threshold: float) -> Any:
    in_floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return functional.solarize(value, threshold / 255 if in_floats else threshold)


def erased(
    functional: Any, value: Any, top: int, left: int, height: int, width: int, fill: Any, seed: int
) -> Any:
    if fill is None:
        shape = (functional.get_num_channels(value), height, width)
        patch = np.random.Generator(np.random.Philox(seed)).normal(0.0, 1.0, shape)
    else:
        patch = np.asarray(fill, np.float64).reshape(-1, 1, 1)
    return functional.erase(value, top, left, height, width, torch.from_numpy(patch).float())


THEIRS: dict[Code, Callable[..., Any]] = {
    Code.CROP: lambda f, x, *place: f.crop(x, *place),
    Code.RESIZE: lambda f, x, h, w, way, smooth: f.resize(x, [h, w], interpolation=way, antialias=smooth),
    Code.FLIP_H: lambda f, x: f.horizontal_flip(x),
    Code.FLIP_V: lambda f, x: f.vertical_flip(x),
    Code.PAD: lambda f, x, *args: f.pad(x, list(args[:4]), fill=args[4], padding_mode=args[5]),
    Code.BRIGHTNESS: lambda f, x, factor: f.adjust_brightness(x, factor),
    Code.POSTERIZE: lambda f, x, bits: f.posterize(x, bits),
    Code.SOLARIZE: solarized,
    Code.INVERT: lambda f, x: f.invert(x),
    Code.CONTRAST: lambda f, x, factor: f.adjust_contrast(x, factor),
    Code.AUTOCONTRAST: lambda f, x: f.autocontrast(x),
    Code.EQUALIZE: lambda f, x: f.equalize(x),
    Code.SATURATION: lambda f, x, factor: f.adjust_saturation(x, factor),
    Code.HUE: lambda f, x, shift: f.adjust_hue(x, shift),
    Code.GRAY: lambda f, x, channels: f.rgb_to_grayscale(x, num_output_channels=channels),
    Code.SHARPNESS: lambda f, x, factor: f.adjust_sharpness(x, factor),
    Code.BLUR: lambda f, x, w, h, across, down: f.gaussian_blur(x, [w, h], [across, down]),
    Code.ERASE: erased,
}


def theirs(op: Any) -> Any:
    """Return torchvision's op with the same name and parameters."""
    given = {entry.name: getattr(op, entry.name) for entry in fields(op)}
    changed = {entry.name for entry in fields(op) if given[entry.name] != entry.default}
    return getattr(torchvision_v2(), op.name)(**{name: given[name] for name in changed})
