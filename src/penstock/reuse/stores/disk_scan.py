"""Reading all that the store on disk holds: to find its rows again, and to say what is right and what is not.

Rule 1: every checksum is checked, as on any other read.
Rule 2: of several records of one sample the one that a row leads to stays; where no row leads to any, the one that was renewed last is
        taken. So an entry that was removed, or replaced by one of an earlier epoch, may come back when the index is lost.
Rule 3: rows that others write meanwhile are theirs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from penstock.reuse.stores.disk_files import close_locked, size_of, wait_lock
from penstock.reuse.stores.disk_index import LARGE, NO_ROW, IndexRow
from penstock.reuse.stores.disk_records import record_at, walk
from penstock.reuse.stores.disk_segments import StoreParts, number_of
from penstock.reuse.stores.disk_upkeep import live_bytes, recount


def numbers(shelf: StoreParts) -> Iterator[int]:
    """Of all segments and large files."""
    yield from shelf.segment_numbers()
    for folder in shelf.large_folders():
        for name in shelf.files.names(folder):
            if number_of(name) & LARGE:
                yield number_of(name)


def content(shelf: StoreParts, number: int) -> bytes | None:
    """All bytes of a file; None where it cannot be read."""
    try:
        fd = shelf.files.open(shelf.path_of(number), os.O_RDONLY)
    except OSError:
        return None
    try:
        if number & LARGE:
            wait_lock(fd, shared=True)  # it may be about to be written over
        return shelf.files.read(fd, size_of(fd), 0)
    except OSError:
        return None
    finally:
        close_locked(shelf.files, fd)


def rebuild(shelf: StoreParts) -> int:
    """Find the rows again; how many there are. By the one process that may (`disk_upkeep.alone`)."""
    index = shelf.index
    before = index.all()
    best: dict[int, IndexRow] = {}
    confirmed: set[int] = set()
    for number in numbers(shelf):
        for found in walk(content(shelf, number) or b"", shelf.digest):
            if isinstance(found, int) or not found.good or found.sample >= index.samples:
                continue
            sample, row = found.sample, IndexRow(number, found.renewed, found.length, found.start)
            if before[sample].item()[:4] == row:
                confirmed.add(sample)
            if sample not in best or best[sample].renewed < row.renewed:
                best[sample] = row
    with index.locked():
        same = index.all() == before
        mine = {*np.flatnonzero(before["segment"]).tolist(), *best} - confirmed
        index.write({sample: best.get(sample, NO_ROW) for sample in mine if same[sample]})
        recount(shelf)
        index.is_whole()
    return int(np.count_nonzero(index.all()["segment"]))


@dataclass(slots=True, kw_only=True)
class Verified:
    """What a walk over everything has found."""

    good: int = 0
    """Records that a row leads to, and that are right."""
    dead: int = 0
    """Records that are right, but that no row leads to."""
    bad: int = 0
    """Records and stretches that are damaged."""
    torn: int = 0
    """Such behind the last record of a segment that a row leads to: what a process left that was killed while it wrote. That is no damage."""
    lost: int = 0
    """Rows that lead to nothing that is right."""
    files: int = 0
    bytes: int = 0


def verify(shelf: StoreParts, on_progress: Callable[[int, int], None] = lambda _done, _of: None) -> Verified:
    """Walk over all files and all rows. What others change meanwhile may be counted as it was or as it is, but not as damage: what seems
    wrong is looked at again, and by itself."""
    found, rows = Verified(), shelf.index.all()
    confirmed = np.zeros(len(rows), bool)
    ends = live_bytes(rows)
    every = {number: shelf.files.size(shelf.path_of(number)) for number in numbers(shelf)}
    for number in every:
        data = content(shelf, number)
        if data is None and not shelf.files.size(shelf.path_of(number)):
            continue  # it was removed meanwhile
        found.files, found.bytes = found.files + 1, found.bytes + len(data or b"")
        found.bad += data is None
        _, end = ends.get(number, (0, 0))
        for met in walk(data or b"", shelf.digest):
            at = met if isinstance(met, int) else met.start
            if isinstance(met, int) or not met.good or met.sample >= len(rows):
                found.torn += at >= end
                found.bad += at < end
            elif rows[met.sample].item()[:4] == (number, met.renewed, met.length, met.start):
                confirmed[met.sample] = True
            else:
                found.dead += 1
        on_progress(found.bytes, max(found.bytes, sum(every.values())))
    found.good = int(np.count_nonzero(confirmed))
    doubtful = np.flatnonzero((rows["segment"] != 0) & ~confirmed).tolist()
    found.lost = sum(_is_lost(shelf, sample, IndexRow(*rows[sample].item()[:4])) for sample in doubtful)
    return found


def _is_lost(shelf: StoreParts, sample: int, row: IndexRow) -> bool:
    """Whether a row that led to nothing right is still the same, and still does."""
    if shelf.index.row(sample) != row:
        return False
    found = record_at(memoryview(content(shelf, row.segment) or b""), row.offset, shelf.digest)
    return found is None or not found.good or (found.sample, found.renewed) != (sample, row.renewed)
