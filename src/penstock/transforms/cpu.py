"""Run programs on the CPU, with Pillow's results: by the compiled loops, or without them by Pillow and NumPy. Only blurs and resizing without
antialiasing need OpenCV.

Images are arrays, or Pillow images between two Pillow steps. Consecutive tables are composed and applied once. Only the part that later
steps need (`windows`) is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import accel
from penstock.errors import MissingExtra
from penstock.transforms import tables, tensors
from penstock.transforms.libs import opencv, pillow
from penstock.transforms.steps import STATISTICS, TABLES, Code, Interpolation, Size, Step, is_shift
from penstock.transforms.windows import WindowedImage, is_inside, is_resized_part, stages

Image = NDArray[np.uint8]
SMALL = 64 * 64
"""Pixels of an image for which planning costs more than making all of it."""


def execute(
    program: Sequence[Step], image: Any, plan: Sequence[WindowedImage] | None = None, out: Image | None = None
) -> Image:
    """Run all steps and return uint8, height x width x channels. With a plan (`stages(program, size)`), `image` is the part that the plan
    begins with. `out`: the last step writes there, and returns it, if it can and the shape matches."""
    if plan is None:
        rows, columns = array(image).shape[:2]
        if is_resized_part(program, (rows, columns), alone=True):  # a plan would double the cost
            part = crop(image, *program[0].args)
            return resize(part, *program[1].args, mirrored=len(program) == 3, out=out)
        plan = stages(program, (rows, columns), small=SMALL)
        if not plan[0].is_whole:
            image = crop(image, *plan[0].window)
    at = 0

    def place() -> Image | None:
        return out if at + 1 == len(program) else None

    while at < len(program):
        (code, args), before, after = program[at], plan[at], plan[at + 1]
        if code in TABLES or code in STATISTICS:
            pixels = array(image)
            table = tables.table_of(program[at]) if code in TABLES else STATISTICS_OF[code](pixels, *args)
            if code in STATISTICS and not after.is_whole:
                pixels = crop(pixels, *after.window)
            while at + 1 < len(program) and program[at + 1].code in TABLES:
                at += 1
                table = tables.composed(table, tables.table_of(program[at]))
            image = tables.look_up(pixels, table, place())
        elif code == Code.RESIZE and flips_next(program, plan, at):
            at += 1
            image = resize(image, *args, mirrored=True, out=place())
        elif code == Code.AFFINE:
            image = affine(image, before, after, *args, out=place())
        elif before.is_whole:
            result = STEPS[code](image, *args, **({"out": place()} if code in TO_A_PLACE else {}))
            image = result if after.is_whole else crop(result, *after.window)
        elif code == Code.SHARPNESS:  # it leaves a border unsharpened, which is cut off here
            top, left, height, width = after.window
            result = STEPS[code](image, *args)
            image = crop(result, top - before.window.top, left - before.window.left, height, width)
        elif code != Code.CROP:  # a crop is done already: the part is its result
            image = STEPS[code](image, *args)
        at += 1
    return array(image)


def flips_next(program: Sequence[Step], plan: Sequence[WindowedImage], at: int) -> bool:
    """Whether the next step flips the step's whole result horizontally."""
    return at + 1 < len(program) and program[at + 1].code == Code.FLIP_H and plan[at + 2].is_whole


def array(image: Any) -> Image:
    """Convert to an array, height x width x channels; Pillow images in modes other than L and RGB become RGB."""
    if isinstance(image, np.ndarray):
        return image
    if image.mode not in ("L", "RGB"):
        image = image.convert("RGB")
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def picture(image: Any) -> Any:
    """Convert to a Pillow image."""
    if not isinstance(image, np.ndarray):
        return image
    return pillow().Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)


# ---- geometry


def crop(image: Any, top: int, left: int, height: int, width: int) -> Image:
    pixels = array(image)
    rows, columns = pixels.shape[:2]
    if is_inside((top, left, height, width), (rows, columns)):
        return pixels[top : top + height, left : left + width]
    found = np.zeros((height, width, pixels.shape[2]), np.uint8)
    inside = pixels[max(0, top) : max(0, top + height), max(0, left) : max(0, left + width)]
    y, x = max(0, -top), max(0, -left)
    found[y : y + inside.shape[0], x : x + inside.shape[1]] = inside
    return found


