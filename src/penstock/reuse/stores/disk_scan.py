"""Full scans of the disk store: rebuild its rows, and verify it.

Rule 1: every checksum is checked, as on any read.
Rule 2: of several records of a sample the one with a row stays; without a row, the last renewed wins. So a removed entry, or one replaced by an
        earlier epoch's, may come back when the index is lost.
Rule 3: rows that others write meanwhile stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from penstock.reuse.stores.disk_files import close_locked, size_of, wait_lock
from penstock.reuse.stores.disk_index import LARGE, NO_ROW, IndexRow
from penstock.reuse.stores.disk_records import record_at, walk
from penstock.reuse.stores.disk_segments import StoreParts, number_of
from penstock.reuse.stores.disk_upkeep import live_bytes, recount


def numbers(shelf: StoreParts) -> Iterator[int]:
    """Yield the numbers of all segments and large files."""
    yield from shelf.segment_numbers()
    for folder in shelf.large_folders():
        for name in shelf.files.names(folder):
            if number_of(name) & LARGE:
                yield number_of(name)


def content(shelf: StoreParts, number: int) -> bytes | None:
    """Return all bytes of a file; None if it cannot be read."""
    try:
        fd = shelf.files.open(shelf.path_of(number), os.O_RDONLY)
    except OSError:
        return None
    try:
        if number & LARGE:
            wait_lock(fd, shared=True)  # it may be about to be overwritten
        return shelf.files.read(fd, size_of(fd), 0)
    except OSError:
        return None
    finally:
        close_locked(shelf.files, fd)


def rebuild(shelf: StoreParts) -> int:
    """Rebuild the rows; return how many there are. Only for the process that may (`disk_upkeep.alone`)."""
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
    """Results of a full scan."""

    good: int = 0
    """Valid records with a row."""
    dead: int = 0
    """Valid records without a row."""
    bad: int = 0
    """Damaged records and stretches."""
    torn: int = 0
    """Damage behind the last record of a segment that has a row: left by a process killed while writing, so no error."""
    lost: int = 0
    """Rows without a valid record."""
    files: int = 0
    bytes: int = 0


def verify(
    shelf: StoreParts,
    on_progress: Callable[[int, int], None] = lambda _done, _of: None,
    *,
    forget: bool = False,
) -> Verified:
    """Scan all files and rows. Concurrent changes may be counted as before or after, but not as damage: doubtful rows are checked again. `forget`:
    lost rows are removed, so that their entries are stored anew."""
    found, rows = Verified(), shelf.index.all()
    confirmed = np.zeros(len(rows), bool)
    ends = live_bytes(rows)
    every = {number: shelf.files.size(shelf.path_of(number)) for number in numbers(shelf)}
    total = sum(every.values())
    for number in every:
        data = content(shelf, number)
        if data is None and not shelf.files.size(shelf.path_of(number)):
            continue  # removed meanwhile
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
        on_progress(found.bytes, max(found.bytes, total))
    found.good = int(np.count_nonzero(confirmed))
    doubtful = np.flatnonzero((rows["segment"] != 0) & ~confirmed).tolist()
    before = {sample: IndexRow(*rows[sample].item()[:4]) for sample in doubtful}
    lost = {sample: NO_ROW for sample, row in before.items() if _is_lost(shelf, sample, row)}
    found.lost = len(lost)
    if forget and lost:
        with suppress(OSError):  # then a read finds the damage, as ever
            shelf.index.switch(before, lost)
    return found


def _is_lost(shelf: StoreParts, sample: int, row: IndexRow) -> bool:
    """Return whether a doubtful row is unchanged and still has no valid record."""
    if shelf.index.row(sample) != row:
        return False
    found = record_at(memoryview(content(shelf, row.segment) or b""), row.offset, shelf.digest)
    return found is None or not found.good or (found.sample, found.renewed) != (sample, row.renewed)
