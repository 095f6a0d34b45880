"""Upkeep of the disk store: free the space of replaced entries, and what killed processes left.

Rule 1: one process at a time, under a kernel lock; others skip it.
Rule 2: segments being written are left alone. Of the others, one without rows is removed, one is truncated behind its last record with a row, and
        one that is more than half dead is rewritten. So held bytes stay under twice the live bytes, plus, for each process, a segment being
        written and a quarter of one replaced since its last check. In a full store a quarter dead is enough. More than sixteen little segments
        are merged.
Rule 3: copy records, check and sync them; then switch rows that still lead to the old place; then remove the old segment. A kill at any point
        leaves old or new rows, and both lead to existing records.
Rule 4: lock a segment before reading the rows: a writer unlocks after it has written its rows.
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
"""Most segments open during one run."""
FOLDERS_AT_ONCE = 16
TEMPORARY = ".tmp"


@contextmanager
def alone(shelf: StoreParts) -> Iterator[bool]:
    """Yield whether this process may remove and rebuild (Rule 1)."""
    fd = shelf.files.open(f"{shelf.folder}/compact", os.O_RDWR | os.O_CREAT)
    try:
        yield try_lock(fd)  # guard: one-compacts
    finally:
        close_locked(shelf.files, fd)


def recount(shelf: StoreParts, *, gone: int = 0) -> None:
    """Recompute the held bytes from the files. Under the index's lock, as all changes of them."""
    segments = sum(shelf.files.size(shelf.path_of(number)) for number in shelf.segment_numbers())
    shelf.index.count(held_bytes=segments + shelf.index.large_bytes(), gone=gone)


def live_bytes(rows: Rows) -> dict[int, tuple[int, int]]:
    """Return for each file with rows: bytes of the records with rows, and the end of the last."""
    numbers, member = np.unique(rows["segment"], return_inverse=True)
    kept = np.bincount(member, rows["length"], len(numbers)).astype(np.int64)
    ends = np.zeros(len(numbers), np.int64)
    np.maximum.at(ends, member, rows["offset"] + rows["length"].astype(np.int64))
    return dict(zip(numbers.tolist(), zip(kept.tolist(), ends.tolist(), strict=True), strict=True))


def small(rows: Rows) -> Rows:
    """Return the rows that lead into segments."""
    found: Rows = rows[rows["segment"] < LARGE]
    return found


class Upkeep:
    """Upkeep state of one process."""

    def __init__(self, shelf: StoreParts) -> None:
        self.shelf = shelf
        self._next_folder: int | None = None
        self._out: SegmentWriter | None = None

    def run(self, *, full: bool = False) -> bool:
        """Free dead space; return whether any was freed. OSError if the disk fails."""
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
        """Return segments that seem worth it, most dead first. Only a hint: rows change meanwhile."""
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
        """Lock a segment that nobody writes; None if that fails."""
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
        """Copy the live records of a segment and remove it (Rule 3); False if there was no room."""
        samples = np.flatnonzero(rows["segment"] == number)
        before = {sample: IndexRow(*rows[sample].item()[:4]) for sample in samples.tolist()}
        after = dict.fromkeys(before, NO_ROW)
        for sample, row in sorted(before.items(), key=lambda item: item[1].offset):
            data = self._read(fd, row.length, row.offset)
            found = record_at(memoryview(data), 0, self.shelf.digest)
            if found != (sample, row.renewed, 0, row.length, True):
                continue  # damaged: it loses its row
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
        """Return the writer for a copied record; None if the store may hold no more."""
        if self._out is not None and not self._out.fits(nbytes):
            out, self._out = self._out, None
            out.write_out()
            out.close(sync=True)
        if self._out is None:
            self._out = SegmentWriter(self.shelf, self.shelf.room_bytes)
        return self._out if self._out.take_room(nbytes) else None

    # ---- large files

    def _sweep_large(self) -> None:
        """Remove large files without rows: in all folders at first, in some each time afterwards."""
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
        """Remove those listed files that have no row. Reads all rows once: there may be millions of both."""
        if not len(numbers):
            return
        with self.shelf.index.locked():
            # A large file gets its name and its row under one lock: a listed file has its row now, or never had.
            known = self.shelf.index.large_numbers()
        for number in numbers[(numbers >= LARGE) & ~np.isin(numbers, known)].tolist():
            with contextlib.suppress(OSError):
                self.shelf.files.unlink(self.shelf.path_of(number))

    def _remove_temporary(self, path: str) -> None:
        fd = self.shelf.files.open(path, os.O_RDWR)
        try:
            if try_lock(fd):  # its writer is dead
                self.shelf.files.unlink(path)
        finally:
            close_locked(self.shelf.files, fd)
