"""Tell which outcome an op has drawn; `outcomes` counts them.

Rule 1: outcomes are those that `outcomes` counts. A value from a range falls into one of `VALUES` equal bins; signs, noise and opaque ops
        make no difference.
Rule 2: an op draws as it does for a sample, from the same random numbers. No pixels are touched.
Rule 3: there are at most as many distinct answers as `outcomes` says, except for AugMix, which never repeats in practice. If several draws
        coincide, or some are likelier, training sees fewer distinct outcomes than Theorem 1 says, which assumes equal likelihood.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock.plan.seeds import Company, op_seed
from penstock.transforms import ops as ours
from penstock.transforms.audio import AddNoise, Gain, PadOrCut, limits
from penstock.transforms.base import Compose
from penstock.transforms.deep import DeepAutoAugment
from penstock.transforms.draws import Draws
from penstock.transforms.outcomes import VALUES
from penstock.transforms.per_batch import PerBatch
from penstock.transforms.policies import (
    WIDE,
    AugMix,
    AutoAugment,
    RandAugment,
    ThreeAugment,
    TrivialAugmentWide,
)
from penstock.transforms.published import AUTOAUGMENT
from penstock.transforms.spectra import SpecAugment
from penstock.transforms.steps import Code, Program, Size, drawn_in_row
from penstock.transforms.theirs import Theirs

Range = tuple[float, float]


class Noted(Draws):
    """Random numbers that record discrete choices: draws from a list, and chances."""

    __slots__ = ("choices",)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.choices: list[int] = []

    def below(self, count: int) -> int:
        self.choices.append(super().below(count))
        return self.choices[-1]

    def chance(self, p: float) -> bool:
        self.choices.append(super().chance(p))
        return bool(self.choices[-1])


def chain_outcome(
    ops: Sequence[Any], seed: int, size: Size, company: Company | None, first: int, end: int
) -> int:
    """Hash what the ops from `first` to `end` draw for a sample to 64 bits: equal for equal outcomes, in every process."""
    parts = enumerate(ops[first:end], first)
    own = ((op, Noted(op_seed(op.seed_of(seed, company), op.name, at))) for at, op in parts)
    return number_of(outcomes_in_row(own, size)[0])


def number_of(outcome: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(outcome).encode(), digest_size=8).digest(), "little")


def drawn(op: Any, draws: Noted, size: Size) -> tuple[Any, Program]:
    if type(op) in (Compose, ours.RandomApply, ours.RandomChoice):
        return contained(op, draws, size)
    if type(op) is PerBatch:
        return per_batch(op, draws, size)
    if type(op) is DeepAutoAugment:
        return layered(op, draws, size)
    draws.choices = []
    program = op.draw(draws, size)
    tell = TOLD.get(type(op))
    return () if tell is None else tell(op, program, draws.choices, size), program


def outcomes_in_row(parts: Iterable[tuple[Any, Noted]], size: Size) -> tuple[list[Any], Program]:
    """Return the outcomes of ops, each with its random numbers, and their common program."""
    found: list[Any] = []

    def noted(part: tuple[Any, Noted], size: Size) -> Program:
        outcome, steps = drawn(*part, size)
        found.append(outcome)
        return steps

    return found, drawn_in_row(((noted, part) for part in parts), size)


def contained(op: Any, draws: Noted, size: Size) -> tuple[Any, Program]:
    which: list[int] = []

    def parts() -> Iterator[tuple[Any, Noted]]:
        for part in op.parts(draws):
            which.append(next(at for at, one in enumerate(op.transforms) if one is part))
            yield part, draws

    found, program = outcomes_in_row(parts(), size)
    return tuple(zip(which, found, strict=True)), program


def per_batch(op: PerBatch, draws: Noted, size: Size) -> tuple[Any, Program]:
    seed, parts = draws.bits(), enumerate(op.transforms)
    found, program = outcomes_in_row(
        ((part, Noted(op_seed(seed, part.name, at))) for at, part in parts), size
    )
    return tuple(found), program


def layered(op: DeepAutoAugment, draws: Noted, size: Size) -> tuple[Any, Program]:
    chosen = list(op.chosen(draws, size))
    found = tuple((name, level, *deep_place(name, steps, before)) for name, level, before, steps in chosen)
    return found, [step for *_, steps in chosen for step in steps]


def deep_place(name: str, steps: Program, size: Size) -> tuple[Any, ...]:
    """Return what an op of DeepAutoAugment draws besides its name."""
    match name:
        case "RandFlip":
            return (bool(steps),)
        case "RandCrop":
            return tuple(steps[-1].args[:2])
        case "RandCutout" | "RandCutout60":
            top, left, height, width = steps[-1].args[:4]
            return part_of(top + height / 2, (0, size[0])), part_of(left + width / 2, (0, size[1]))
        case "RandResizeCrop_imagenet":
            return (resized_crop(ours.RandomResizedCrop(224), steps, [], size),)
    return ()


# ---- ops


def part_of(value: float, range_: Range, parts: int = VALUES) -> int:
    """Return the bin of a value within a range; values rounded beyond the ends fall into the outermost bin."""
    low, high = range_
    return min(parts - 1, max(0, int(parts * (value - low) / (high - low)))) if high > low else 0


def window(place: Sequence[int], scale: Range, shape: Range, size: Size) -> tuple[int, ...]:
    """Bin a crop by area, aspect ratio and position."""
    (top, left, height, width), (rows, columns) = place, size
    return (
        part_of(height * width / (rows * columns), scale),
        part_of(math.log(width / height), shape),
        part_of(top, (0, rows - height + 1), min(VALUES, rows)),
        part_of(left, (0, columns - width + 1), min(VALUES, columns)),
    )


def resized_crop(op: ours.RandomResizedCrop, program: Program, _choices: Sequence[int], size: Size) -> Any:
    low, high = op.ratio
    return window(program[0].args, (op.scale[0], op.scale[1]), (math.log(low), math.log(high)), size)


def erasing(op: ours.RandomErasing, program: Program, _choices: Sequence[int], size: Size) -> Any:
    if not program:
        return ()
    low, high = op.ratio  # height to width
    return window(program[0].args[:4], (op.scale[0], op.scale[1]), (-math.log(high), -math.log(low)), size)


def factors(op: ours.ColorJitter, program: Program, *_: Any) -> Any:
    """Bin each factor, in the order of application."""
    return tuple((int(code), part_of(args[0], op.limits[code] or (0, 0))) for code, args in program)


def blur(op: ours.GaussianBlur, program: Program, _choices: Sequence[int], _size: Size) -> Any:
    return (
        0 if isinstance(op.sigma, (int, float)) else part_of(program[0].args[2], (op.sigma[0], op.sigma[1]))
    )


def trivial(op: TrivialAugmentWide, _program: Program, choices: Sequence[int], size: Size) -> Any:
    which, at = choices
    space = list(WIDE.values())[which]
    return which, None if space is None else space.magnitude(at, op.num_magnitude_bins, size)


def pair(op: AutoAugment, _program: Program, choices: Sequence[int], _size: Size) -> Any:
    which, *are_done = choices
    pairs = AUTOAUGMENT[op.policy][which]
    return tuple((name, at) for (name, _, at), is_done in zip(pairs, are_done, strict=True) if is_done)


def mixed(_op: AugMix, program: Program, choices: Sequence[int], _size: Size) -> Any:
    kept, chains = program[0].args
    return part_of(kept, (0, 1)), *(part_of(weight, (0, 1)) for weight, _ in chains[:-1]), tuple(choices)


def three(op: ThreeAugment, program: Program, choices: Sequence[int], _size: Size) -> Any:
    first, *rest = program
    sigma = part_of(first.args[2], (op.sigma[0], op.sigma[1])) if first.code is Code.BLUR else 0
    jitter = op.color_jitter
    return choices[0], sigma, factors(ours.ColorJitter(jitter, jitter, jitter), rest)


Tell = Callable[[Any, Any, Sequence[int], Any], Any]
TOLD: Mapping[type, Tell] = {
    **dict.fromkeys(
        (ours.RandomHorizontalFlip, ours.RandomVerticalFlip, ours.RandomGrayscale),
        lambda _op, program, *_: bool(program),
    ),
    ours.RandomCrop: lambda _op, program, *_: program[-1].args[:2],
    ours.RandomResizedCrop: resized_crop,
    ours.RandomErasing: erasing,
    ours.ColorJitter: factors,
    ours.GaussianBlur: blur,
    RandAugment: lambda _op, _program, choices, _size: tuple(choices),
    TrivialAugmentWide: trivial,
    AutoAugment: pair,
    AugMix: mixed,
    ThreeAugment: three,
    # We do not see these draws: hash the program to as many values as are counted.
    Theirs: lambda op, program, *_: number_of(program) % op.outcomes,
}
"""How to tell an op's outcome from its program and recorded choices; ops not listed have only one."""