def resize(
    image: Any,
    height: int,
    width: int,
    interpolation: int,
    antialias: bool,
    box: accel.Box | None = None,
    *,
    mirrored: bool = False,
    out: Image | None = None,
) -> Image:
    """Resize, like Pillow. `mirrored`: also flip horizontally, at no extra cost."""
    pixels = array(image)
    if box is None and pixels.shape[:2] == (height, width):
        return flip_h(pixels) if mirrored else pixels
    if antialias and interpolation in (Interpolation.BILINEAR, Interpolation.BICUBIC):
        cubic = interpolation == Interpolation.BICUBIC
        down = box is None and goes_down_first(pixels.shape[:2], (height, width))
        quick = accel.resize(
            pixels, height, width, cubic=cubic, down_first=down, box=box, mirrored=mirrored, out=out
        )
        if quick is not None:
            return quick
    if mirrored:
        return flip_h(resize(pixels, height, width, interpolation, antialias, box))
    if interpolation == Interpolation.LANCZOS or (antialias and interpolation != Interpolation.NEAREST):
        place = None if box is None else (box[1], box[0], box[1] + box[3], box[0] + box[2])
        return array(picture(pixels).resize((width, height), interpolation, place))
    if box is not None:
        pixels = pixels[
            round(box[0]) : max(round(box[0]) + 1, round(box[0] + box[2])),
            round(box[1]) : max(round(box[1]) + 1, round(box[1] + box[3])),
        ]
    if interpolation == Interpolation.NEAREST:
        return array(picture(pixels).resize((width, height), interpolation))
    cv2 = opencv("resizing without antialiasing")
    way = cv2.INTER_LINEAR if interpolation == Interpolation.BILINEAR else cv2.INTER_CUBIC
    resized: Image = cv2.resize(pixels, (width, height), interpolation=way)
    return resized.reshape(height, width, -1)


def goes_down_first(size: Size, new: Size) -> bool:
    """Whether Pillow resizes vertically first: since version 13 if that leaves less work, before that never."""
    saves = new[0] < size[0] and 2 * (size[1] - new[1]) < size[0] - new[0]
    return saves and accel.compiled() is not None and pillow_chooses()


@cache
def pillow_chooses() -> bool:
    """Whether the installed Pillow chooses the direction: test it once on a small image, if there are loops to compare it with."""
    probe = (np.arange(40 * 20 * 3, dtype=np.uint32) * 2654435761 >> 13).astype(np.uint8).reshape(40, 20, 3)
    across = accel.resize(probe, 9, 18, cubic=False, down_first=False)
    theirs = array(picture(probe).resize((18, 9), Interpolation.BILINEAR))
    return across is not None and not np.array_equal(across, theirs)


def flip_h(image: Any) -> Image:
    pixels = array(image)
    quick = accel.flip(pixels)
    return np.ascontiguousarray(pixels[:, ::-1]) if quick is None else quick


def flip_v(image: Any) -> Image:
    """Return a copy: in a view, later steps would read rows backwards."""
    return np.ascontiguousarray(array(image)[::-1])


def pad(image: Any, left: int, top: int, right: int, bottom: int, fill: Any, mode: str) -> Image:
    pixels = array(image)
    if mode != "constant":
        return np.pad(pixels, ((top, bottom), (left, right), (0, 0)), mode=mode)  # type: ignore[call-overload,no-any-return]
    rows, columns, channels = pixels.shape
    padded = np.empty((rows + top + bottom, columns + left + right, channels), np.uint8)
    colour = fill if isinstance(fill, (tuple, list)) else [fill] * channels
    padded[...] = np.clip(np.rint(colour), 0, 255).astype(np.uint8)
    padded[top : top + rows, left : left + columns] = pixels
    return padded


