"""Files of large entries, one each. What replaces an entry of the same length is written over it.

Rule 1: a file is written under a temporary name. It gets a number that no other entry ever had, and its row, under one lock.
Rule 2: the file of an entry that is replaced loses its row and then its name before it is written over: space and memory of it are there already,
        which are most of what a new file costs. A kill at any point leaves a file that no row leads to.
Rule 3: a writer has the file's kernel lock alone, from when it has no row until it gets one; readers have it together, and neither waits: who reads
        a file that is being written over finds nothing, who would write over one that is being read makes a new one.
"""

from __future__ import annotations

import contextlib
import os

from penstock.reuse.stores.disk_files import close_locked, is_gone, size_of, try_lock
from penstock.reuse.stores.disk_index import LARGE, NO_ROW, IndexRow
from penstock.reuse.stores.disk_segments import StoreParts


def replaced_file(shelf: StoreParts, sample: int, length: int, temporary: str) -> int | None:
    """The file of a sample's entry, locked and renamed, if it is as long; None where a new one must be made. OSError where the disk fails."""
    row = shelf.index.row(sample)
    if not row.segment & LARGE or row.length != length:
        return None
    path = shelf.path_of(row.segment)
    try:
        fd = shelf.files.open(path, os.O_RDWR)
    except OSError:
        return None
    taken = False
    try:
        taken = size_of(fd) == length and _take(shelf, sample, row, fd, path, temporary)
    finally:
        if not taken:
            close_locked(shelf.files, fd)
    return fd if taken else None


def _take(shelf: StoreParts, sample: int, row: IndexRow, fd: int, path: str, temporary: str) -> bool:
    """Take its row, its lock and its name from a file; not if somebody else has replaced the entry meanwhile, or reads it."""
    index = shelf.index
    with index.locked():
        if index.row(sample) != row:  # guard: large-replaced
            return False
        index.write({sample: NO_ROW})  # first: who finds the file locked looks for its row again
        if not try_lock(fd):  # guard: large-in-use
            index.write({sample: row})
            return False
        index.count(held_bytes=index.held_bytes - row.length)
        try:
            shelf.files.rename(path, temporary)
        except FileNotFoundError:  # somebody has removed it
            return False
    return True


def new_file(shelf: StoreParts, length: int, temporary: str) -> int | None:
    """A new one, locked, with its space; None when someone took it for a dead writer's. OSError where the disk is full or fails."""
    fd = shelf.files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    made = False
    try:
        # Between that line and this one someone may take it for a dead writer's, and remove it.
        if try_lock(fd) and not is_gone(fd):  # guard: swept-file
            shelf.files.reserve(fd, 0, length)
            made = True
    finally:
        if not made:
            let_go(shelf, fd, temporary)
    return fd if made else None


def let_go(shelf: StoreParts, fd: int, remove: str) -> None:
    """Close a file; and remove it, where it has a name that nobody knows."""
    close_locked(shelf.files, fd)
    if remove:
        with contextlib.suppress(OSError):
            shelf.files.unlink(remove)


def remove_files(shelf: StoreParts, numbers: list[int], nbytes: int, more_bytes: int = 0) -> None:
    """Files, of so many bytes, that no row leads to any more; count that, and what has come instead. Under the index's lock."""
    for number in numbers:
        with contextlib.suppress(OSError):
            shelf.files.unlink(shelf.path_of(number))
    if more_bytes or numbers:
        shelf.index.count(held_bytes=shelf.index.held_bytes + more_bytes - nbytes, gone=len(numbers))
