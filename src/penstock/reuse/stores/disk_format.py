"""The folder of one store on disk: whose it is, what it says that it holds, and that nobody removes it while it is used.

Rule 1: whoever uses a store holds a shared kernel lock on its file `users`, from before it has a mark until after it is closed. Whoever removes
        one holds that lock alone, and the index's lock, under which users change theirs.
Rule 2: only a folder with a mark is ever removed by us. The mark comes after the lock of its first user and goes last but for the index's lock,
        which whoever removes it holds to the end. So someone who has come in meanwhile, with a new `users`, finds when he has that lock that
        it is not there any more, or else that the mark is not (`is_marked`).
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
MOST_WORDS = 1000
"""Letters of `about`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderMark:
    """What a store's folder says of it."""

    samples: int
    temporary: bool = False
    """It is of one run: whoever finds it without users removes it."""
    about: str = ""
    """What is kept in it, for people."""


def entered(files: Files, folder: str) -> int:
    """Make a store's folder, if there is none, and have nobody remove it (Rule 1): the descriptor of its `users`."""
    until_s = time.monotonic() + LOCK_WAIT_S
    users = f"{folder}/users"
    while True:
        try:
            if files.make_folder(folder):
                files.sync_folder(folder.rpartition("/")[0])
            check_owner(folder)
            fd = files.open(users, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # it was removed between two of these lines
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
    """Whether a store that was opened, and had the index's lock once, is still there (Rule 2)."""
    return is_at(lock_fd, f"{folder}/lock") and read_format(files, folder) is not None


def check_owner(folder: str) -> None:
    """A store of another user, or one that a link leads to, is not ours to trust."""
    found = os.lstat(folder)
    if found.st_uid != os.geteuid() or not os.path.isdir(folder) or os.path.islink(folder):  # noqa: PTH112, PTH114
        raise ConfigError(
            f"{folder} is not a folder of this user: give another path for kept samples, or remove it"
        )


def encode_format(mark: FolderMark) -> bytes:
    said = {"store": "penstock", "version": VERSION, "samples": mark.samples}
    body = json.dumps({**said, "temporary": mark.temporary, "about": mark.about[:MOST_WORDS]}).encode()
    if len(body) > MOST_BYTES - 16:  # letters that JSON writes as several
        body = json.dumps({**said, "temporary": mark.temporary}).encode()
    return b"%s\n%08x\n" % (body, crc32(body))


def read_format(files: Files, folder: str) -> dict[str, object] | None:
    """What a folder says that it holds; None where it says nothing, or nothing that is right."""
    try:
        # guard: mark-is-pipe
        fd = files.open(f"{folder}/FORMAT", os.O_RDONLY | os.O_NONBLOCK)  # a pipe would be waited for
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
    """What a folder says, if it speaks of a store of ours and every word is of its kind."""
    if said is None or said.get("store") != "penstock":
        return None
    samples, temporary, about = said.get("samples"), said.get("temporary", False), said.get("about", "")
    if type(samples) is int and type(temporary) is bool and type(about) is str and samples >= 0:
        return FolderMark(samples=samples, temporary=temporary, about=about)
    return None


def check_format(files: Files, folder: str, mark: FolderMark) -> None:
    """Leave the mark of a store in a new folder; ConfigError where there is that of another one."""
    found = read_format(files, folder)
    if found is None:  # where it is damaged, records still say what they are
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
