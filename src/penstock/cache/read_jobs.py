"""What readers are asked for: samples by their ranges, and which of them are read together. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from penstock.sources.sources import NEAR_BYTES, ByteRange

MOST_TOGETHER = 4 << 20
"""Bytes that one job reads of several samples: more would make the first one wait, and keep other readers idle."""
Token = Hashable
WantedSample = tuple[Token, tuple[ByteRange, ...]]


class NoRoom(Exception):
    """There was no memory for a sample."""


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Samples that one reader reads."""

    step: int
    """Who needs them first: jobs begin in the order of their steps."""
    rank: int
    samples: tuple[WantedSample, ...]
    """Each with a token, by which its caller knows it. Several if their ranges lie next to each other."""


def grouped(
    step: int,
    rank: int,
    samples: Iterable[WantedSample],
    *,
    near_bytes: int = NEAR_BYTES,
    most_bytes: int = MOST_TOGETHER,
) -> list[ReadJob]:
    """Put samples into jobs, in order. Samples that follow one another in a file share a job of at most `most_bytes`."""
    return [ReadJob(step, rank, tuple(some)) for some in _runs(samples, near_bytes, most_bytes)]


def _runs(samples: Iterable[WantedSample], near_bytes: int, most_bytes: int) -> Iterator[list[WantedSample]]:
    some: list[WantedSample] = []
    file, first, last = "", 0, 0
    for sample in samples:
        where = extent(sample[1], near_bytes)
        if where is None:
            if some:
                yield some
                some = []
            yield [sample]
            continue
        name, start, end = where
        near = name == file and 0 <= start - last <= near_bytes and end - first <= most_bytes
        if some and not near:
            yield some
            some = []
        if not some:
            file, first = name, start
        some.append(sample)
        last = end
    if some:
        yield some


def extent(ranges: Sequence[ByteRange], near_bytes: int) -> tuple[str, int, int] | None:
    """Return the part of a file that holds these ranges, one behind the other; None if they lie apart or one's end is unknown."""
    if not ranges:
        return None
    name, first, last = ranges[0]
    if last is None:
        return None
    for other, start, end in ranges[1:]:
        if other != name or end is None or not 0 <= start - last <= near_bytes:
            return None
        last = end
    return name, first, last
