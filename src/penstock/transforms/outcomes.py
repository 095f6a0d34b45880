"""Count the distinct results of an op for one image: |A| of Revamper's section 4, which decides what reuse costs in diversity.

Rule 1: draws from a list are counted: a flip has 2 outcomes, a RandAugment layer as many as ops. Probabilities do not matter unless 0.
        Independent draws multiply.
Rule 2: a draw from a range counts as `VALUES`, whatever the range; a range of one value counts as 1.
Rule 3: crops to a fixed size are counted by position, given the image's size or an assumed one (`NOMINAL`).
Rule 4: an op of a policy counts once, whatever its sign (the paper counts 14 per RandAugment layer). Noise counts once: any patch is as
        good as another.
Rule 5: opaque ops (functions, foreign transforms, users' ops) count as 1. They are never cached, and undercounting what is drawn anew errs
        towards more diversity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from penstock.transforms import ops as ours
from penstock.transforms.audio import AddNoise, Function, Gain, PadOrCut, Resample, limits
from penstock.transforms.augment import Space
from penstock.transforms.base import Compose
from penstock.transforms.batch import CutMix, MixUp
from penstock.transforms.boxes import ClampBoundingBoxes, SanitizeBoundingBoxes
from penstock.transforms.deep import DeepAutoAugment
from penstock.transforms.draws import Draws
from penstock.transforms.foreign import Foreign
from penstock.transforms.ops import sides, two
from penstock.transforms.per_batch import PerBatch
from penstock.transforms.policies import (
    AUGMIX,
    RANDAUGMENT,
    WIDE,
    WITHOUT_COLOURS,
    AugMix,
    AutoAugment,
    RandAugment,
    ThreeAugment,
    TrivialAugmentWide,
)
from penstock.transforms.published import AUTOAUGMENT
from penstock.transforms.spectra import STFT, LogMel, SpecAugment
from penstock.transforms.steps import Size, program_size
from penstock.transforms.tail import Normalize, ToDtype, ToImage, ToTensor
from penstock.transforms.theirs import Theirs
from penstock.transforms.views import MultiCrop

VALUES = 16
"""Distinguishable values of a parameter drawn from a range. Policies use 10 (AutoAugment) to 31 (RandAugment) steps, which can just be told
apart; 16, four bits, lies between. The choice of a split depends on the logarithm: twice as many add one bit per parameter."""
NOMINAL: Size = (375, 500)
"""Height and width of an image of unknown size: ImageNet's median."""

Count = Callable[[Any, Size], int]


def outcomes(op: Any, size: Size = NOMINAL) -> int:
    """Count the distinct results of an op on an image of `size`; 1 for a user's subclass, which may draw anything."""
    return COUNTS.get(type(op), one)(op, size)


def outcomes_in_row(ops: Iterable[Any], size: Size = NOMINAL) -> list[int]:
    """Count the outcomes of each op, on the image size that the ops before it leave."""
    found = []
    for op in ops:
        found.append(outcomes(op, size))
        size = size_behind(op, size)
    return found


def size_behind(op: Any, size: Size) -> Size:
    """Return the size after an op, from one draw; unchanged if the op cannot be drawn alone or refuses the size."""
    if not hasattr(op, "draw") or isinstance(op, AUDIO):
        return size
    try:
        return program_size(op.draw(Draws(0), size), size)
    except ValueError:
        return size


# ---- counting


def one(op: Any, size: Size) -> int:  # noqa: ARG001
    return 1


def drawn_from(low: float, high: float) -> int:
    return VALUES if low < high else 1


def with_chance(p: float, done: int) -> int:
    """Count a result that occurs with probability `p`, and its absence."""
    return (1 if p < 1 else 0) + (done if p > 0 else 0)


def in_row(ops: Iterable[Any], size: Size) -> int:
    return math.prod(outcomes_in_row(ops, size))


def places(size: Size) -> int:
    """Count the positions of a part of any size."""
    return min(VALUES, size[0]) * min(VALUES, size[1])


def random_crop(op: ours.RandomCrop, size: Size) -> int:
    height, width = two(op.size, "size")
    left, top, right, bottom = (0, 0, 0, 0) if op.padding is None else sides(op.padding)
    rows, columns = size[0] + top + bottom, size[1] + left + right
    if op.pad_if_needed:
        rows, columns = rows + 2 * max(0, height - rows), columns + 2 * max(0, width - columns)
    return max(1, rows - height + 1) * max(1, columns - width + 1)


