"""Upkeep of the store on disk: space of entries that were replaced, and what killed processes left, is made free.

Rule 1: one process at a time does it, under a kernel lock; whoever does not get that lets it be.
Rule 2: a segment that is being written is left alone. Of the others, one that no row leads to is removed, one is cut back behind the last
        record that a row leads to, and one of which more than half is dead is rewritten. So what is held stays under twice what is
        kept, and for each process a segment that it writes and a quarter of one that it has replaced since it last looked.
        When the store is full, a quarter dead is enough. Sixteen little segments are made one.
Rule 3: records are copied, checked, synced; then rows that still lead to the old place are switched; then the old segment is removed. A kill
        at any point leaves the old rows or the new ones, and both lead to records that are there.
Rule 4: whether a segment is in use is asked first, and the rows are read then: a writer lets go after it has noted its rows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from penstock.reuse.stores.disk_files import close_locked, size_of, try_lock
from penstock.reuse.stores.disk_index import LARGE, NO_ROW, IndexRow, Rows
from penstock.reuse.stores.disk_records import record_at
from penstock.reuse.stores.disk_segments import SegmentWriter, StoreParts, number_of

DEAD_SHARE, DEAD_SHARE_WHEN_FULL = 1 / 2, 1 / 4
LITTLE_SHARE, MANY_LITTLE = 1 / 8, 16
MOST_AT_ONCE = 256
"""Segments that are open during one run."""
FOLDERS_AT_ONCE = 16
TEMPORARY = ".tmp"


@contextmanager
def alone(shelf: StoreParts) -> Iterator[bool]:
    """Whether this is the process that may remove and rebuild (Rule 1)."""
    fd = shelf.files.open(f"{shelf.folder}/compact", os.O_RDWR | os.O_CREAT)
    try:
        yield try_lock(fd)  # guard: one-compacts
    finally:
        close_locked(shelf.files, fd)


def recount(shelf: StoreParts, *, gone: int = 0) -> None:
    """Set what is held to what is there. Under the index's lock, as whatever changes it is."""
    segments = sum(shelf.files.size(shelf.path_of(number)) for number in shelf.segment_numbers())
    shelf.index.count(held_bytes=segments + shelf.index.large_bytes(), gone=gone)


def live_bytes(rows: Rows) -> dict[int, tuple[int, int]]:
    """Of each file that rows lead to: bytes of the records that they lead to, and where the last of these ends."""
    numbers, member = np.unique(rows["segment"], return_inverse=True)
    kept = np.bincount(member, rows["length"], len(numbers)).astype(np.int64)
    ends = np.zeros(len(numbers), np.int64)
    np.maximum.at(ends, member, rows["offset"] + rows["length"].astype(np.int64))
    return dict(zip(numbers.tolist(), zip(kept.tolist(), ends.tolist(), strict=True), strict=True))


def small(rows: Rows) -> Rows:
    """Those that lead into segments."""
    found: Rows = rows[rows["segment"] < LARGE]
    return found


