"""Files of large entries, one each. A replacement of the same length overwrites the file.

Rule 1: a file is written under a temporary name. Under one lock it gets a number that was never used, and its row.
Rule 2: before it is overwritten, a replaced entry's file loses its row, then its name. Reusing its blocks and page cache saves most of the cost
        of a new file. A kill at any point leaves a file without a row.
Rule 3: a writer holds the file's kernel lock exclusively while it has no row; readers share it. Neither waits: a reader of a file being
        overwritten misses, a writer whose file is being read makes a new one.
"""

from __future__ import annotations

import contextlib
import os

from penstock.reuse.stores.disk_files import close_locked, is_gone, size_of, try_lock
from penstock.reuse.stores.disk_index import LARGE, NO_ROW, IndexRow
from penstock.reuse.stores.disk_segments import StoreParts


def replaced_file(shelf: StoreParts, sample: int, length: int, temporary: str) -> int | None:
    """Return the file of a sample's entry, locked and renamed, if its length fits; None if a new one is needed. OSError if the disk fails."""
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
    """Take the file's row, lock and name; False if the entry was replaced meanwhile or is being read."""
    index = shelf.index
    with index.locked():
        if index.row(sample) != row:  # guard: large-replaced
            return False
        index.write({sample: NO_ROW})  # first: who finds the file locked looks up its row again
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
    """Make a file, locked and allocated; None if it was removed as a dead writer's. OSError if the disk is full or fails."""
    fd = shelf.files.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    made = False
    try:
        # Between these two lines another process may remove it as a dead writer's.
        if try_lock(fd) and not is_gone(fd):  # guard: swept-file
            shelf.files.reserve(fd, 0, length)
            made = True
    finally:
        if not made:
            let_go(shelf, fd, temporary)
    return fd if made else None


def let_go(shelf: StoreParts, fd: int, remove: str) -> None:
    """Close a file, and remove it by its temporary name, if given."""
    close_locked(shelf.files, fd)
    if remove:
        with contextlib.suppress(OSError):
            shelf.files.unlink(remove)


def remove_files(shelf: StoreParts, numbers: list[int], nbytes: int, more_bytes: int = 0) -> None:
    """Remove files without rows; subtract `nbytes` from the held bytes and add `more_bytes`. Under the index's lock."""
    for number in numbers:
        with contextlib.suppress(OSError):
            shelf.files.unlink(shelf.path_of(number))
    if more_bytes or numbers:
        shelf.index.count(held_bytes=shelf.index.held_bytes + more_bytes - nbytes, gone=len(numbers))
