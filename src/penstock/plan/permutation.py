"""A shuffle with random access: keyed permutations of range(n) in little memory.

Rule 1: `Permutation(key, n)` is a pure function of its two numbers, the same on every platform; n <= 2**62.
Rule 2: reading k places costs O(k) wherever they lie, and memory grows as sqrt(n): a seek costs no more than a step.
Rule 3: statistical tests must not tell it from a uniform shuffle, nor keys 0, 1, 2, ... from random ones.

How: a number below n is a cell of a grid, row * width + column, with about sqrt(n) rows and a power of two
as width. A step moves all cells of a column by an amount drawn for that column (rows add, modulo their
number), or all cells of a row by an amount drawn for that row (columns xor). Each step can be undone, so
together they are a bijection: a Feistel network. The grid is slightly larger than n; a number that lands at
n or beyond goes through again until it does not, which keeps the bijection ("cycle walking").

The draw of a column or row is a keyed hash of its number. These are few, so the draws are tabulated up to
`TABULATED_MAX`: a step is then a gather and an addition. A small grid would need many more steps to shuffle
well; up to `SORTED_MAX` the numbers are sorted by their hash instead, which makes all orders equally likely.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from operator import index
from typing import Final, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from penstock.plan.seeds import GOLDEN64, MASK64, MIX64_A, MIX64_B, mix64

MAX_N: Final = 1 << 62
SORTED_MAX: Final = 1 << 12
TABULATED_MAX: Final = 1 << 32  # at most 5 MiB of tables, made in a few ms
ROUNDS: Final = 4  # 400 orders of 10**4 numbers betray two rounds, 30,000 of 10**3 betray three, but not four
CHUNK: Final = 1 << 14  # numbers moved at a time: they and the tables stay in the second-level cache

Ints = NDArray[np.int64]
Draw = Callable[[Ints], Ints]


class Permutation:
    """The permutation of range(n) named by `key`. Immutable; pickles as its two numbers."""

    __slots__ = ("_back", "_back_one", "_forth", "key", "n")

    def __init__(self, key: int, n: int) -> None:
        if not 0 <= n <= MAX_N:
            raise ValueError(f"n must be between 0 and 2**62, got {n}")
        self.key, self.n = key, n
        self._forth: Draw
        self._back: Draw
        self._back_one: Callable[[int], int]
        if n <= SORTED_MAX:
            order = np.argsort(hashes(np.arange(n), mix64(key & MASK64))).astype(np.int64)
            places = np.argsort(order).astype(np.int64)
            self._forth, self._back, self._back_one = order.take, places.take, places.data.__getitem__
        else:
            grid = Grid(key, n, tabulated=n <= TABULATED_MAX)
            self._forth, self._back = partial(grid.walk, grid.forth), partial(grid.walk, grid.back)
            self._back_one = grid.back_one

    def __call__(self, positions: Ints) -> Ints:
        """Return the numbers at these places of the order."""
        return self._forth(self._checked(positions))

    def inverse(self, numbers: Ints) -> Ints:
        """Return the places of these numbers in the order."""
        return self._back(self._checked(numbers))

    def place(self, number: SupportsIndex) -> int:
        """Return the `inverse` of one number; faster for a few."""
        plain = index(number)  # a NumPy integer would overflow, and a tensor would make tensors
        if not 0 <= plain < self.n:
            raise IndexError(f"{plain} is outside of range({self.n})")
        return self._back_one(plain)

    def __reduce__(self) -> tuple[type["Permutation"], tuple[int, int]]:
        return Permutation, (self.key, self.n)

    def _checked(self, numbers: Ints) -> Ints:
        numbers = np.ascontiguousarray(numbers, dtype=np.int64)
        if numbers.size and numbers.view(np.uint64).max() >= self.n:  # unsigned, a negative number is large
            raise IndexError(f"a position or number outside of range({self.n})")
        return numbers


@lru_cache(maxsize=16)
def permutation(key: int, n: int) -> Permutation:
    """Return a cached `Permutation`; few orders are in use at a time: this epoch's and those in which next uses are looked for."""
    return Permutation(key, n)


