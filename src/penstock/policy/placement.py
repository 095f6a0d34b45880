"""Which lane takes which task of a batch: FusionFlow's task-affinity-aware scheduling (TAAS). Pure.

Rule 1: tasks lie in a row by what they cost a CPU worker. CPU workers take from the cheap end, the GPU lane from the dear end,
        until they meet. What only one lane can do, that lane does first.
Rule 2: the last `reserve` tasks of the row are the GPU lane's alone: a CPU worker would still be busy with one when the GPU
        lane has long done all the others.
Rule 3: a lane that asks gets a task as long as one is left for it.
Rule 4: how many to reserve is found by trying. Whichever side was still busy at the end of a batch gave the other too little: one
        more, or one less, in the next. When the number goes to and fro it is kept, until one side is late again and again or the
        lanes themselves have changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from penstock.plan.seeds import SeedStream, op_seed

MEMORY = 16
"""Batches that the search looks back on."""
REVERSALS = 4
"""Turns within them that make it an oscillation."""
AT_THE_WALL = 3
"""Batches in a row that ask for less than nothing, or for more than there is, before that is the answer."""
STRAYS = 8
"""Batches in a row with the same side late, before a number that was kept is searched for again."""
WEIGHT = 2.0
"""What lateness of the CPU workers counts beside that of the GPU lane: theirs comes in long tasks, its in short ones."""
LATE = 0.05
"""Share of a batch's time by which a side must be late to count as a stray; one that is settled does not follow every breath."""


class Lane(StrEnum):
    CPU = "cpu"
    GPU = "gpu"


class Piece(NamedTuple):
    """A task, or a sample, with the seconds that it is predicted to take a CPU worker and the GPU lane; None: it cannot run there."""

    id: int
    cpu_s: float | None
    gpu_s: float | None


@dataclass(frozen=True, slots=True)
class Deal:
    """What is left of one batch."""

    row: tuple[Piece, ...] = ()
    """What either lane may take, cheapest first."""
    cpu_only: tuple[Piece, ...] = ()
    gpu_only: tuple[Piece, ...] = ()
    reserve: int = 0

    @property
    def left(self) -> int:
        return len(self.row) + len(self.cpu_only) + len(self.gpu_only)

    def left_for(self, lane: Lane) -> int:
        """How many pieces the lane may still take, if no other does."""
        if lane is Lane.GPU:
            return len(self.gpu_only) + len(self.row)
        return len(self.cpu_only) + max(0, len(self.row) - self.reserve)

    def take(self, lane: Lane, count: int = 1) -> tuple[tuple[Piece, ...], Deal]:
        """Up to `count` pieces for a lane, and what is left; none when nothing is left for it."""
        own = self.gpu_only if lane is Lane.GPU else self.cpu_only
        taken, own = own[:count], own[count:]
        count = min(count - len(taken), self.left_for(lane) - len(taken) - len(own))
        if lane is Lane.GPU:
            cut = len(self.row) - count
            return taken + self.row[cut:][::-1], replace(self, gpu_only=own, row=self.row[:cut])
        return taken + self.row[:count], replace(self, cpu_only=own, row=self.row[count:])

    def put_back(self, piece: Piece) -> Deal:
        """A piece whose lane was lost, or has given it up, is to do again."""
        if piece.gpu_s is None:
            return replace(self, cpu_only=inserted(self.cpu_only, piece))
        if piece.cpu_s is None:
            return replace(self, gpu_only=inserted(self.gpu_only, piece))
        return replace(self, row=inserted(self.row, piece))

    def without_gpu(self) -> Deal:
        """The GPU lane has given up (out of memory, off): all that a CPU worker can do is for them. What it cannot stays."""
        return replace(self, reserve=0)


def cost(piece: Piece) -> tuple[float, float, int]:
    """The order of pieces: what they cost a CPU worker; of equal ones, the better for the GPU lane is dearer."""
    return piece.cpu_s or 0.0, -(piece.gpu_s or 0.0), piece.id


