"""A chain of ops from a sample's bytes to its tensor, with an identity.

The identity hashes the ops, their parameters and `VERSION`. Chains with the same identity make the same pixels from the same bytes
and seed; caches and stored measurements use it as key.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from penstock.errors import ConfigError
from penstock.pipeline.decode import Encoded, Image
from penstock.plan.seeds import Company, op_seed
from penstock.transforms.base import Op, leaves, plain
from penstock.transforms.cpu import crop, execute
from penstock.transforms.draws import Draws
from penstock.transforms.foreign import Foreign, is_pixels, known
from penstock.transforms.ops import Lambda
from penstock.transforms.per_batch import refuse_within
from penstock.transforms.steps import Code, Program, Size, Step, drawn_in_row, program_channels, program_size
from penstock.transforms.tail import Tail, split_tail
from penstock.transforms.targets import Targets, follow
from penstock.transforms.views import MultiCrop
from penstock.transforms.windows import Window, is_inside, is_resized_part, stages

VERSION = 1
"""Raise it whenever an op changes its result."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A sequence of ops, and the tail that turns the result into a uint8 or float tensor."""

    ops: tuple[Op, ...]
    tail: Tail
    views: tuple[Chain, ...] = ()
    """For several outputs of one image: the chain that follows `ops` for each output, tail included."""

    @classmethod
    def of(cls, transform: Any) -> Chain:
        """Build the chain from a `Compose`, a list of ops, one op, or None."""
        ops = [known(op) for op in flattened(transform)]
        for at, op in enumerate(ops):
            if isinstance(op, MultiCrop):
                after = ops[at + 1 :]
                views = [cls.of([crop, *after]) for crop, count in op.crops for _ in range(count)]
                return cls(tuple(ops[:at]), Tail(), tuple(views))
        body, tail = split_tail(ops)
        for op in body:
            refuse_within(op)
        return cls(tuple(body), tail)

    @property
    def identity(self) -> str:
        said = repr((VERSION, [op.identity() for op in self.ops], plain(tuple(self.tail.identity()))))
        if self.views:
            said += repr([view.identity for view in self.views])
        return hashlib.blake2b(said.encode(), digest_size=12).hexdigest()

    @property
    def is_random(self) -> bool:
        return any(op.is_random for op in self.ops) or any(view.is_random for view in self.views)

    def draw(
        self, seed: int, size: Size, company: Company | None = None, first: int = 0, end: int | None = None
    ) -> Program:
        """Draw a sample's program, or its ops from `first` to `end`. Each op's random numbers are independent of the ops before it."""
        ops = enumerate(self.ops[first:end], first)
        own = [(op.draw, Draws(op_seed(op.seed_of(seed, company), op.name, at))) for at, op in ops]
        return drawn_in_row(own, size)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """First and end of ops that can be drawn together: a user function may return any size, which later ops must know."""
        ends = [at + 1 for at, op in enumerate(self.ops[:-1]) if calls(op)]
        return list(pairwise([0, *ends, len(self.ops)]))

    @property
    def is_one_program(self) -> bool:
        """Whether all steps of a sample are known before the first one runs, and end in pixels for the tail."""
        return not self.views and not self.ends_elsewhere and len(self.stretches) == 1

    def pixels(
        self, image: Image | Encoded, seed: int, company: Company | None = None, end: int | None = None
    ) -> Image:
        most = len(self.ops) if end is None else end
        for first, last in self.stretches:
            image = executed(self.draw(seed, size_of(image), company, first, min(most, last)), image)
        return image if not isinstance(image, Encoded) else executed([], image)

    def run(self, image: Image | Encoded, seed: int, company: Company | None = None) -> Any:
        """Return the sample, channels x height x width; a tuple of them for several views."""
        if self.ends_elsewhere:
            return self.ended(self.pixels(image, seed, company, len(self.ops) - 1), seed, company)
        done = self.pixels(image, seed, company)
        return self.run_views(done, seed, company) if self.views else self.tail.finish(done)

    @property
    def ends_elsewhere(self) -> bool:
        """Whether a foreign transform comes last: it may return anything."""
        return bool(self.ops) and isinstance(self.ops[-1], Foreign) and not self.views and self.tail == Tail()

    def ended(self, image: Image, seed: int, company: Company | None = None) -> Any:
        """Run that last foreign transform. Pixels become a tensor; any other result is the sample."""
        (step,) = self.draw(seed, size_of(image), company, len(self.ops) - 1)
        found = step.args[0].result(image)
        return self.tail.finish(found) if is_pixels(found) else found

    def run_views(self, image: Image, seed: int, company: Company | None = None) -> tuple[Any, ...]:
        """Make every view of an image on which `ops` have run, each with its own draws."""
        return tuple(
            view.run(
                image.copy() if any(map(calls, view.ops)) else image,
                op_seed(seed, "MultiCrop", number),
                None if company is None else company.within("MultiCrop", number),
            )
            for number, view in enumerate(self.views)
        )

    def run_with(
        self,
        image: Image | Encoded,
        seed: int,
        company: Company | None = None,
        *,
        masks: Any = None,
        boxes: Any = None,
        labels: Any = None,
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the sample and its targets by name (those given), all transformed by the same draw."""
        if self.views:
            raise ConfigError("MultiCrop makes several images: masks and boxes can follow one only")
        size = size_of(image)
        targets = Targets.of(size, masks, boxes, labels)
        program = self.draw(seed, size, company)
        moved = follow(program, targets, size)  # first: cheap, and refuses what targets cannot follow
        return self.tail.finish(executed(program, image)), moved.tensors()


def size_of(image: Image | Encoded) -> Size:
    return image.size if isinstance(image, Encoded) else image.shape[:2]


def shape_of(image: Image | Encoded, program: Program) -> tuple[int, int, int]:
    channels = program_channels(program, 3 if isinstance(image, Encoded) else image.shape[2])
    return channels, *program_size(program, size_of(image))


def executed(program: Program, image: Image | Encoded, out: Image | None = None) -> Image:
    """Run a program. For an encoded image, decode only the pixels it needs. `out`: see `execute`."""
    if not isinstance(image, Encoded):
        return execute(program, image, out=out)
    if (smaller := made_smaller(program, image)) is not None:
        return execute(*smaller, out=out)
    plan = stages(program, image.size)
    only_cut = all(step.code is Code.CROP for step in program)
    return execute(program, image.part(plan[0].window, out if only_cut else None), plan, out)


def opened(program: Program, image: Image | Encoded) -> tuple[Program, Image]:
    """Decode or crop the pixels a program needs. Return the rest of the program, which can run elsewhere, and the pixels (rows may have gaps)."""
    if not isinstance(image, Encoded):
        if opening(program, size_of(image)) is None:
            return program, image
        return program[1:], crop(image, *program[0].args)
    if (smaller := made_smaller(program, image)) is not None:
        (first, *rest), small = smaller
        return rest, crop(small, *first.args)
    window = opening(program, image.size)
    if window is None:
        return program, image.part(Window.whole(image.size))
    return program[1:], image.part(window)


def made_smaller(program: Program, image: Encoded) -> tuple[Program, Image] | None:
    """Decode a file at reduced scale and adapt the program, if `fast` allows it and the scale suffices; else None."""
    factor = reduction(program, image.size) if image.fast else 1
    small = image.reduced(factor) if factor > 1 else None
    return None if small is None else (reduced(program, factor, (small.shape[0], small.shape[1])), small)


def opening(program: Program, size: Size) -> Window | None:
    """Return the crop that a program begins with, or None."""
    if not program or program[0].code is not Code.CROP:
        return None
    return Window(*program[0].args) if is_inside(program[0].args, size) else None


def reduction(program: Program, size: Size) -> int:
    """Return the decode reduction that a program allows: 2, 4 or 8 if it begins with a crop of at least half the image that is
    downsized at least as much; otherwise 1. A small crop decodes faster by itself."""
    if not is_resized_part(program, size):
        return 1
    (_, _, height, width), (rows, columns, *_) = program[0].args, program[1].args
    if 2 * height * width < size[0] * size[1]:
        return 1
    return max(
        (factor for factor in (2, 4, 8) if height >= factor * rows and width >= factor * columns), default=1
    )


def reduced(program: Program, factor: int, size: Size) -> Program:
    """Adapt a program to an image of `size`, reduced by `factor`: the same place, at subpixel precision."""
    top, left, height, width = (number / factor for number in program[0].args)
    first, above = int(left), int(top)
    last, below = min(size[1], math.ceil(left + width)), min(size[0], math.ceil(top + height))
    box = (top - above, left - first, min(height, below - top), min(width, last - left))
    resize = Step(Code.RESIZE, (*program[1].args[:4], box))
    return [Step(Code.CROP, (above, first, below - above, last - first)), resize, *program[2:]]


def calls(op: Any) -> bool:
    """Whether an op contains a user function, which may change an image in place."""
    return isinstance(op, Lambda) or any(map(calls, getattr(op, "transforms", ())))


def flattened(transform: Any) -> list[Any]:
    ops = [op for op in leaves(transform) if op is not None]
    for op in ops:
        if isinstance(op, (str, bytes)):
            raise ConfigError(
                f"a transform is an op of penstock.transforms, a list of ops or a function, got the text {op!r}: give the op "
                f"itself, such as penstock.transforms.Resize(256)"
            )
    return ops
