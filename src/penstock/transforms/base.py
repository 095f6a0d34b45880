"""The base of all ops: name, parameters, drawing, and calling an op on a sample as torchvision's v2.

Rule 1: an op draws a program and touches no pixel. `draw` is a pure function of its random numbers and the image size, so any lane can run
        the program, and an image shares it with its mask and boxes.
Rule 2: an op called on a sample gets the random numbers it would have in a staged dataset's chain; without a loader, torch's generator
        decides.
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
"""An op and its random numbers."""


@dataclass(frozen=True)
class Named:
    """Something identified by its name and its fields, the parameters."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def is_random(self) -> bool:
        """Whether two samples may get different results."""
        return False

    def identity(self) -> tuple[Any, ...]:
        """Name and parameters: equal for ops that do the same."""
        return (self.name, *((entry.name, plain(getattr(self, entry.name))) for entry in fields(self)))


@dataclass(frozen=True)
class Op(Named):
    """One op on images."""

    def draw(self, draws: Draws, size: Size) -> Program:
        """Draw the program for an image of `size`."""
        raise NotImplementedError

    def seed_of(self, seed: int, company: Company | None) -> int:  # noqa: ARG002
        """Return the seed to draw from: the sample's, unless the op shares one with its neighbours in the batch."""
        return seed

    def __call__(self, *inputs: Any) -> Any:
        """Apply the op to a sample, called as torchvision's: `op(image)`, `op(image, target)`, `op({"image": ...})`."""
        sample: Any = inputs if len(inputs) > 1 else inputs[0]
        # Foreign callables are called.
        way = lambda part: part[0].apply if isinstance(part[0], Op) else called  # noqa: E731
        for apply, group in groupby(unfolded(self, call_seed(self.name)), way):
            sample = apply(group, sample, len(inputs) > 1)
        return sample

    @staticmethod
    def apply(group: Iterable[Keyed], sample: Any, several: bool) -> Any:  # noqa: ARG004
        """Apply neighbouring ops of one kind to a sample. `several`: it was passed as several arguments."""
        return moved_sample(((op.draw, draws) for op, draws in group), sample)


@dataclass(frozen=True)
class RandomOp(Op):
    """An op that draws: two samples may get different results."""

    is_random = True


def called(group: Iterable[Keyed], sample: Any, several: bool) -> Any:
    for op, _ in group:
        sample = op(*sample) if several else op(sample)
    return sample


def unfolded(op: Op, seed: int) -> Iterator[Keyed]:
    """Yield the ops to apply, with their random numbers."""
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
    """An op that applies other ops."""

    def parts(self, draws: Draws) -> Iterator[Any]:
        """Yield the ops to apply this time, in order; each is drawn before the next is requested."""
        raise NotImplementedError

    def draw(self, draws: Draws, size: Size) -> Program:
        return drawn_in_row(((op.draw, draws) for op in self.parts(draws)), size)


@dataclass(frozen=True)
class Compose(Container):
    """Apply several ops in sequence."""

    transforms: Sequence[Any]

    @property
    def is_random(self) -> bool:
        return any(op.is_random for op in self.transforms)

    def parts(self, draws: Draws) -> Iterator[Any]:  # noqa: ARG002
        yield from self.transforms


def leaves(transform: Any) -> list[Any]:
    """Return the ops of a Compose or list, nested ones included."""
    if isinstance(transform, Compose):
        transform = transform.transforms
    if isinstance(transform, Sequence) and not isinstance(transform, (str, bytes)):
        return [op for inner in transform for op in leaves(inner)]
    return [transform]


def plain(value: Any) -> Any:
    """Return a parameter in a form that prints the same everywhere."""
    if isinstance(value, Named):
        return value.identity()
    if isinstance(value, (list, tuple)):
        return tuple(plain(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, plain(item)) for key, item in value.items())
    if callable(value):
        return f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', repr(type(value)))}"
    return int(value) if isinstance(value, Interpolation) else value
