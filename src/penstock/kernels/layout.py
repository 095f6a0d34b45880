"""Compile a sample's program to rows of the kernels' table. Pure: needs neither Triton nor a GPU.

A *pass* makes one image from another: a reader (the image as it is, weighted sums along one axis, a stencil), then any number of items, moves and
changes of single pixels. Moves run backwards, from an output pixel to its source, so that only used pixels are computed. A pixel from outside of
a move's image takes the move's colour, and the changes behind it.

Rule 1: write an image to memory only if the next step needs a pixel's neighbours, or all pixels (statistics).
Rule 2: crops and flips before the first pass are free: they only change how the same memory is read.
Rule 3: pass i of all rows runs in one launch, so a task has as many launches as its longest row has passes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.kernels import words as w
from penstock.kernels.forms import (
    CHANGES,
    FILTERS,
    KINDS,
    LIMITED,
    MODES,
    Taps,
    blur_sigma,
    colour,
    fits,
    fixed_point,
    pillow_taps,
    saturated,
    supported,
    tensor_steps,
)
from penstock.transforms.cpu import goes_down_first
from penstock.transforms.steps import (
    STATISTICS,
    Code,
    Interpolation,
    Program,
    Size,
    Step,
    is_shift,
    size_after,
)
from penstock.transforms.windows import is_inside

ALIGNED = 16
MOST_PIXELS = (1 << 31) // 3 - 1
"""Offsets within an image are 32-bit."""


class View(NamedTuple):
    """An image in memory: the row's address it is relative to, its offset, and its strides in bytes."""

    base: int
    offset: int
    stride_y: int
    stride_x: int
    stride_c: int
    height: int
    width: int

    def cut(self, top: int, left: int, height: int, width: int) -> View:
        base, offset, down, across, channel, _, _ = self
        return View(base, offset + top * down + left * across, down, across, channel, height, width)

    def flipped(self, *, across: bool) -> View:
        if across:
            offset = self.offset + (self.width - 1) * self.stride_x
            return self._replace(offset=offset, stride_x=-self.stride_x)
        return self._replace(offset=self.offset + (self.height - 1) * self.stride_y, stride_y=-self.stride_y)


def planar(size: Size) -> tuple[int, int, int]:
    """Return the strides of channels x height x width, without gaps."""
    return size[1], 1, size[0] * size[1]


def interleaved(size: Size) -> tuple[int, int, int]:
    """Return the strides of height x width x 3 channels, without gaps."""
    return 3 * size[1], 3, 1


class Reader(NamedTuple):
    code: int = w.DIRECT
    taps: Taps | None = None
    numbers: tuple[float, ...] = ()
    fill: int = 0
    mixed: tuple[tuple[float, View], ...] = ()


AS_IT_IS = Reader()
NO_NUMBERS = (0.0,) * 6


