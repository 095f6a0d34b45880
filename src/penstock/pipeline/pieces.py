"""A sample taken apart: what each piece of its preparation works on, what it took, and what it will take.

Policies draw different steps for each sample, so it is steps that have a cost, by their code and by the pixels that they read and
write: what a sample will cost is known as soon as its program is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from penstock.pipeline.annotated import AnnotatedDataset
from penstock.pipeline.chain import Chain, reduced, reduction, size_of
from penstock.pipeline.decode import Encoded
from penstock.pipeline.header import Header
from penstock.pipeline.staged import StagedDataset
from penstock.plan.seeds import op_seed
from penstock.policy.costs import CostModel, Features
from penstock.transforms.cpu import crop, execute
from penstock.transforms.steps import (
    STATISTICS,
    TABLES,
    Code,
    Interpolation,
    Program,
    Size,
    Step,
    program_size,
)
from penstock.transforms.targets import Targets, follow
from penstock.transforms.windows import Window, WindowedImage, stages

clock = time.thread_time  # a worker that waits for a core is not working


class Piece(NamedTuple):
    """What was done, and what it took."""

    stage: str
    """Which part of the chain it belongs to: "read", "decode", the number of an op, "tail"; in a view, behind its number."""
    kind: str
    """What the cost model knows it as; nothing where it is no piece of its own."""
    features: Features
    seconds: float


class FusedSteps(NamedTuple):
    """Steps of a program that are done at once."""

    start: int
    stop: int
    kind: str
    features: Features


def observe(model: CostModel, pieces: Sequence[Piece]) -> None:
    """Tell the model what each piece took."""
    for piece in pieces:
        if piece.kind:
            model.observe(piece.kind, piece.features, piece.seconds)


class Opening(NamedTuple):
    """How a file becomes the pixels that a program begins with."""

    factor: int
    """By how much the image is decoded smaller; then the program is another."""
    kind: str
    features: Features
    program: Program
    plan: list[WindowedImage]


def predicted(
    model: CostModel, header: Header, data: bytes, program: Program, *, fast: bool = False
) -> float | None:
    """Seconds that a sample will cost, from its header, its length and its program; None while something in it is unknown. `fast`:
    as of a dataset with `fast_decode`."""
    return model.predict_all(ahead(header, data, program, fast=fast))


def ahead(header: Header, data: bytes, program: Program, *, fast: bool = False) -> list[tuple[str, Features]]:
    """What there is to do for a sample, in the order in which it is measured."""
    _, kind, features, program, plan = opening(header, len(data), program, fast=fast)
    work: list[tuple[str, Features]] = [("read", (float(len(data)),)), (kind, features)]
    for piece in work_of(program, plan):
        work += [
            (inner.kind, inner.features) for inner in within(program[piece.start], plan[piece.start].size)
        ]
        work.append((piece.kind, piece.features))
    return [*work, ("tail", (pixels(plan[-1].window),))]


def opening(header: Header, nbytes: int, program: Program, *, fast: bool) -> Opening:
    """All bytes are read, or when `fast` those up to the last row that is needed; only what is needed becomes pixels."""
    size: Size = (header.height, header.width)
    factor = reduction(program, size) if fast and header.format == "jpeg" and header.channels in (1, 3) else 1
    kind = f"decode {header.format}"
    if factor > 1:
        small = (-(-size[0] // factor), -(-size[1] // factor))
        program = reduced(program, factor, small)
        kind, features = f"{kind} at 1/{factor}", (float(header.pixels), float(nbytes))
        return Opening(factor, kind, features, program, stages(program, small))
    plan = stages(program, size)
    top, _, height, _ = plan[0].window
    share = (top + height) / size[0] if fast else 1.0
    whole = (float(header.pixels), nbytes * share, pixels(plan[0].window))
    return Opening(1, kind, whole, program, plan)


# ---- measuring


def pieces_of(dataset: StagedDataset, index: int) -> Iterator[Piece]:
    """One sample prepared, piece by piece."""
    before = clock()
    data, targets = dataset.read(index)
    yield Piece("read", "read", (float(len(data)),), clock() - before)
    before = clock()
    image = dataset.image(data)
    opened = clock() - before
    if not isinstance(image, Encoded):
        yield Piece("decode", "decode", (float(len(data)),), opened)
    size = size_of(image)
    program: Program = []
    yield from chain_pieces(dataset.chain, image, index, "", program, (data, opened))
    if isinstance(dataset, AnnotatedDataset) and not dataset.chain.views:
        before = clock()
        follow(program, Targets.of(size, **targets), size).tensors()
        yield Piece("targets", "", (), clock() - before)


def chain_pieces(
    chain: Chain,
    image: Any,
    seed: int,
    place: str,
    program: Program,
    opened: tuple[bytes, float] = (b"", 0.0),
) -> Iterator[Piece]:
    """The ops and the tail of a chain, and its views; the steps that are done are added to `program`."""
    for first, end in chain.stretches:
        body: Program = []
        size, origins = size_of(image), list[str]()
        for number in range(first, end - (chain.ends_elsewhere and end == len(chain.ops))):
            before = clock()
            steps = chain.draw(seed, program_size(body, size), None, number, number + 1)
            yield Piece(f"{place}{number}", "", (), clock() - before)
            body += steps
            origins += [f"{place}{number}"] * len(steps)
        program += body
        before = clock()
        if isinstance(image, Encoded):
            factor, kind, features, body, plan = opening(image.header, len(opened[0]), body, fast=image.fast)
            part = image.part(plan[0].window) if factor == 1 else image.reduced(factor)
            yield Piece("decode", kind, features, opened[1] + clock() - before)
            if factor > 1 and not plan[0].is_whole:
                part = crop(part, *plan[0].window)
        else:
            plan = stages(body, size_of(image))
            part = image if plan[0].is_whole else crop(image, *plan[0].window)
        for piece in work_of(body, plan):
            parts = list(parts_of(body[piece.start], part))
            before = clock()
            part = execute(body[piece.start : piece.stop], part, plan[piece.start : piece.stop + 1])
            took = clock() - before
            origin = origins[piece.start]
            yield from (Piece(origin, *inner) for inner in parts)
            yield Piece(origin, piece.kind, piece.features, max(0.0, took - sum(inner[2] for inner in parts)))
        image = part
    yield from end_pieces(chain, image, seed, place)


def end_pieces(chain: Chain, image: Any, seed: int, place: str) -> Iterator[Piece]:
    """What follows the ops: views, a transform that is not ours, or the tail."""
    before = clock()
    if chain.ends_elsewhere:
        chain.ended(image, seed)
        yield Piece(f"{place}{len(chain.ops) - 1}", "", (), clock() - before)
        return
    for number, view in enumerate(chain.views):
        yield from chain_pieces(
            view, image.copy(), op_seed(seed, "MultiCrop", number), f"{place}{number}:", []
        )
    if not chain.views:
        before = clock()
        chain.tail.finish(image)
        size: Size = image.shape[:2]
        yield Piece(f"{place}tail", "tail", (pixels(size),), clock() - before)


def parts_of(step: Step, image: Any) -> Iterator[tuple[str, Features, float]]:
    """The steps within a step, done one by one: each is a kind of its own."""
    if step.code is not Code.MIX:
        return
    for _, inner in step.args[1]:
        part, plan = image, stages(inner, image.shape[:2])
        for piece in work_of(inner, plan):
            before = clock()
            part = execute(inner[piece.start : piece.stop], part, plan[piece.start : piece.stop + 1])
            yield piece.kind, piece.features, clock() - before


# ---- what costs grow with


def work_of(program: Sequence[Step], plan: Sequence[WindowedImage]) -> Iterator[FusedSteps]:
    """A program in the pieces that it is done in: tables are composed with what makes one before them."""
    at = 0
    while at < len(program):
        stop = at + 1
        if program[at].code in TABLES | STATISTICS:
            while stop < len(program) and program[stop].code in TABLES:
                stop += 1
        yield FusedSteps(at, stop, kind_of(program[at]), features_of(program[at], plan[at], plan[stop]))
        at = stop


def within(step: Step, size: Size) -> list[FusedSteps]:
    """The steps within a step."""
    if step.code is not Code.MIX:
        return []
    return [piece for _, inner in step.args[1] for piece in work_of(inner, stages(inner, size))]


def kind_of(step: Step) -> str:
    """Steps that are done by different code are different kinds, whatever they are called."""
    name = step.code.name
    match step:
        case Step(Code.AFFINE, (_, b, _, d, _, _, way, _)):
            return f"{name} {'turned' if b or d else 'moved'} {Interpolation(way).name.lower()}"
        case Step(Code.RESIZE, (_, _, way, antialias, *_)):
            return f"{name} {Interpolation(way).name.lower()}{'' if antialias else ', aliased'}"
        case Step(Code.ERASE, (_, _, _, _, None, _)):
            return f"{name} noise"
    return name


def features_of(step: Step, before: WindowedImage, after: WindowedImage) -> Features:
    """The pixels that a step works on: those it reads, and where they are others, those it writes. Of what most steps make, a part
    may be all that is needed; then the rest is made and dropped."""
    read, written, made = pixels(before.window), pixels(after.window), pixels(after.size)
    match step:
        case Step(Code.RESIZE):
            return read, made
        case Step(Code.PAD):
            return (made,)
        case Step(Code.CROP | Code.AFFINE):
            return (written,)
        case Step(Code.BLUR, (width, height, *_)):
            return read, read * (width + height)
        case Step(Code.ERASE, (_, _, height, width, *_)):
            return read, pixels((height, width))
        case Step(Code.MIX, (_, chains)):
            return (read * (1 + len(chains)),)
    return (read, written) if step.code in STATISTICS else (read,)


def pixels(window: Window | Size) -> float:
    """Of a window, or of an image of that size."""
    return float(window[-2] * window[-1])
