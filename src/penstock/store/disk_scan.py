"""Reading all that the store on disk holds: to find its rows again, and to say what is right and what is not.

Rule 1: every checksum is checked, as on any other read.
Rule 2: of several records of one sample the one that a row leads to stays; where no row leads to any, the one that was renewed last is
        taken. So an entry that was removed, or replaced by one of an earlier epoch, may come back when the index is lost.
Rule 3: rows that others write meanwhile are theirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from penstock.store.disk_files import size_of
from penstock.store.disk_records import Found, walk
from penstock.store.disk_upkeep import recount
from penstock.store.kept_index import LARGE, new_rows
from penstock.store.segments import Shelf, number_of


def numbers(shelf: Shelf) -> Iterator[int]:
    """Of all segments and large files."""
    yield from shelf.segment_numbers()
    for folder in shelf.large_folders():
        for name in shelf.files.names(folder):
            if number_of(name) & LARGE:
                yield number_of(name)


def content(shelf: Shelf, number: int) -> bytes | None:
    """All bytes of a file; None where it cannot be read."""
    try:
        fd = shelf.files.open(shelf.path_of(number), os.O_RDONLY)
    except OSError:
        return None
    try:
        return shelf.files.read(fd, size_of(fd), 0)
    except OSError:
        return None
    finally:
        shelf.files.close(fd)


def rebuild(shelf: Shelf) -> int:
    """Find the rows again; how many there are. By the one process that may (`disk_upkeep.alone`)."""
    index = shelf.index
    before = index.all()
    best, confirmed = new_rows(index.samples), np.zeros(index.samples, bool)
    for number in numbers(shelf):
        for found in walk(content(shelf, number) or b"", shelf.digest):
            if isinstance(found, int) or not found.good or found.sample >= index.samples:
                continue
            row = (number, found.renewed, found.length, found.start)
            sample = found.sample
            confirmed[sample] |= before[sample].item()[:4] == row
            if not best[sample]["segment"] or best[sample]["renewed"] < found.renewed:
                best[sample] = (*row, 0)
    samples = np.arange(index.samples)
    with index.locked():
        mine = (index.all() == before) & ~confirmed & (before != best)
        index.write(samples[mine], best[mine])
        recount(shelf)
        index.is_whole()
    return int(np.count_nonzero(index.all()["segment"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a walk over everything has found."""

    good: int
    """Records that a row leads to, and that are right."""
    dead: int
    """Records that are right, but that no row leads to."""
    bad: int
    """Records and stretches that are damaged."""
    lost: int
    """Rows that lead to nothing that is right."""
    files: int
    bytes: int


def verify(shelf: Shelf) -> Verified:
    """Walk over all files and all rows. What others change meanwhile may be counted as it was or as it is."""
    good = dead = bad = files = nbytes = 0
    rows = shelf.index.all()
    for number in numbers(shelf):
        data = content(shelf, number)
        files, nbytes = files + 1, nbytes + len(data or b"")
        bad += data is None
        for found in walk(data or b"", shelf.digest):
            if not isinstance(found, Found) or not found.good or found.sample >= len(rows):
                bad += 1
            elif rows[found.sample].item()[:4] == (number, found.renewed, found.length, found.start):
                good += 1
            else:
                dead += 1
    lost = int(np.count_nonzero(rows["segment"])) - good
    return Verified(good=good, dead=dead, bad=bad, lost=lost, files=files, bytes=nbytes)