def inserted(row: tuple[Piece, ...], piece: Piece) -> tuple[Piece, ...]:
    at = bisect_left(row, cost(piece), key=cost)
    return (*row[:at], piece, *row[at:])


def deal(pieces: Iterable[Piece], *, reserve: int = 0) -> Deal:
    """A batch before anyone has taken of it."""
    row = sorted(pieces, key=cost)
    return Deal(
        row=tuple(piece for piece in row if piece.cpu_s is not None and piece.gpu_s is not None),
        cpu_only=tuple(piece for piece in row if piece.gpu_s is None),
        gpu_only=tuple(piece for piece in row if piece.cpu_s is None),
        reserve=reserve,
    )


def fixed_lane(seed: int, epoch: int, position: int, *, gpu_share: float) -> Lane:
    """The lane of a sample under `deterministic=True`: whatever is fast or slow, busy or lost, it is the same in every run."""
    drawn = op_seed(SeedStream(seed, epoch).sample(position, 0), "lane", 0)
    return Lane.GPU if drawn < gpu_share * 2.0**64 else Lane.CPU


def fixed(piece: Piece, lane: Lane) -> Piece:
    """The piece, for this lane alone."""
    return piece._replace(cpu_s=None) if lane is Lane.GPU else piece._replace(gpu_s=None)


# ---- the threshold


class End(NamedTuple):
    """When each side had done its last task of a batch, in seconds since the batch began."""

    cpu_s: float
    gpu_s: float

    @property
    def late(self) -> float:
        """By how much of the batch's time the CPU workers were later than the GPU lane; negative: earlier."""
        return (self.cpu_s - self.gpu_s) / max(self.cpu_s, self.gpu_s, 1e-9)


class Tried(NamedTuple):
    reserve: int
    late: float


@dataclass(frozen=True, slots=True)
class Search:
    """How many tasks to reserve, as far as it is known."""

    reserve: int = 0
    settled: bool = False
    tried: tuple[Tried, ...] = ()
    """The newest batches, oldest first."""


def after_batch(search: Search, end: End, *, tasks: int) -> Search:
    """What the end of a batch of `tasks` tasks teaches."""
    tried = (*search.tried, Tried(search.reserve, end.late))[-MEMORY:]
    if search.settled:
        sides = {one.late > 0 for one in tried[-STRAYS:]}
        stray = (
            len(tried) >= STRAYS and len(sides) == 1 and all(abs(one.late) > LATE for one in tried[-STRAYS:])
        )
        if stray and moved(search.reserve, tried[-1].late, tasks) != search.reserve:
            return Search(moved(search.reserve, end.late, tasks))
        return replace(search, tried=tried)
    following = moved(search.reserve, end.late, tasks)
    if turns(tried) >= REVERSALS:
        return Search(best(tried), settled=True)
    if len(tried) >= AT_THE_WALL and all(
        one.reserve == search.reserve == moved(one.reserve, one.late, tasks) for one in tried[-AT_THE_WALL:]
    ):
        return Search(search.reserve, settled=True)
    return Search(following, tried=tried)


def restarted(search: Search) -> Search:
    """There are other workers, or the GPU lane has become slower or faster: search on from here."""
    return Search(search.reserve)


def moved(reserve: int, late: float, tasks: int) -> int:
    """One more for the GPU lane if the CPU workers were late, one less if it was; between nothing and all."""
    return min(max(0, tasks), max(0, reserve + (late > 0) - (late < 0)))


def turns(tried: tuple[Tried, ...]) -> int:
    """How often the late side has changed."""
    sides = [one.late > 0 for one in tried]
    return sum(a != b for a, b in pairwise(sides))


def best(tried: tuple[Tried, ...]) -> int:
    """The number at which both sides would end together, by the line through all that was tried. How late a side was counts, not
    only that it was: one batch in ten with a very late end is not outvoted by nine with a slightly early one."""
    points = [(one.reserve, one.late * (WEIGHT if one.late > 0 else 1.0)) for one in tried]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    root = mean_x - mean_y / slope if slope < 0 else tried[-1].reserve
    numbers = [x for x, _ in points]
    return round(min(max(numbers) + 1, max(min(numbers), root)))
