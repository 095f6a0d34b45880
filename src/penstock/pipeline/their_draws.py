"""Turn torchvision's transforms into programs. torchvision's own code draws, from torch's generator, on a stand-in image without pixels.

Rule 1: only exact types are supported. Parameters that our steps lack raise `Unadoptable`, and the transform stays a Python call.
Rule 2: docs/transforms.md lists the supported ones, and why the others stay calls; a test compares.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from penstock.transforms.augment import rotation, steps_of
from penstock.transforms.draws import Draws
from penstock.transforms.ops import CenterCrop, Pad, Resize
from penstock.transforms.steps import Code, Program, Size, Step, drawn_in_row

Draw = Callable[[Any, Size], Program]
NO_DRAWS = Draws(0)
WAYS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


class Unadoptable(Exception):
    """Our ops do not support a parameter; the transform stays a Python call."""


def stand_in(size: Size) -> torch.Tensor:
    """Return an image with this size and no pixels."""
    return torch.empty((3, *size), dtype=torch.uint8, device="meta")


def way(mode: Any) -> int:
    name = getattr(mode, "value", mode)
    if name not in WAYS:
        raise Unadoptable(f"interpolation {name}")
    return WAYS[name]


def fill_of(op: Any) -> Any:
    """Return the one fill of a transform; v2 stores one per input type."""
    fill = getattr(op, "fill", None)
    if isinstance(fill, dict):
        raise Unadoptable("fill per type")
    return 0 if fill is None else fill


def whole_fill(op: Any) -> Any:
    """Return the fill as integers: torchvision truncates fractions. A list of one number stands for all channels."""
    fill = fill_of(op)
    values = fill if isinstance(fill, (tuple, list)) else (fill,)
    if not all(isinstance(value, int) for value in values):
        raise Unadoptable("fill in fractions")
    if len(values) not in (1, 3):
        raise Unadoptable("fill of other channels")
    return values[0] if len(values) == 1 else tuple(values)


def check_padding(padding: Any) -> None:
    """Refuse negative padding, which torchvision takes as a crop."""
    if any(side < 0 for side in (padding if isinstance(padding, (tuple, list)) else (padding,))):
        raise Unadoptable("negative padding")


# ---- sizes and positions


def resize(op: Any, size: Size) -> Program:
    # torchvision always antialiases Pillow images, whatever `antialias` says.
    return Resize(op.size, way(op.interpolation), op.max_size, True).draw(NO_DRAWS, size)


def pad(op: Any, size: Size) -> Program:
    check_padding(op.padding)
    return Pad(op.padding, whole_fill(op), getattr(op.padding_mode, "value", op.padding_mode)).draw(
        NO_DRAWS, size
    )


def random_resized_crop(op: Any, size: Size) -> Program:
    if hasattr(op, "make_params"):
        place = op.make_params([stand_in(size)])
        top, left, height, width = (place[name] for name in ("top", "left", "height", "width"))
    else:
        top, left, height, width = op.get_params(stand_in(size), op.scale, op.ratio)
    step = Step(Code.RESIZE, (*op.size, way(op.interpolation), True))
    return [Step(Code.CROP, (top, left, height, width)), step]


def random_crop(op: Any, size: Size) -> Program:
    if not hasattr(op, "make_params"):
        if op.padding is not None or op.pad_if_needed:
            raise Unadoptable("padding")
        top, left, height, width = op.get_params(stand_in(size), op.size)
        return [Step(Code.CROP, (top, left, height, width))]
    fill = fill_of_crop(op)
    params = op.make_params([stand_in(size)])
    program: list[Step] = []
    if params["needs_pad"]:
        left, top, right, bottom = params["padding"]
        program.append(Step(Code.PAD, (left, top, right, bottom, fill, op.padding_mode)))
    if params["needs_crop"]:
        program.append(Step(Code.CROP, tuple(params[name] for name in ("top", "left", "height", "width"))))
    return program


def fill_of_crop(op: Any) -> Any:
    """Return the fill of v2's RandomCrop, which ignores it unless it pads."""
    check_padding(op.padding or 0)
    return whole_fill(op) if op.padding is not None or op.pad_if_needed else 0


