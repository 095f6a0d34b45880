"""Prepare a sample piece by piece and time each piece, for `explain`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from penstock.pipeline.annotated import AnnotatedDataset
from penstock.pipeline.chain import Chain, made_smaller, size_of
from penstock.pipeline.decode import Encoded
from penstock.pipeline.staged import StagedDataset
from penstock.plan.seeds import op_seed
from penstock.transforms.cpu import crop, execute
from penstock.transforms.steps import STATISTICS, TABLES, Program, Step, program_size
from penstock.transforms.targets import Targets, follow
from penstock.transforms.windows import stages

clock = time.thread_time  # waiting for a core is not work


class Piece(NamedTuple):
    stage: str
    """The part of the chain: "read", "decode", an op's number, "tail"; within a view, prefixed by the view's number."""
    seconds: float


def pieces_of(dataset: StagedDataset, index: int) -> Iterator[Piece]:
    before = clock()
    data, targets = dataset.read(index)
    yield Piece("read", clock() - before)
    before = clock()
    image = dataset.image(data)
    opened_s = clock() - before
    if not isinstance(image, Encoded):
        yield Piece("decode", opened_s)
    size = size_of(image)
    program: Program = []
    yield from chain_pieces(dataset.chain, image, index, "", program, opened_s)
    if isinstance(dataset, AnnotatedDataset) and not dataset.chain.views:
        before = clock()
        follow(program, Targets.of(size, **targets), size).tensors()
        yield Piece("targets", clock() - before)


def chain_pieces(
    chain: Chain, image: Any, seed: int, place: str, program: Program, opened_s: float = 0.0
) -> Iterator[Piece]:
    """Time the ops, the tail and the views of a chain. Append the steps run to `program`. `opened_s`: the time to parse the header."""
    for first, end in chain.stretches:
        body: Program = []
        size, origins = size_of(image), list[str]()
        for number in range(first, end - (chain.ends_elsewhere and end == len(chain.ops))):
            before = clock()
            steps = chain.draw(seed, program_size(body, size), None, number, number + 1)
            yield Piece(f"{place}{number}", clock() - before)
            body += steps
            origins += [f"{place}{number}"] * len(steps)
        program += body
        if isinstance(image, Encoded):
            before, smaller = clock(), made_smaller(body, image)
            body, image = smaller or (body, image.part(stages(body, size)[0].window))
            yield Piece("decode", opened_s + clock() - before)
            size = size if smaller is None else size_of(image)
        plan = stages(body, size)
        if size_of(image) != plan[0].window[2:]:
            image = crop(image, *plan[0].window)
        for start, stop in pieces_in(body):
            before = clock()
            image = execute(body[start:stop], image, plan[start : stop + 1])
            yield Piece(origins[start], clock() - before)
    yield from end_pieces(chain, image, seed, place)


def end_pieces(chain: Chain, image: Any, seed: int, place: str) -> Iterator[Piece]:
    """Time what follows the ops: views, a foreign transform, or the tail."""
    before = clock()
    if chain.ends_elsewhere:
        chain.ended(image, seed)
        yield Piece(f"{place}{len(chain.ops) - 1}", clock() - before)
        return
    for number, view in enumerate(chain.views):
        yield from chain_pieces(
            view, image.copy(), op_seed(seed, "MultiCrop", number), f"{place}{number}:", []
        )
    if not chain.views:
        before = clock()
        chain.tail.finish(image)
        yield Piece(f"{place}tail", clock() - before)


def pieces_in(program: Sequence[Step]) -> Iterator[tuple[int, int]]:
    """Yield first step and end of each piece. Tables are composed with the step before them that makes one."""
    at = 0
    while at < len(program):
        stop = at + 1
        if program[at].code in TABLES | STATISTICS:
            while stop < len(program) and program[stop].code in TABLES:
                stop += 1
        yield at, stop
        at = stop