class Upkeep:
    """Of one process."""

    def __init__(self, shelf: StoreParts) -> None:
        self.shelf = shelf
        self._next_folder: int | None = None
        self._out: SegmentWriter | None = None

    def run(self, *, full: bool = False) -> bool:
        """Make space free that is dead; whether any was. OSError where the disk fails."""
        with alone(self.shelf) as may:
            if not may or self.shelf.index.is_stale:  # guard: stale-rows
                return False
            before = self.shelf.index.held_bytes
            idle: dict[int, int] = {}
            dead_share = DEAD_SHARE_WHEN_FULL if full else DEAD_SHARE
            try:
                for number in self._candidates(dead_share):
                    fd = self._lock(number)
                    if fd is not None:
                        idle[number] = fd
                self._tidy(idle, self.shelf.index.all(), dead_share)
                self._sweep_large()
            finally:
                out, self._out = self._out, None
                if out is not None:
                    out.close(sync=False)
                for fd in idle.values():
                    close_locked(self.shelf.files, fd)
                self._recount()
            return self.shelf.index.held_bytes < before

    def _candidates(self, dead_share: float) -> list[int]:
        """Segments that seem to be worth it, the most dead ones first. Rows change meanwhile, so this is only where to look."""
        live = live_bytes(small(self.shelf.index.all()))
        worth: list[tuple[int, int]] = []
        little: list[tuple[int, int]] = []
        for number in self.shelf.segment_numbers():
            size, (kept, _) = self.shelf.files.size(self.shelf.path_of(number)), live.get(number, (0, 0))
            if kept < (1 - dead_share) * size or not kept:
                worth.append((kept - size, number))
            elif kept < self.shelf.segment_bytes * LITTLE_SHARE:
                little.append((kept - size, number))
        if len(little) > MANY_LITTLE:
            worth += little
        return [number for _, number in sorted(worth)[:MOST_AT_ONCE]]

    def _lock(self, number: int) -> int | None:
        """A segment that nobody writes."""
        try:
            fd = self.shelf.files.open(self.shelf.path_of(number), os.O_RDWR)
        except OSError:
            return None
        if try_lock(fd):  # guard: segment-in-use
            return fd
        self.shelf.files.close(fd)
        return None

    def _recount(self, gone: int = 0) -> None:
        with self.shelf.index.locked():
            recount(self.shelf, gone=gone)

    def _tidy(self, idle: dict[int, int], rows: Rows, dead_share: float) -> None:
        live = live_bytes(small(rows))
        left: list[int] = []
        removed = 0
        for number, fd in idle.items():
            if number not in live:
                self.shelf.files.unlink(self.shelf.path_of(number))
                removed += 1
                continue
            kept, end = live[number]
            if end < size_of(fd):
                self.shelf.index.shrink(fd, end)
            little = kept < self.shelf.segment_bytes * LITTLE_SHARE
            if kept < (1 - dead_share) * end or (little and len(idle) > MANY_LITTLE):
                left.append(number)
        self._recount(gone=removed)
        for number in left:
            if not self._move(number, idle[number], rows):
                return
            self._recount(gone=1)

    def _move(self, number: int, fd: int, rows: Rows) -> bool:
        """Copy what is live of a segment, and remove it; False when there was no room (Rule 3)."""
        samples = np.flatnonzero(rows["segment"] == number)
        before = {sample: IndexRow(*rows[sample].item()[:4]) for sample in samples.tolist()}
        after = dict.fromkeys(before, NO_ROW)
        for sample, row in sorted(before.items(), key=lambda item: item[1].offset):
            data = self._read(fd, row.length, row.offset)
            found = record_at(memoryview(data), 0, self.shelf.digest)
            if found != (sample, row.renewed, 0, row.length, True):
                continue  # damaged: it has no row from now on
            out = self._writer_for(row.length)
            if out is None:
                return False
            after[sample] = out.append(data, row.renewed)
            if out.waiting_bytes >= 1 << 20:
                out.write_out()
        if self._out is not None:
            self._out.write_out()
            self._out.sync()  # guard: sync-copies
        self.shelf.index.switch(before, after)
        self.shelf.files.unlink(self.shelf.path_of(number))
        return True

    def _read(self, fd: int, nbytes: int, offset: int) -> bytes:
        try:
            return self.shelf.files.read(fd, nbytes, offset)
        except OSError:
            return b""

    def _writer_for(self, nbytes: int) -> SegmentWriter | None:
        """Where a record is copied to; None where the store may hold no more."""
        if self._out is not None and not self._out.fits(nbytes):
            out, self._out = self._out, None
            out.write_out()
            out.close(sync=True)
        if self._out is None:
            self._out = SegmentWriter(self.shelf, self.shelf.room_bytes)
        return self._out if self._out.take_room(nbytes) else None

    # ---- large files

    def _sweep_large(self) -> None:
        """Remove large files that no row leads to: all at first, in some of the folders each time afterwards."""
        folders = self.shelf.large_folders()
        if self._next_folder is not None:
            first = self._next_folder % max(1, len(folders))
            folders = folders[first : first + FOLDERS_AT_ONCE]
        self._next_folder = (self._next_folder or 0) + FOLDERS_AT_ONCE
        listed = [np.zeros(0, np.uint64)]
        for folder in folders:
            names = self.shelf.files.names(folder)
            listed.append(np.array([number_of(name) for name in names], np.uint64))
            for name in names:
                if name.endswith(TEMPORARY):
                    with contextlib.suppress(OSError):
                        self._remove_temporary(f"{folder}/{name}")
        self._remove_unknown(np.concatenate(listed))

    def _remove_unknown(self, numbers: NDArray[np.uint64]) -> None:
        """Of files that were listed, those that no row leads to. All rows are looked at, once: there may be millions of both."""
        if not len(numbers):
            return
        with self.shelf.index.locked():
            # A large file gets its name and its row under one lock: one that was listed has its row now, or never had.
            known = self.shelf.index.large_numbers()
        for number in numbers[(numbers >= LARGE) & ~np.isin(numbers, known)].tolist():
            with contextlib.suppress(OSError):
                self.shelf.files.unlink(self.shelf.path_of(number))

    def _remove_temporary(self, path: str) -> None:
        fd = self.shelf.files.open(path, os.O_RDWR)
        try:
            if try_lock(fd):  # whoever wrote it is dead
                self.shelf.files.unlink(path)
        finally:
            close_locked(self.shelf.files, fd)