def resized_crop(op: ours.RandomResizedCrop, size: Size) -> int:
    room = places(size) if min(op.scale) < 1 else 1
    return drawn_from(*op.scale) * drawn_from(*op.ratio) * room


def jitter(op: ours.ColorJitter, size: Size) -> int:  # noqa: ARG001
    """Count the factors, and the order of those that have an effect."""
    active = [found for found in op.limits.values() if found is not None]
    return math.prod(drawn_from(*found) for found in active) * math.factorial(len(active))


def blur(op: ours.GaussianBlur, size: Size) -> int:  # noqa: ARG001
    return 1 if isinstance(op.sigma, (int, float)) else drawn_from(*op.sigma)


def erasing(op: ours.RandomErasing, size: Size) -> int:
    return with_chance(op.p, drawn_from(*op.scale) * drawn_from(*op.ratio) * places(size))


def choice(op: ours.RandomChoice, size: Size) -> int:
    chances = op.p or [1.0] * len(op.transforms)
    return sum(outcomes(part, size) for part, p in zip(op.transforms, chances, strict=True) if p > 0)


def several_crops(op: MultiCrop, size: Size) -> int:
    """Count all crops together: they are one sample."""
    return math.prod(in_row(as_list(crop), size) ** count for crop, count in op.crops)


def as_list(ops: Any) -> Sequence[Any]:
    return ops if isinstance(ops, (list, tuple)) else [ops]


def magnitudes(space: Space | None, levels: Iterable[int], bins: int, size: Size) -> int:
    return 1 if space is None else len({space.magnitude(at, bins, size) for at in levels})


def layer(spaces: Mapping[str, Space | None], levels: Sequence[int], bins: int, size: Size) -> int:
    return sum(magnitudes(space, levels, bins, size) for space in spaces.values())


def trivial(op: TrivialAugmentWide, size: Size) -> int:
    return layer(WIDE, range(op.num_magnitude_bins), op.num_magnitude_bins, size)


def auto(op: AutoAugment, size: Size) -> int:  # noqa: ARG001
    """Count the distinct pairs, given that either op may be skipped."""
    found = set()
    for pair in AUTOAUGMENT[op.policy]:
        for done in product((True, False), repeat=len(pair)):
            if all(p > 0 if is_done else p < 1 for is_done, (_, p, _) in zip(done, pair, strict=True)):
                found.add(
                    tuple((name, at) for is_done, (name, _, at) in zip(done, pair, strict=True) if is_done)
                )
    return len(found)


def mixed(op: AugMix, size: Size) -> int:
    """Count the weights of the image and of all chains but the last, and an op with magnitude for each link of each chain."""
    link = layer(AUGMIX if op.all_ops else WITHOUT_COLOURS, range(op.severity), 10, size)
    depths = [op.chain_depth] if op.chain_depth > 0 else [1, 2, 3]
    return int(VALUES**op.mixture_width * sum(link**depth for depth in depths) ** op.mixture_width)


def three(op: ThreeAugment, size: Size) -> int:
    colours = jitter(ours.ColorJitter(op.color_jitter, op.color_jitter, op.color_jitter), size)
    return (2 + drawn_from(*op.sigma)) * colours


def deep(op: DeepAutoAugment, size: Size) -> int:
    drawn = {
        "RandFlip": 2,
        "RandCutout": places(size),
        "RandCutout60": places(size),
        "RandCrop": 9 * 9,
        "RandResizeCrop_imagenet": outcomes(ours.RandomResizedCrop(224), size),
    }
    return math.prod(
        sum(drawn.get(name, 1) for name, _ in {(name, level) for p, name, level in choices if p > 0})
        for choices in op.layers
    )


def masks(op: SpecAugment, size: Size) -> int:  # noqa: ARG001
    """Count a width and a start for each mask, and a position and a shift for the warp."""
    bands = (min(VALUES, op.freq_mask + 1) * VALUES if op.freq_mask else 1) ** op.num_freq_masks
    wide = op.time_mask and op.max_time_share
    frames = (min(VALUES, op.time_mask + 1) * VALUES if wide else 1) ** op.num_time_masks
    return int(bands * frames * (VALUES**2 if op.time_warp else 1))