class Grid:
    """The Feistel network over rows * 2**shift cells; see the head of this file."""

    __slots__ = ("mask", "n", "rounds", "rows", "shift", "tables")

    def __init__(self, key: int, n: int, *, rounds: int = ROUNDS, tabulated: bool = True) -> None:
        self.n = n
        self.shift = n.bit_length() // 2
        self.mask = (1 << self.shift) - 1
        rows = -(-n >> self.shift)
        self.rows = rows + rows % 2  # with an odd number of rows, every permutation would be an even one
        width = 1 << self.shift
        start = mix64(key & MASK64)
        keys = [mix64((start + number * GOLDEN64) & MASK64) for number in range(2 * rounds)]
        draws = [
            (
                partial(_amounts, key=one, bound=self.rows),
                partial(_amounts, key=other, bound=width),
            )
            for one, other in zip(keys[::2], keys[1::2], strict=True)
        ]
        self.rounds: list[tuple[Draw, Draw]] = [*draws]
        self.tables: list[tuple[memoryview, memoryview]] = []
        """Draws of columns and rows per round, last round first; empty if too many to tabulate."""
        if tabulated:
            drawn = [
                (by_column(np.arange(width)), by_row(np.arange(self.rows))) for by_column, by_row in draws
            ]
            self.rounds = [(columns.take, rows.take) for columns, rows in drawn]
            self.tables = [(columns.data, rows.data) for columns, rows in reversed(drawn)]

    def walk(self, step: Draw, numbers: Ints) -> Ints:
        """Move each number by `step` until it is below n again."""
        moved = np.empty_like(numbers)
        for first in range(0, numbers.size, CHUNK):
            part = moved[first : first + CHUNK]
            part[:] = step(numbers[first : first + CHUNK])
            while part.max() >= self.n:
                (beyond,) = np.nonzero(part >= self.n)
                part[beyond] = step(part[beyond])
        return moved

    def forth(self, numbers: Ints) -> Ints:
        columns, rows = numbers & self.mask, numbers >> self.shift
        unsigned = rows.view(np.uint64)
        for column_draw, row_draw in self.rounds:
            rows += column_draw(columns)
            np.minimum(unsigned, (rows - self.rows).view(np.uint64), out=unsigned)  # below 0 is large here
            columns ^= row_draw(rows)
        rows <<= self.shift
        rows |= columns
        return rows

    def back(self, numbers: Ints) -> Ints:
        columns, rows = numbers & self.mask, numbers >> self.shift
        unsigned = rows.view(np.uint64)
        for column_draw, row_draw in reversed(self.rounds):
            columns ^= row_draw(rows)
            rows -= column_draw(columns)
            np.minimum(unsigned, (rows + self.rows).view(np.uint64), out=unsigned)
        rows <<= self.shift
        rows |= columns
        return rows

    def back_one(self, number: int) -> int:
        """Do `walk(back)` for one number."""
        if not self.tables:
            return int(self.walk(self.back, np.array([number]))[0])
        mask, shift, rows = self.mask, self.shift, self.rows
        while True:
            column, row = number & mask, number >> shift
            for column_draws, row_draws in self.tables:
                column ^= row_draws[row]
                row -= column_draws[column]
                if row < 0:
                    row += rows
            number = row << shift | column
            if number < self.n:
                return number


def _amounts(numbers: Ints, *, key: int, bound: int) -> Ints:
    drawn = hashes(numbers, key)
    drawn %= np.uint64(bound)  # no bound exceeds 2**32, so that no amount is favoured
    return drawn.view(np.int64)


def hashes(numbers: Ints, key: int) -> NDArray[np.uint64]:
    """Return `mix64(number ^ key)` of each number."""
    state = numbers.astype(np.uint64)
    state ^= np.uint64(key)
    state += np.uint64(GOLDEN64)
    state ^= state >> np.uint64(30)
    state *= np.uint64(MIX64_A)
    state ^= state >> np.uint64(27)
    state *= np.uint64(MIX64_B)
    state ^= state >> np.uint64(31)
    return state
