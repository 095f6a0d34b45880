"""Where samples' bytes lie in the memory file of the machine's cache: as the cache's service, agents and workers tell each other."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

UNREAD = -1
"""Place of a sample that the cache does not have: whoever prepares it reads it."""


class Landing(NamedTuple):
    """A sample of a batch: where its bytes are, and how many belong to each of its ranges."""

    ordinal: int
    offset: int
    lengths: tuple[int, ...] = ()


def pack_places(landings: Iterable[Landing]) -> bytes:
    numbers = array("q")
    for ordinal, offset, lengths in landings:
        numbers.extend((ordinal, offset, len(lengths), *lengths))
    return numbers.tobytes()


def split_places(data: bytes) -> Iterator[Landing]:
    """Yield what was packed. ValueError for anything else; whether a place lies in the file is for whoever reads there."""
    numbers = array("q")
    numbers.frombytes(data)
    at = 0
    while at < len(numbers):
        ordinal, offset, count = numbers[at : at + 3]
        if not 0 <= count <= len(numbers) - at - 3:  # guard: places-whole
            raise ValueError(
                f"a place has {count} lengths, and there are {len(numbers) - at - 3} more numbers"
            )
        yield Landing(ordinal, offset, tuple(numbers[at + 3 : at + 3 + count]))
        at += 3 + count
