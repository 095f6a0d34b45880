"""What an op is: its name and parameters, how it draws, and how it is applied to a sample when it is called as torchvision's v2 are.

Rule 1: an op draws a program and touches no pixel. `draw` is a pure function of its random numbers and the size of the image, so any
        lane can execute the draw, and an image, its mask and its boxes share it.
Rule 2: called with a sample, an op has the random numbers that it would have in a staged dataset's chain; without a loader, torch's
        generator decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from penstock.dataset.seeding import call_seed, company
from penstock.plan.seeds import Company, op_seed
from penstock.transforms.draws import Draws
from penstock.transforms.samples import moved_sample
from penstock.transforms.steps import Interpolation, Program, Size, drawn_in_row

Keyed = tuple[Any, Draws]
"""An op, and its random numbers."""


@dataclass(frozen=True)
class Named:
    """Something whose fields are its parameters, and with its name its identity."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def is_random(self) -> bool:
        """Whether two samples may be treated differently."""
        return False

    def identity(self) -> tuple[Any, ...]:
        """Name and parameters: equal for ops that do the same."""
        return (self.name, *((entry.name, plain(getattr(self, entry.name))) for entry in fields(self)))


@dataclass(frozen=True)
class Op(Named):
    """One op on images."""

    def draw(self, draws: Draws, size: Size) -> Program:
        """What to do with an image of `size`."""
        raise NotImplementedError

    def seed_of(self, seed: int, company: Company | None) -> int:  # noqa: ARG002
        """What the op is drawn from: the sample's seed, unless it shares one with its neighbours in the batch."""
        return seed

    def __call__(self, *inputs: Any) -> Any:
        """A sample with the op done to it, as torchvision's are called: `op(image)`, `op(image, target)`, `op({"image": ...})`."""
        sample: Any = inputs if len(inputs) > 1 else inputs[0]
        for apply, group in groupby(unfolded(self, call_seed(self.name)), lambda part: way_of(part[0])):
            sample = apply(group, sample, len(inputs) > 1)
        return sample

    @staticmethod
    def apply(group: Iterable[Keyed], sample: Any, several: bool) -> Any:  # noqa: ARG004
        """A sample with neighbouring ops of one kind done to it. `several`: it was given as several arguments."""
        return moved_sample(((op.draw, draws) for op, draws in group), sample)


def way_of(op: Any) -> Any:
    """How an op is applied; what is none of ours is called."""
    return op.apply if isinstance(op, Op) else called


def called(group: Iterable[Keyed], sample: Any, several: bool) -> Any:
    for op, _ in group:
        sample = op(*sample) if several else op(sample)
    return sample


def unfolded(op: Op, seed: int) -> Iterator[Keyed]:
    """The ops to be done, with their random numbers."""
    for number, part in enumerate(leaves(op)):
        ours = isinstance(part, Op)
        name, own = (part.name, part.seed_of(seed, company())) if ours else (type(part).__name__, seed)
        yield from unfolded_once(part, Draws(op_seed(own, name, number)))


def unfolded_once(op: Any, draws: Draws) -> Iterator[Keyed]:
    if isinstance(op, Container):
        for part in op.parts(draws):
            yield from unfolded_once(part, draws)
    else:
        yield op, draws


# ---- ops made of others


@dataclass(frozen=True)
class Container(Op):
    """An op that is done by doing others."""

    def parts(self, draws: Draws) -> Iterator[Any]:
        """Those that are done this time, in their order; each is drawn before the next is asked for."""
        raise NotImplementedError

    def draw(self, draws: Draws, size: Size) -> Program:
        return drawn_in_row(((op.draw, draws) for op in self.parts(draws)), size)


@dataclass(frozen=True)
class Compose(Container):
    """Ops in a row."""

    transforms: Sequence[Any]

    @property
    def is_random(self) -> bool:
        return any(op.is_random for op in self.transforms)

    def parts(self, draws: Draws) -> Iterator[Any]:  # noqa: ARG002
        yield from self.transforms


def leaves(transform: Any) -> list[Any]:
    """The ops of a Compose or a list, those of nested ones too."""
    if isinstance(transform, Compose):
        transform = transform.transforms
    if isinstance(transform, Sequence) and not isinstance(transform, (str, bytes)):
        return [op for inner in transform for op in leaves(inner)]
    return [transform]


def plain(value: Any) -> Any:
    """A parameter in a form that is written the same everywhere."""
    if isinstance(value, Named):
        return value.identity()
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, plain(item)) for key, item in value.items())
    if callable(value):
        return f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', repr(type(value)))}"
    return int(value) if isinstance(value, Interpolation) else value