def sound_outcomes(op: Any, shape: Sequence[int]) -> int:
    """Count an audio op's outcomes on a sample of this shape: fewer if it is too short."""
    match op:
        case PadOrCut():
            return min(VALUES, max(0, shape[-1] - op.samples) + 1)
        case SpecAugment():
            bands, frames = shape[-2:]
            widest = min(op.time_mask, int(op.max_time_share * frames))
            each = [(op.freq_mask, bands)] * op.num_freq_masks + [(widest, frames)] * op.num_time_masks
            warp = VALUES**2 if op.time_warp and frames > 2 * op.time_warp + 1 else 1
            return warp * math.prod(mask_outcomes(limit, length) for limit, length in each)
    return outcomes(op)


def mask_outcomes(limit: int, length: int) -> int:
    widths = min(limit, length) + 1
    return min(VALUES, widths) * min(VALUES, length) if widths > 1 else 1


AUDIO = (AddNoise, Function, Gain, PadOrCut, Resample, STFT, LogMel, SpecAugment)
COUNTS: Mapping[type, Count] = {
    # ---- nothing is drawn, or nothing that we can see
    **dict.fromkeys(
        (ours.CenterCrop, ours.Grayscale, ours.Pad, ours.Resize, ClampBoundingBoxes, SanitizeBoundingBoxes),
        one,
    ),
    **dict.fromkeys((Normalize, ToDtype, ToImage, ToTensor, Resample, STFT, LogMel), one),
    **dict.fromkeys((ours.Lambda, Foreign, Function), one),
    # ---- ops
    **dict.fromkeys(
        (ours.RandomHorizontalFlip, ours.RandomVerticalFlip, ours.RandomGrayscale),
        lambda op, _: with_chance(op.p, 1),
    ),
    ours.RandomCrop: random_crop,
    ours.RandomResizedCrop: resized_crop,
    ours.ColorJitter: jitter,
    ours.GaussianBlur: blur,
    ours.RandomErasing: erasing,
    # ---- containers
    Compose: lambda op, size: in_row(op.transforms, size),
    PerBatch: lambda op, size: in_row(op.transforms, size),
    ours.RandomApply: lambda op, size: with_chance(op.p, in_row(op.transforms, size)),
    ours.RandomChoice: choice,
    MultiCrop: several_crops,
    # ---- policies
    RandAugment: lambda op, _: len(RANDAUGMENT) ** op.num_ops,
    TrivialAugmentWide: trivial,
    AutoAugment: auto,
    AugMix: mixed,
    ThreeAugment: three,
    DeepAutoAugment: deep,
    Theirs: lambda op, _: op.outcomes,
    # ---- of a whole batch: the neighbour's share, and the position of its box; the neighbour itself is not counted
    MixUp: lambda *_: VALUES,
    CutMix: lambda op, size: VALUES * places(size),  # noqa: ARG005
    # ---- sound
    AddNoise: lambda op, _: drawn_from(*limits("snr_db", op.snr_db)),
    Gain: lambda op, _: drawn_from(*limits("gain_db", op.gain_db)),
    PadOrCut: lambda *_: VALUES,
    SpecAugment: masks,
}


# ---- ops that commute


FLIP, CROP, PIXEL, OTHER = "flip", "crop", "pixel", "other"


def kinds(op: Any) -> frozenset[str]:
    """Classify an op's effect: mirror all pixels (FLIP), select a part (CROP), change each pixel by itself (PIXEL). Anything uncertain, or
    with other effects at times (a table from image statistics, a filled border), is OTHER."""
    if type(op) not in COUNTS:
        return frozenset({OTHER})
    match op:
        case ours.RandomHorizontalFlip():
            return frozenset({FLIP})
        case ours.RandomCrop(padding=None, pad_if_needed=False):
            return frozenset({CROP})
        case ours.Grayscale() | ours.RandomGrayscale():
            return frozenset({PIXEL})
        case ours.ColorJitter(contrast=0):
            return frozenset({PIXEL})
        case ours.RandomApply() | ours.RandomChoice() | Compose():
            return frozenset().union(*(kinds(part) for part in op.transforms)) or frozenset({OTHER})
    return frozenset({OTHER})