def color_jitter(op: Any, size: Size) -> Program:
    if hasattr(op, "make_params"):
        found = op.make_params([stand_in(size)])
        order = found["fn_idx"]
        factors = [found[f"{name}_factor"] for name in ("brightness", "contrast", "saturation", "hue")]
    else:
        order, *factors = op.get_params(op.brightness, op.contrast, op.saturation, op.hue)
    codes = (Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION, Code.HUE)
    return [Step(codes[at], (float(factors[at]),)) for at in map(int, order) if factors[at] is not None]


def policy(op: Any, size: Size) -> Program:
    """Record the ops that v2's RandAugment, AutoAugment or TrivialAugmentWide draws on the stand-in."""
    program: list[Step] = []
    recorder = copy.copy(op)
    interpolation, fill = way(op.interpolation), fill_of_policy(op)

    def note(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        program.extend(steps_of(name, magnitude, size, interpolation, fill))
        return image

    object.__setattr__(recorder, "_apply_image_or_video_transform", note)
    recorder.forward(stand_in(size))
    return program


def old_policy(op: Any, size: Size) -> Program:
    """The same for v1: its code calls a module function for each op, so a copy of that code calls ours."""
    program: list[Step] = []
    interpolation, fill = way(op.interpolation), fill_of_policy(op)

    def note(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        # v1 passes Solarize's level, v2 its fraction of white
        plain = [Step(Code.SOLARIZE, (magnitude,))]
        program.extend(plain if name == "Solarize" else steps_of(name, magnitude, size, interpolation, fill))
        return image

    forward = type(op).forward
    FunctionType(forward.__code__, {**forward.__globals__, "_apply_op": note})(op, stand_in(size))
    return program


def fill_of_policy(op: Any) -> Any:
    if op.fill is not None:
        raise Unadoptable("fill")
    return 0


# ---- applied with probability p


def happens(op: Any) -> bool:
    """Draw whether a transform with a `p` applies, as torchvision does."""
    return bool(torch.rand(1) < op.p)


def by_chance(code: Code, parameter: str, op: Any, _: Size) -> Program:
    """Draw one step, with the named parameter of the transform if any."""
    if not happens(op):
        return []
    return [Step(code, (float(getattr(op, parameter)),) if parameter else ())]


def posterize(op: Any, _: Size) -> Program:
    if not isinstance(op.bits, int) or not 1 <= op.bits <= 8:
        raise Unadoptable("bits that Pillow refuses")
    return [Step(Code.POSTERIZE, (op.bits,))] if happens(op) else []


def zoom_out(op: Any, size: Size) -> Program:
    fill = whole_fill(op)
    if not happens(op):
        return []
    return [Step(Code.PAD, (*op.make_params([stand_in(size)])["padding"], fill, "constant"))]


# ---- rotated, and resized at random


def random_rotation(op: Any, size: Size) -> Program:
    if op.expand or op.center is not None:
        raise Unadoptable("expand or center")
    if op.degrees[0] == op.degrees[1]:
        raise Unadoptable("a fixed angle, which Pillow may do another way")
    fill, how = whole_fill(op), way(op.interpolation)
    if hasattr(op, "make_params"):
        angle = op.make_params([])["angle"]
    else:
        angle = op.get_params(op.degrees)
    return [Step(Code.AFFINE, (*rotation(angle, size), how, fill))] if angle % 360 else []


def random_affine(op: Any, size: Size) -> Program:
    fill, how = whole_fill(op), way(op.interpolation)
    if hasattr(op, "make_params"):
        found = op.make_params([stand_in(size)])
        angle, translate, scale, shear = (found[name] for name in ("angle", "translate", "scale", "shear"))
    else:
        angle, translate, scale, shear = op.get_params(
            op.degrees, op.translate, op.scale, op.shear, [size[1], size[0]]
        )
    center = [size[1] * 0.5, size[0] * 0.5] if op.center is None else list(op.center)
    # The versions' functions differ in the last bits.
    module = "v2.functional._geometry" if version(op) == "v2" else "functional"
    inverse = sys.modules[f"torchvision.transforms.{module}"]._get_inverse_affine_matrix
    matrix = inverse(center, float(angle), list(translate), scale, list(shear))
    return [Step(Code.AFFINE, (*map(float, matrix), how, fill))]


def resize_drawn(op: Any, size: Size) -> Program:
    """RandomResize, RandomShortestSize and ScaleJitter: they differ only in how they draw the size."""
    new = op.make_params([stand_in(size)])["size"]
    return Resize(list(new), way(op.interpolation), None, True).draw(NO_DRAWS, size)


def gaussian_blur(op: Any, _: Size) -> Program:
    """torchvision blurs a tensor, also of a Pillow image. So does this step; it names the version whose kernel it uses."""
    if hasattr(op, "make_params"):
        across, down = op.make_params([])["sigma"]
    else:
        across = down = op.get_params(op.sigma[0], op.sigma[1])
    width, height = op.kernel_size
    return [Step(Code.BLUR, (int(width), int(height), across, down, version(op)))]


def version(op: Any) -> str:
    return "v2" if type(op).__module__.startswith("torchvision.transforms.v2") else "v1"


# ---- AugMix


def aug_mix(op: Any, size: Size) -> Program:
    """Record AugMix (v1 or v2): run its `forward` on a one-pixel tensor that claims the image's size. AugMix works on tensors, also for a
    Pillow image, so its ops are those for tensors (`transforms.tensors`)."""
    if op.fill is not None:
        raise Unadoptable("fill")
    how, pixel = way(op.interpolation), torch.zeros((3, 1, 1), dtype=torch.uint8)
    if how not in (WAYS["nearest"], WAYS["bilinear"]):
        raise Unadoptable("interpolation that tensors do not have")
    weights, chains = list[torch.Tensor](), list[list[tuple[str, float]]]()
    last = None

    def dirichlet(params: Any) -> Any:
        weights.append(type(op)._sample_dirichlet(op, params))
        return weights[-1]

    def note(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        nonlocal last
        if image is not last:  # each chain starts from the original image
            chains.append([])
        chains[-1].append((name, float(magnitude)))
        last = image.clone()
        return last

    recorder = copy.copy(op)
    object.__setattr__(recorder, "_sample_dirichlet", dirichlet)
    object.__setattr__(recorder, "_apply_image_or_video_transform", note)
    forward = type(op).forward
    known = {
        "_apply_op": note,
        "get_size": lambda _: list(size),
        "F": SimpleNamespace(get_dimensions=lambda _: [3, *size]),
    }
    FunctionType(forward.__code__, {**forward.__globals__, **known})(recorder, pixel)
    beta, shares = weights
    combined = (shares * beta[:, 1].reshape(1, 1))[0].tolist()  # in single precision, as torchvision
    mixed = tuple((weight, tuple(chain)) for weight, chain in zip(combined, chains, strict=True))
    return [Step(Code.MIX_TENSORS, (float(beta[0, 0]), mixed, version(op), how))]


# ---- containers: `AdoptedChain.check` has made sure that all inner transforms are supported


def all_drawn(ops: Any, size: Size) -> Program:
    known = adopters()
    return drawn_in_row(((known[type(op)], op) for op in ops), size)


def random_apply(op: Any, size: Size) -> Program:
    drawn = torch.rand(1)
    applies = drawn < op.p if hasattr(op, "make_params") else op.p >= drawn  # v2, v1
    return all_drawn(op.transforms, size) if applies else []


def random_choice(op: Any, size: Size) -> Program:
    at = int(torch.multinomial(torch.tensor(op.p), 1))
    return all_drawn([op.transforms[at]], size)


def random_order(op: Any, size: Size) -> Program:
    order = torch.randperm(len(op.transforms)).tolist()
    return all_drawn([op.transforms[at] for at in order], size)


def nested(op: Any) -> Iterator[Any]:
    """Yield a transform and all its inner transforms."""
    yield op
    if type(op).__name__ in CONTAINERS:
        for part in op.transforms:
            yield from nested(part)


METHODS = {"forward", "transform", "make_params", "get_params", "__call__"}


def is_patched(op: Any) -> bool:
    """Whether a transform instance overrides methods of its type or has hooks."""
    own = getattr(op, "__dict__", {})
    return bool(METHODS & own.keys() or own.get("_forward_hooks") or own.get("_forward_pre_hooks"))


# ---- supported transforms


CONTAINERS = ("Compose", "RandomApply", "RandomChoice", "RandomOrder")
BOTH: dict[str, Draw] = {
    "Resize": resize, "CenterCrop": lambda op, size: CenterCrop(op.size).draw(NO_DRAWS, size), "Pad": pad,
    "RandomResizedCrop": random_resized_crop,
    "RandomCrop": random_crop, "RandomRotation": random_rotation, "RandomAffine": random_affine,
    "RandomHorizontalFlip": partial(by_chance, Code.FLIP_H, ""), "RandomVerticalFlip": partial(by_chance, Code.FLIP_V, ""),
    "ColorJitter": color_jitter, "Grayscale": lambda op, _: [Step(Code.GRAY, (op.num_output_channels,))],
    "RandomGrayscale": lambda op, _: [Step(Code.GRAY, (3,))] if happens(op) else [], "GaussianBlur": gaussian_blur,
    "RandomInvert": partial(by_chance, Code.INVERT, ""), "RandomAutocontrast": partial(by_chance, Code.AUTOCONTRAST, ""),
    "RandomEqualize": partial(by_chance, Code.EQUALIZE, ""), "RandomPosterize": posterize,
    "RandomSolarize": partial(by_chance, Code.SOLARIZE, "threshold"),
    "RandomAdjustSharpness": partial(by_chance, Code.SHARPNESS, "sharpness_factor"),
    "Compose": lambda op, size: all_drawn(op.transforms, size), "RandomApply": random_apply,
}  # fmt: skip
"""In v1 and v2."""
NEW: dict[str, Draw] = {
    "RandAugment": policy, "AutoAugment": policy, "TrivialAugmentWide": policy, "AugMix": aug_mix,
    "RandomResize": resize_drawn, "RandomShortestSize": resize_drawn, "ScaleJitter": resize_drawn, "RandomZoomOut": zoom_out,
    "RandomChoice": random_choice, "RandomOrder": random_order,
    "Identity": lambda *_: [], "RGB": lambda *_: [],  # images are RGB already
}  # fmt: skip
OLD: dict[str, Draw] = {
    "RandAugment": old_policy, "AutoAugment": old_policy, "TrivialAugmentWide": old_policy, "AugMix": aug_mix,
}  # fmt: skip
KNOWN: dict[str, tuple[dict[str, Draw], ...]] = {
    "torchvision.transforms.transforms": (BOTH,),
    "torchvision.transforms.autoaugment": (OLD,),
    "torchvision.transforms.v2": (BOTH, NEW),
}


def adopters() -> dict[type, Draw]:
    """Return the supported transforms by exact type; empty unless torchvision has been imported, since then nobody uses it."""
    found: dict[type, Draw] = {}
    for module, tables in KNOWN.items():
        loaded = sys.modules.get(module)
        for table in tables:
            found.update(
                {getattr(loaded, name): draw for name, draw in table.items() if hasattr(loaded, name)}
            )
    return found