def affine(
    image: Any,
    before: WindowedImage,
    after: WindowedImage,
    a: float,
    b: float,
    c: float,
    d: float,
    e: float,
    f: float,
    way: int,
    fill: Any,
    *,
    out: Image | None = None,
) -> Any:
    """Map the part that `before` holds to the part that `after` needs."""
    channels = array(image).shape[2]
    colour = tuple(fill) if isinstance(fill, (tuple, list)) else (int(fill),) * channels
    if is_shift((a, b, c, d, e, f)):
        return shifted(array(image), before, after, int(c), int(f), colour, out)
    if way == Interpolation.NEAREST and (b or d):  # otherwise Pillow rounds differently
        corner = (before.window.top, before.window.left)
        quick = accel.affine(array(image), corner, after.window, (a, b, c, d, e, f), colour, out)
        if quick is not None:
            return quick
    if not before.is_whole:  # Pillow transforms whole images only
        holder = np.zeros((*before.size, channels), np.uint8)
        top, left, height, width = before.window
        holder[top : top + height, left : left + width] = array(image)
        image = holder
    source, module = picture(image), pillow().Image
    outside = colour if source.mode == "RGB" else colour[0]
    result = source.transform(
        source.size, module.Transform.AFFINE, (a, b, c, d, e, f), way, fillcolor=outside
    )
    return result if after.is_whole else crop(result, *after.window)


def shifted(
    image: Image,
    before: WindowedImage,
    after: WindowedImage,
    right: int,
    down: int,
    colour: tuple[int, ...],
    out: Image | None = None,
) -> Image:
    """Shift by whole pixels, with nothing to interpolate."""
    top, left, height, width = after.window
    # where in `image` the result begins
    y, x = top + down - before.window.top, left + right - before.window.left
    rows, columns = image.shape[:2]
    inside = image[max(0, y) : max(0, min(rows, y + height)), max(0, x) : max(0, min(columns, x + width))]
    found = accel.room((height, width, image.shape[2]), out, image)
    above, beside = (0, 0) if inside.size == 0 else (max(0, -y), max(0, -x))
    below, behind = above + inside.shape[0], beside + inside.shape[1]
    found[above:below, beside:behind] = inside
    value = colour[0] if len(set(colour)) == 1 else colour  # writing a scalar is thirty times as fast
    for edge in (found[:above], found[below:], found[above:below, :beside], found[above:below, behind:]):
        edge[...] = value
    return found


# ---- tables that depend on the image


def contrast(image: Image, factor: float) -> tables.Table:
    total = accel.grey_sum(image)
    if total is None:
        total = int(array(picture(image).convert("L")).sum(dtype=np.int64))
    mean = int(total / (image.shape[0] * image.shape[1]) + 0.5)
    return tables.blend(mean, factor, fused=pillow_fuses())


def autocontrast(image: Image) -> tables.Table:
    quick = accel.stretching(image)
    if quick is not None:
        return quick
    return tables.autocontrast(image.min(axis=(0, 1)).tolist(), image.max(axis=(0, 1)).tolist())


def equalize(image: Image) -> tables.Table:
    quick = accel.equalizing(image)
    if quick is not None:
        return quick
    pixels = np.ascontiguousarray(image)
    return tables.equalize(np.stack([histogram(pixels, c) for c in range(pixels.shape[2])]))


def histogram(pixels: Image, channel: int) -> NDArray[np.int64]:
    return np.bincount(pixels[:, :, channel].ravel(), minlength=256).astype(np.int64)


STATISTICS_OF: dict[Code, Callable[..., tables.Table]] = {
    Code.CONTRAST: contrast,
    Code.AUTOCONTRAST: autocontrast,
    Code.EQUALIZE: equalize,
}


# ---- neighbouring pixels and channels


@cache
def pillow_fuses() -> bool:
    """Whether the installed Pillow rounds a blend once (fused) or twice, product then sum: that depends on its build, so test it. If fused,
    100 + 0.73 * (0 - 100) is just below 27, else 27. Without Pillow, as the loops do."""
    try:
        module = pillow().Image
    except MissingExtra:
        return accel.fuses()
    found = module.blend(module.new("L", (1, 1), 100), module.new("L", (1, 1), 0), 0.73)
    return bool(found.getpixel((0, 0)) == 26)


