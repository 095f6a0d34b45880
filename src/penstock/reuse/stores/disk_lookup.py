"""Finding entries of the store on disk: their rows, what these lead to, and whether it is what is wanted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk_index import LARGE, Rows, Samples
from penstock.reuse.stores.disk_records import decode
from penstock.reuse.stores.disk_segments import Run, SegmentReader, Shelf

FEW = 16
"""Up to so many are looked up one by one, if they have a file each: of that many, arrays take longer than numbers."""


def look_up(
    shelf: Shelf, reader: SegmentReader, wanted: Sequence[Wanted], left: list[int], found: list[Entry | None]
) -> int:
    """Put what there is of those that are `left` into `found`; how many were not what their rows said."""
    if len(left) <= FEW:
        _read_large(shelf, reader, wanted, left, found)
        left = [at for at in left if found[at] is None]
    rest, tried = np.array(left, np.int64), None
    # guard: moved-record
    for _ in range(2):  # compaction may move a record while we look for it; its row then says where to
        if len(rest):
            rest, tried = _read(shelf, reader, wanted, rest, tried, found)
    return len(rest)


def _read_large(
    shelf: Shelf, reader: SegmentReader, wanted: Sequence[Wanted], left: list[int], found: list[Entry | None]
) -> None:
    runs: list[Run] = []
    for at in left:
        segment, renewed, length, offset = shelf.index.one(wanted[at].sample)
        if segment & LARGE and renewed == wanted[at].renewed and length <= shelf.max_bytes:
            runs.append((segment, offset, offset + length, at, at + 1))
    for at, data in reader.read_alone(runs) if runs else ():
        found[at] = decode(data, shelf.digest, wanted[at])


def _read(
    shelf: Shelf,
    reader: SegmentReader,
    wanted: Sequence[Wanted],
    left: Samples,
    tried: Rows | None,
    found: list[Entry | None],
) -> tuple[Samples, Rows]:
    """Read what rows lead to, but not where it was `tried`; which were not right, and their rows."""
    places = left.tolist()
    rows = shelf.index.at(np.array([wanted[at].sample for at in places], np.int64))
    epochs = np.array([wanted[at].renewed for at in places])
    there = (rows["segment"] != 0) & (rows["renewed"] == epochs) & (rows["length"] <= shelf.max_bytes)
    read = np.flatnonzero(there if tried is None else there & (rows != tried))
    of = left[read].tolist()
    right: list[int] = []
    for place, data in reader.read(rows[read]):
        at = of[place]
        entry = found[at] = decode(data, shelf.digest, wanted[at])
        if entry is not None:
            right.append(place)
    wrong = there
    wrong[read[right]] = False
    return left[wrong], rows[wrong]
