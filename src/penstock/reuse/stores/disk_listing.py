"""List and remove disk stores, for the command line.

Rule 1: list only what carries our mark; remove only files with our names. A folder with anything else in it stays.
Rule 2: never remove a store that a process has open.
Rule 3: many users may share a path and leave anything there. Only folders of this user are read or removed, never through links; each is held
        open meanwhile, so that it cannot be swapped.
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
"""In order of removal: a folder is ours to clear while it has its mark, and the lock excludes others until then."""


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
    """It belongs to one run, and is removed with it."""
    kind: str
    """Reused "samples", or a cache's "bytes"."""
    about: str
    """Without terminal control characters."""
    used_at_s: float
    """When it was last opened or closed, or an entry put."""


def listing(path: str | os.PathLike[str]) -> list[Listed]:
    """List this user's stores below a path, by name."""
    return [_listed(name, folder, mark) for name, folder, mark in _marked(path)]


def _marked(path: str | os.PathLike[str]) -> Iterator[tuple[str, str, FolderMark]]:
    """Yield each store's name, folder (valid until the next) and mark."""
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
            kind=mark.kind,
            about="".join(letter if letter.isprintable() else "?" for letter in mark.about),
            used_at_s=max(_changed_s(f"{folder}/{name}") for name in ("FORMAT", "index")),
        )


def _changed_s(path: str) -> float:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0


def clear(path: str | os.PathLike[str], namespace: str | None = None) -> tuple[list[Listed], list[Listed]]:
    """Remove one store below a path, or all; return those removed, and those still in use."""
    gone: list[Listed] = []
    kept: list[Listed] = []
    for name, folder, mark in _marked(path):
        if namespace in (None, name):
            listed = _listed(name, folder, mark)
            (gone if removed(f"{os.fspath(path)}/{name}") else kept).append(listed)
    return gone, kept


def clear_temporary(path: str | os.PathLike[str]) -> int:
    """Remove the stores that killed runs of this user left; return how many."""
    return sum(removed(f"{os.fspath(path)}/{name}") for name, _, mark in _marked(path) if mark.temporary)


def removed(path: str, wait_s: float = 0.0) -> bool:
    """Remove a store, unless it is still in use after `wait_s`; return whether it is gone."""
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
    """Yield whether nobody has the store open or can open it meanwhile: users change their lock under the index's."""
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
    """Yield whether a process has the store open; if none, none can open it meanwhile."""
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
    """Yield our files in a store's folder, each with its part; a path is valid until the next."""
    for part, at in _parts(files, folder):
        for name in files.names(at):
            if number_of(name.removesuffix(TEMPORARY)):
                yield part, f"{at}/{name}"
    for name in _own(files, folder):
        yield "", f"{folder}/{name}"


def _own(files: Files, folder: str) -> list[str]:
    """Return our top-level files, in order of removal."""
    found = [name for name in files.names(folder) if (Path(folder) / name).is_file()]
    left = [name for name in found if name.endswith(TEMPORARY) and name.partition(".")[0] in OWN_FILES]
    return left + [name for name in OWN_FILES if name in found]


def _parts(files: Files, folder: str) -> Iterator[tuple[str, str]]:
    """Yield the folders of segments and of large files (Rule 3)."""
    with own_folder(f"{folder}/segments") as segments:
        if segments is not None:
            yield "segments", segments
    with own_folder(f"{folder}/large") as large:
        for name in sorted(files.names(large)) if large is not None else ():
            with own_folder(f"{large}/{name}") as at:
                if at is not None:
                    yield "large", at


def _remove(files: Files, folder: str) -> None:
    """Remove everything but the folder; first what others would recreate as soon as they can enter."""
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