def saturation(image: Any, factor: float, out: Image | None = None) -> Any:
    quick = accel.saturate(array(image), factor, out) if accel.fuses() == pillow_fuses() else None
    return pillow().ImageEnhance.Color(picture(image)).enhance(factor) if quick is None else quick


def sharpness(image: Any, factor: float, out: Image | None = None) -> Any:
    pixels = np.ascontiguousarray(array(image))
    quick = accel.sharpen(pixels, factor, out) if accel.fuses() == pillow_fuses() else None
    return pillow().ImageEnhance.Sharpness(picture(image)).enhance(factor) if quick is None else quick


def gray(image: Any, channels: int) -> Any:
    grey = picture(image).convert("L")
    return grey if channels == 1 else np.repeat(array(grey), channels, axis=2)


def hue(image: Any, shift: float) -> Any:
    source = picture(image)
    if source.mode == "L":
        return source
    h, s, v = source.convert("HSV").split()
    turned = (np.asarray(h, dtype=np.int16) + int(shift * 255)).astype(np.uint8)
    module = pillow().Image
    return module.merge("HSV", (module.fromarray(turned, "L"), s, v)).convert("RGB")


def blur(
    image: Any, width: int, height: int, sigma_x: float, sigma_y: float, theirs: str | None = None
) -> Image:
    if theirs is not None:
        return tensors.blurred(array(image), (width, height), (sigma_x, sigma_y), theirs)
    cv2, pixels = opencv("GaussianBlur"), array(image)
    blurred: Image = cv2.GaussianBlur(
        pixels, (width, height), sigma_x, sigmaY=sigma_y, borderType=cv2.BORDER_REFLECT_101
    )
    return blurred.reshape(pixels.shape)


def erase(image: Any, top: int, left: int, height: int, width: int, value: Any, seed: int) -> Image:
    pixels = array(image).copy()
    if value is None:
        patch = np.random.Generator(np.random.Philox(seed)).normal(0.0, 1.0, (height, width, pixels.shape[2]))
        pixels[top : top + height, left : left + width] = np.clip(patch * 255, 0, 255).astype(np.uint8)
    else:
        pixels[top : top + height, left : left + width] = np.asarray(value)
    return pixels


def mix(image: Any, kept: float, chains: Sequence[tuple[float, Sequence[Step]]]) -> Image:
    pixels = array(image)
    total = pixels.astype(np.float32) * np.float32(kept)
    for weight, program in chains:
        total += execute(program, pixels).astype(np.float32) * np.float32(weight)
    mixed: Image = np.clip(total, 0, 255).astype(np.uint8)
    return mixed


def call(image: Any, function: Callable[[Any], Any]) -> Any:
    given = array(image)  # a function may change its input, but not memory that others read, such as a store
    found = function(given if given.flags.writeable else given.copy())
    pixels = array(found) if hasattr(found, "getbands") else found
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3:
        said = (
            f"{pixels.dtype} of shape {pixels.shape}"
            if isinstance(pixels, np.ndarray)
            else type(found).__name__
        )
        raise ValueError(
            f"a function in the chain must give uint8 of height x width x channels, {function!r} gave {said}"
        )
    return pixels


STEPS: dict[Code, Callable[..., Any]] = {
    Code.CROP: crop, Code.RESIZE: resize, Code.FLIP_H: flip_h, Code.FLIP_V: flip_v, Code.PAD: pad,
    Code.SATURATION: saturation,
    Code.HUE: hue, Code.GRAY: gray, Code.SHARPNESS: sharpness, Code.BLUR: blur, Code.ERASE: erase, Code.MIX: mix,
    Code.MIX_TENSORS: lambda image, *args: tensors.mixed(array(image), *args), Code.CALL: call,
}  # fmt: skip
TO_A_PLACE = {Code.RESIZE, Code.SATURATION, Code.SHARPNESS}
"""Steps that can write to `out`."""
