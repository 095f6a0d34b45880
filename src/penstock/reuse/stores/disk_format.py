"""The folder of one disk store: its owner, its mark, and protection against removal while in use.

Rule 1: a user of a store holds a shared kernel lock on its file `users`, from before the mark is written until after closing. A remover holds
        that lock exclusively, and the index's lock, under which users change theirs.
Rule 2: only a marked folder is ever removed. The mark is written after its first user's lock, and removed last but for the index's lock, which
        the remover holds to the end. So a process that came in meanwhile, with a new `users`, finds on getting that lock that the lock file or
        the mark is gone (`is_marked`).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from zlib import crc32

from penstock.errors import ConfigError
from penstock.reuse.stores.disk_files import (
    LOCK_WAIT_S,
    Files,
    is_at,
    is_plain,
    size_of,
    try_lock,
    write_whole,
)

VERSION = 1
MOST_BYTES = 4096
KINDS = ("samples", "bytes")
MOST_WORDS = 1000
"""Most characters of `about`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderMark:
    """What a store's folder says about it."""

    samples: int
    temporary: bool = False
    """It belongs to one run: whoever finds it without users removes it."""
    about: str = ""
    """A description for people."""
    kind: str = "samples"
    """What is in it: reused samples, or a cache's "bytes"."""


def entered(files: Files, folder: str) -> int:
    """Make a store's folder if needed and protect it from removal (Rule 1); return the descriptor of its `users`."""
    until_s = time.monotonic() + LOCK_WAIT_S
    users = f"{folder}/users"
    while True:
        try:
            if files.make_folder(folder):
                files.sync_folder(folder.rpartition("/")[0])
            check_owner(folder)
            fd = files.open(users, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # removed between two of these lines
            if time.monotonic() >= until_s:
                raise
            continue
        if try_lock(fd, shared=True) and is_at(fd, users):  # guard: cleared-while-opened
            return fd
        files.close(fd)
        if time.monotonic() >= until_s:
            raise TimeoutError(f"another process has {folder} for itself and does not let go")
        time.sleep(0.002)


def is_marked(files: Files, folder: str, lock_fd: int) -> bool:
    """Return whether an opened store, which has held the index's lock once, still exists (Rule 2)."""
    return is_at(lock_fd, f"{folder}/lock") and read_format(files, folder) is not None


def check_owner(folder: str) -> None:
    """Raise ConfigError for a store of another user or behind a link: neither can be trusted."""
    found = os.lstat(folder)
    if found.st_uid != os.geteuid() or not os.path.isdir(folder) or os.path.islink(folder):  # noqa: PTH112, PTH114
        raise ConfigError(
            f"{folder} is not a folder of this user: give another path for kept samples, or remove it"
        )


def encode_format(mark: FolderMark) -> bytes:
    said = {"store": "penstock", "version": VERSION, "samples": mark.samples, "kind": mark.kind}
    body = json.dumps({**said, "temporary": mark.temporary, "about": mark.about[:MOST_WORDS]}).encode()
    if len(body) > MOST_BYTES - 16:  # JSON escapes of some characters are long
        body = json.dumps({**said, "temporary": mark.temporary}).encode()
    return b"%s\n%08x\n" % (body, crc32(body))


def read_format(files: Files, folder: str) -> dict[str, object] | None:
    """Read a folder's mark; None if it is missing or invalid."""
    try:
        # guard: mark-is-pipe
        fd = files.open(f"{folder}/FORMAT", os.O_RDONLY | os.O_NONBLOCK)  # do not wait on a pipe
    except FileNotFoundError:
        return None
    try:
        data = files.read(fd, MOST_BYTES, 0) if is_plain(fd) and size_of(fd) <= MOST_BYTES else b""
    finally:
        files.close(fd)
    body, _, check = data.partition(b"\n")
    if check != b"%08x\n" % crc32(body):
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def mark_of(said: dict[str, object] | None) -> FolderMark | None:
    """Parse a mark; None unless it is ours and every field has its type."""
    if said is None or said.get("store") != "penstock":
        return None
    samples, temporary, about = said.get("samples"), said.get("temporary", False), said.get("about", "")
    kind = said.get("kind", "samples")
    if type(samples) is not int or samples < 0 or type(temporary) is not bool or type(about) is not str:
        return None
    return FolderMark(samples=samples, temporary=temporary, about=about, kind=kind) if kind in KINDS else None


def check_format(files: Files, folder: str, mark: FolderMark) -> None:
    """Mark a new folder; ConfigError if it holds another store."""
    found = read_format(files, folder)
    if found is None:  # if the mark is damaged, records still identify themselves
        write_whole(files, f"{folder}/FORMAT", encode_format(mark))
        found = read_format(files, folder) or {}
    if found.get("version") != VERSION:
        raise ConfigError(
            f"the sample store {folder} has format {found.get('version')}, this version of penstock reads format {VERSION}: "
            f"remove it, or give another path"
        )
    if found.get("samples") != mark.samples:  # guard: other-length
        raise ConfigError(
            f"the sample store {folder} was made for {found.get('samples')} samples, not for {mark.samples}: another data set must "
            f"have another namespace; remove the folder, or give another path"
        )
