"""What stores lie on a disk, and how to be rid of them: for a command line.

Rule 1: only what carries our mark is listed, and only files with our names are removed; a folder with anything else in it stays.
Rule 2: a store that a process has open is not removed.
Rule 3: many users may share a path, and any of them may leave anything there. What is not a folder of this user is neither read nor removed,
        nor is what lies behind a link; each folder is held open while it is looked at, so that none can be put in its place.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.reuse.stores.disk import NAMESPACE
from penstock.reuse.stores.disk_files import Files, close_locked, is_at, locked, own_folder, try_lock
from penstock.reuse.stores.disk_format import FolderMark, mark_of, read_format
from penstock.reuse.stores.disk_segments import number_of
from penstock.reuse.stores.disk_upkeep import TEMPORARY

OWN_FILES = ("index", "compact", "users", "FORMAT", "lock")
"""In the order in which they are removed: a folder is ours to clear as long as it has its mark, and the lock keeps others from it until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One namespace."""

    namespace: str
    samples: int
    held_bytes: int
    segments: int
    large_files: int
    in_use: bool
    temporary: bool
    """Of one run, and removed with it."""
    about: str
    """Letters that move a terminal's cursor are not in it."""
    used_at_s: float
    """When it was last opened or closed, or an entry put."""


def listing(path: str | os.PathLike[str]) -> list[Listed]:
    """The stores of this user below a path, by name."""
    return [_listed(name, folder, mark) for name, folder, mark in _marked(path)]


def _marked(path: str | os.PathLike[str]) -> Iterator[tuple[str, str, FolderMark]]:
    """Of each store below a path: its name, its folder, which is good until the next, and what it says that it holds."""
    files = Files()
    for name in sorted(files.names(os.fspath(path))):
        if not NAMESPACE.fullmatch(name):
            continue
        with own_folder(f"{os.fspath(path)}/{name}") as folder:
            mark = None if folder is None else _mark(files, folder)
            if folder is not None and mark is not None:
                yield name, folder, mark


def _mark(files: Files, folder: str) -> FolderMark | None:
    with contextlib.suppress(OSError):
        return mark_of(read_format(files, folder))
    return None


def _listed(name: str, folder: str, mark: FolderMark) -> Listed:
    files = Files()
    sizes = [(part, files.size(file)) for part, file in _files_of(files, folder)]
    parts = [part for part, _ in sizes]
    with _users(files, folder) as in_use:
        return Listed(
            namespace=name,
            samples=mark.samples,
            held_bytes=sum(size for _, size in sizes),
            segments=parts.count("segments"),
            large_files=parts.count("large"),
            in_use=in_use,
            temporary=mark.temporary,
            about="".join(letter if letter.isprintable() else "?" for letter in mark.about),
            used_at_s=max(_changed_s(f"{folder}/{name}") for name in ("FORMAT", "index")),
        )


def _changed_s(path: str) -> float:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0


def clear(path: str | os.PathLike[str], namespace: str | None = None) -> tuple[list[Listed], list[Listed]]:
    """Remove one store below a path, or all: those that are gone, and those that stay because they are in use."""
    gone: list[Listed] = []
    kept: list[Listed] = []
    for name, folder, mark in _marked(path):
        if namespace in (None, name):
            listed = _listed(name, folder, mark)
            (gone if removed(f"{os.fspath(path)}/{name}") else kept).append(listed)
    return gone, kept


def clear_temporary(path: str | os.PathLike[str]) -> int:
    """Remove what runs of this user that were killed have left; how many stores that was."""
    return sum(removed(f"{os.fspath(path)}/{name}") for name, _, mark in _marked(path) if mark.temporary)


def removed(path: str, wait_s: float = 0.0) -> bool:
    """Remove a store, unless it is in use still after a while; whether it is gone."""
    files, until_s = Files(), time.monotonic() + wait_s
    while True:
        with own_folder(path) as folder:
            if folder is None:
                return not os.path.lexists(path)
            with _alone(files, folder) as is_alone:
                if is_alone:
                    _remove(files, folder)
                    with contextlib.suppress(OSError):
                        files.remove_folder(path)
                    return True
        if time.monotonic() >= until_s:
            return False
        time.sleep(0.01)


@contextlib.contextmanager
def _alone(files: Files, folder: str) -> Iterator[bool]:
    """Whether nobody has a store open, or can open it meanwhile: users change their lock under that of the index."""
    with contextlib.ExitStack() as held:
        lock = f"{folder}/lock"
        try:
            fd = files.open(lock, os.O_RDWR | os.O_CREAT)
            held.callback(files.close, fd)
            held.enter_context(locked(fd))
        except OSError:
            yield False
            return
        yield is_at(fd, lock) and not held.enter_context(_users(files, folder))


@contextlib.contextmanager
def _users(files: Files, folder: str) -> Iterator[bool]:
    """Whether a process has a store open; if none has, none opens it meanwhile."""
    try:
        fd = files.open(f"{folder}/users", os.O_RDWR)
    except FileNotFoundError:
        yield False
        return
    except OSError:
        yield True
        return
    try:
        yield not try_lock(fd)
    finally:
        close_locked(files, fd)


def _files_of(files: Files, folder: str) -> Iterator[tuple[str, str]]:
    """All files of ours in a store's folder, each with the part that it is of; a file's path is good until the next."""
    for part, at in _parts(files, folder):
        for name in files.names(at):
            if number_of(name.removesuffix(TEMPORARY)):
                yield part, f"{at}/{name}"
    for name in _own(files, folder):
        yield "", f"{folder}/{name}"


def _own(files: Files, folder: str) -> list[str]:
    """Names of our files in no part, in the order in which they are to go."""
    found = [name for name in files.names(folder) if (Path(folder) / name).is_file()]
    left = [name for name in found if name.endswith(TEMPORARY) and name.partition(".")[0] in OWN_FILES]
    return left + [name for name in OWN_FILES if name in found]


def _parts(files: Files, folder: str) -> Iterator[tuple[str, str]]:
    """The folders of segments and of large files (Rule 3)."""
    with own_folder(f"{folder}/segments") as segments:
        if segments is not None:
            yield "segments", segments
    with own_folder(f"{folder}/large") as large:
        for name in sorted(files.names(large)) if large is not None else ():
            with own_folder(f"{large}/{name}") as at:
                if at is not None:
                    yield "large", at


def _remove(files: Files, folder: str) -> None:
    """All of it but the folder: what others may make anew as soon as they can come in goes before."""
    for part, file in _files_of(files, folder):
        if part:
            _gone(files.unlink, file)
    with own_folder(f"{folder}/large") as large:
        for name in files.names(large) if large is not None else ():
            _gone(files.remove_folder, f"{large}/{name}")
    for part in ("large", "segments"):
        _gone(files.remove_folder, f"{folder}/{part}")
    for name in _own(files, folder):
        _gone(files.unlink, f"{folder}/{name}")


def _gone(remove: Callable[[str], None], path: str) -> None:
    with contextlib.suppress(OSError):
        remove(path)