@dataclass(slots=True)
class Scratch:
    """Memory between passes, shared by a sample's rows."""

    top: int = 0

    def take(self, wanted: int) -> int:
        at = self.top
        self.top += -(-wanted // ALIGNED) * ALIGNED
        return at


class ProgramLayout(NamedTuple):
    """One sample's rows, without addresses."""

    rows: tuple[bytes, ...]
    slots: tuple[int, ...]
    """Statistics slots each row needs."""
    rounds: int
    scratch_bytes: int
    source_bytes: int
    """Of the image it reads."""
    size: Size
    """Height and width of the result."""


def lay_out(program: Program, size: Size, strides: tuple[int, int, int] | None = None) -> ProgramLayout:
    """Return the rows of a program on an image of `size`; ValueError for what `supported` refuses. `strides`: bytes between rows, columns and
    channels (0 for a grey image); by default planar."""
    for step in program:
        if step.code in LIMITED and (why := supported(step)):
            raise ValueError(f"{step.code.name}: {why}")
    scratch, rows = Scratch(), list[Row]()
    down, across, channel = strides or planar(size)
    row = Row(View(w.SOURCE, 0, down, across, channel, *size), scratch, rows).follow(program)
    row.emit(w.TO_BATCH)
    written = [row for row in rows if row.passes]
    rows.clear()  # each refers to the list: a cycle, which would wait for the collector
    return ProgramLayout(
        tuple([row.written() for row in written]),
        tuple([row.slots for row in written]),
        max([row.round for row in written]),
        scratch.top,
        (size[0] - 1) * down + (size[1] - 1) * across + 2 * channel + 1,
        row.size,
    )


class Row:
    """Successive passes. Steps still to be done to the image in `view` wait in `reader` and `items`."""

    __slots__ = (
        "all_items", "free", "items", "owned", "passes", "reader", "rows", "scratch", "size", "slots", "start", "table", "view",
    )  # fmt: skip

    def __init__(self, view: View, scratch: Scratch, rows: list[Row], start: int = 0) -> None:
        self.view, self.scratch, self.rows, self.start = view, scratch, rows, start
        self.size: Size = (view.height, view.width)
        self.passes: list[bytes] = []
        self.items: list[bytes] = []
        self.all_items: list[bytes] = []
        self.reader = AS_IT_IS
        self.slots = 0
        self.table = (0, 0)
        """Kind and slot of the table the next pass makes."""
        self.free: list[tuple[int, int]] = []
        """Scratch this row has finished with, (bytes, offset). Concurrent rows have their own."""
        self.owned: tuple[int, int] | None = None
        """The scratch of `view`, if nobody else reads it."""
        rows.append(self)

    @property
    def round(self) -> int:
        return self.start + len(self.passes)

    @property
    def is_bare(self) -> bool:
        return self.reader.code == w.DIRECT and not self.items

    def follow(self, program: Sequence[Step]) -> Row:
        """Add all steps; return the row in which the program ends."""
        row = self
        for step in program:
            row = row.step(step)
        return row

    def step(self, step: Step) -> Row:
        code, args = step
        if code in CHANGES:
            self.change(*CHANGES[code](*args))
            return self
        if code in STATISTICS:
            kind, statistics = KINDS[code]
            self.table = (kind, self.count(statistics))
            self.change(kind, 0, *args)
            return self
        if code is Code.MIX:
            return self.mix(*args)
        if code is Code.MIX_TENSORS:
            kept, chains, version, way = args
            return self.mix(
                kept, [(each, tensor_steps(ops, self.size, version, way)) for each, ops in chains]
            )
        size = size_after(step, self.size)
        if size[0] * size[1] > MOST_PIXELS:
            raise ValueError(
                f"{code.name}: an image of {size[0]} x {size[1]} pixels is too large for the kernels"
            )
        if code is Code.RESIZE:
            self.resize(*args)
        elif code is Code.FLIP_H or code is Code.FLIP_V:
            self.flip(across=code is Code.FLIP_H)
        elif code is Code.CROP:
            self.crop(*args)
        elif code is Code.AFFINE:
            self.affine(args)
        elif code is Code.SHARPNESS:
            self.materialise()
            self.reader = Reader(w.SHARPEN, numbers=(args[0],))
        elif code is Code.PAD:
            left, top, _, _, fill, mode = args
            self.move(w.SHIFT, (1, -top, 1, -left, MODES[mode], 0), saturated(fill))
        elif code is Code.BLUR:
            self.blur(*args)
        else:
            assert code is Code.ERASE, code
            self.move(w.ERASE, (*args[:4], 0, 0), colour(args[4]))
        self.size = size
        return self

    # ---- moves and changes of single pixels

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        if self.is_bare and is_inside((top, left, height, width), self.size):
            self.view = self.view.cut(top, left, height, width)
        else:
            self.move(w.SHIFT, (1, top, 1, left, w.CONSTANT, 0), 0)

    def flip(self, *, across: bool) -> None:
        if self.is_bare:
            self.view = self.view.flipped(across=across)
        elif across:
            self.move(w.SHIFT, (1, 0, -1, self.size[1] - 1, w.CONSTANT, 0), 0)
        else:
            self.move(w.SHIFT, (-1, self.size[0] - 1, 1, 0, w.CONSTANT, 0), 0)

    def affine(self, args: tuple[Any, ...]) -> None:
        matrix, way, in_black = args[:6], args[6], args[7] is None
        fill = 0 if in_black else colour(args[7])
        if is_shift(args):
            self.move(w.SHIFT, (1, int(matrix[5]), 1, int(matrix[2]), w.CONSTANT, 0), fill)
        elif way == Interpolation.BILINEAR:
            self.materialise()
            self.reader = Reader(w.IN_BLACK if in_black else w.BILINEAR, numbers=matrix, fill=fill)
        elif (matrix[1] or matrix[3]) and fits(matrix, self.size):
            self.move(w.FIXED, fixed_point(matrix), fill)
        else:
            self.move(w.FLOAT, tuple(map(float, matrix)), fill)

    def move(self, code: int, numbers: tuple[float, ...], fill: int) -> None:
        form = REALS if code == w.FLOAT else INTEGERS
        self.items.append(form.pack(code, *self.size, fill, *numbers))

    def change(self, code: int, number: int = 0, real: float = 0.0) -> None:
        self.items.append(REALS.pack(code, number, 0, 0, real, 0.0, 0.0, 0.0, 0.0, 0.0))

    # ---- what needs its image in memory

    def materialise(self) -> None:
        """Write what is waiting, so that the next reader finds it in memory."""
        if not self.is_bare:
            self.emit(w.TO_SCRATCH)

    def count(self, statistics: int) -> int:
        """Count statistics of the image as it is now; return their slot."""
        self.slots += 1
        self.emit(w.NOWHERE if self.is_bare else w.TO_SCRATCH, statistics)
        return self.slots - 1

    def resize(self, height: int, width: int, way: int, antialias: bool, box: Any = None) -> None:
        rows, columns = self.size
        if box is None and self.size == (height, width):
            return
        self.materialise()
        if (antialias and way != Interpolation.NEAREST) or way == Interpolation.LANCZOS:
            top, left, part_rows, part_columns = (
                (0.0, 0.0, float(rows), float(columns)) if box is None else box
            )
            kind, reach = FILTERS[Interpolation(way)]
            down = pillow_taps(w.DOWN, kind, reach, top, part_rows, height)
            across = pillow_taps(w.ACROSS, kind, reach, left, part_columns, width)
            keeps_height = height == rows == part_rows
            keeps_width = width == columns == part_columns
            first_down = box is None and goes_down_first(self.size, (height, width))
        else:
            if box is not None:  # as the CPU rounds it
                top, left = round(box[0]), round(box[1])
                rows = max(top + 1, round(box[0] + box[2])) - top
                columns = max(left + 1, round(box[1] + box[3])) - left
                self.view = self.view.cut(top, left, rows, columns)
                self.size = (rows, columns)
            kind, taps = (w.NEAREST, 1) if way == Interpolation.NEAREST else (w.LINEAR, 2)
            down = Taps(w.DOWN, kind, taps, height, (rows / height,))
            across = Taps(w.ACROSS, kind, taps, width, (columns / width,))
            keeps_height, keeps_width, first_down = height == rows, width == columns, False
        # Pillow goes across first, except for images that shrink much more going down.
        order = [(down, keeps_height), (across, keeps_width)]
        self.tapped([taps for taps, keeps in (order if first_down else reversed(order)) if not keeps])

    def blur(
        self, width: int, height: int, sigma_x: float, sigma_y: float, _theirs: str | None = None
    ) -> None:
        self.materialise()
        sigma_y = sigma_y if sigma_y > 0 else sigma_x  # as OpenCV reads it
        down = Taps(w.DOWN, w.GAUSS, height, self.size[0], (blur_sigma(sigma_y, height),))
        across = Taps(w.ACROSS, w.GAUSS, width, self.size[1], (blur_sigma(sigma_x, width),))
        self.tapped([taps for taps in (across, down) if taps.taps > 1])

    def tapped(self, passes: list[Taps]) -> None:
        for taps in passes:
            self.materialise()
            self.reader = Reader(w.TAPPED, taps, taps.numbers)
            rows, columns = self.size
            self.size = (taps.positions, columns) if taps.axis == w.DOWN else (rows, taps.positions)

    def mix(self, kept: float, chains: Sequence[tuple[float, Sequence[Step]]]) -> Row:
        """Make each chain its own row, so that they run side by side; return a new row that starts when all are done."""
        self.materialise()
        parts, start, free = [(kept, self.view)], self.round, self.free
        for weight, program in chains:
            branch = Row(self.view, self.scratch, self.rows, self.round).follow(program)
            branch.materialise()
            parts.append((weight, branch.view))
            start, free = max(start, branch.round), free + branch.free
        after = Row(self.view, self.scratch, self.rows, start)
        after.reader, after.free = Reader(w.MIXED, mixed=tuple(parts)), free
        return after

    def place(self, wanted: int) -> tuple[int, int]:
        """Return scratch for an image: reused if possible."""
        fitting = [one for one in self.free if one[0] >= wanted]
        if not fitting:
            return wanted, self.scratch.take(wanted)
        self.free.remove(min(fitting))
        return min(fitting)

    def emit(self, sink: int, statistics: int = 0) -> None:
        """Add one pass for all that is waiting."""
        height, width = self.size
        code, taps, numbers, fill, mixed = self.reader
        place = self.place(3 * height * width) if sink == w.TO_SCRATCH else (0, 0)
        items, begin = self.items, w.ITEM_WORDS * len(self.all_items)
        self.all_items += items
        special = (0, 0, 0, 0, 0)
        if taps is not None:
            # Weights of all passes are made before the first: they must not share scratch with images.
            weights = self.scratch.take(4 * (taps.taps + 1) * taps.positions)
            special = (taps.axis, taps.taps, weights, taps.filter, taps.positions)
        elif mixed:
            special = (w.ITEM_WORDS * len(self.all_items), len(mixed), 0, 0, 0)
            self.all_items += [mixed_item(weight, view) for weight, view in mixed]
        slot = self.slots - 1 if statistics else 0
        self.passes.append(
            PASS.pack(
                *(code, *self.view, height, width, sink, place[1], statistics, slot, *self.table),
                *(begin, len(items), *special, fill, *numbers, *NO_NUMBERS[len(numbers) :]),
            )
        )
        self.reader, self.items, self.table = AS_IT_IS, [], (0, 0)
        if sink == w.TO_SCRATCH:
            if self.owned is not None:
                self.free.append(self.owned)
            self.owned = place
            self.view = View(w.SCRATCH, place[1], width, 1, height * width, height, width)

    def written(self) -> bytes:
        """Return the row as it stands in the table, without addresses."""
        area = w.HEAD_WORDS + w.PASS_WORDS * len(self.passes)
        return b"".join(
            [HEAD.pack(len(self.passes), self.start, 0, 0, 0, 0, area), *self.passes, *self.all_items]
        )


HEAD = struct.Struct(f"<{w.HEAD_WORDS}q")
PASS = struct.Struct(f"<{w.REAL}q6d")
INTEGERS = struct.Struct("<10q")
REALS = struct.Struct("<4q6d")
MIXES = struct.Struct("<8q2d")


def mixed_item(weight: float, view: View) -> bytes:
    return MIXES.pack(0, *view[:5], 0, 0, weight, 0.0)