# ---- sound


def sound_outcome(op: Any, numbers: Sequence[float], shape: Sequence[int]) -> Any:
    """Tell an audio op's outcome from its draw for a sample of this shape."""
    match op:
        case AddNoise():
            return part_of(numbers[0], limits("snr_db", op.snr_db))
        case Gain():
            return part_of(numbers[0], limits("gain_db", op.gain_db))
        case PadOrCut():
            return part_of(numbers[0], (0, shape[-1] - op.samples + 1))
        case SpecAugment():
            return masks(op, numbers, shape[-2], shape[-1])
    return ()


def masks(op: SpecAugment, numbers: Sequence[float], bands: int, frames: int) -> Any:
    centre, shift, *drawn_masks = numbers
    first, last = op.time_warp + 1, frames - op.time_warp
    warp = (part_of(centre, (first, last)), part_of(shift, (-op.time_warp, op.time_warp))) if shift else ()
    widest = min(op.time_mask, int(op.max_time_share * frames))
    found = [warp]
    for at in range(0, len(drawn_masks), 2):
        start, width = drawn_masks[at : at + 2]
        limit, length = (op.freq_mask, bands) if at < 2 * op.num_freq_masks else (widest, frames)
        most = min(limit, length) + 1
        if most > 1:
            widths, starts = min(VALUES, most), min(VALUES, length)
            found.append((part_of(width, (0, most), widths), part_of(start, (0, length - width), starts)))
    return tuple(found)
