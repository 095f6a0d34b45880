"""What stores lie on a disk, and how to be rid of them: for a command line.

Rule 1: only what carries our mark is listed, and only files with our names are removed; a folder with anything else in it stays.
Rule 2: a store that a process has open is not removed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.store.disk import NAMESPACE
from penstock.store.disk_files import Files, close_locked, locked, try_lock
from penstock.store.disk_format import read_format
from penstock.store.disk_upkeep import TEMPORARY
from penstock.store.segments import number_of

OWN_FILES = ("index", "compact", "users", "lock", "FORMAT")
"""In the order in which they are removed: a folder is ours to clear as long as it has its mark."""


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
    used_at_s: float
    """When it was last opened or closed, or an entry put."""


def listing(path: str | os.PathLike[str]) -> list[Listed]:
    """The stores below a path, by name."""
    return [_listed(folder, said) for folder, said in _marked(path)]


def _marked(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """Folders of stores below a path, and what they say that they hold."""
    files = Files()
    for name in sorted(files.names(os.fspath(path))):
        folder = f"{os.fspath(path)}/{name}"
        with contextlib.suppress(OSError):  # of another user
            said = read_format(files, folder) if NAMESPACE.fullmatch(name) else None
            if said is not None:
                yield folder, said


def _listed(folder: str, said: dict[str, object]) -> Listed:
    files = Files()
    sizes = {file: files.size(file) for file in _files_of(files, folder)}
    with _users(files, folder) as in_use:
        return Listed(
            namespace=folder.rpartition("/")[2],
            samples=int(str(said.get("samples", 0))),
            held_bytes=sum(sizes.values()),
            segments=sum("/segments/" in file for file in sizes),
            large_files=sum("/large/" in file for file in sizes),
            in_use=in_use,
            temporary=bool(said.get("temporary")),
            about=str(said.get("about", "")),
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
    for folder, said in _marked(path):
        if namespace in (None, folder.rpartition("/")[2]):
            listed = _listed(folder, said)
            (gone if removed(folder) else kept).append(listed)
    return gone, kept


def clear_temporary(path: str | os.PathLike[str]) -> int:
    """Remove what runs that were killed have left; how many stores that was."""
    return sum(removed(folder) for folder, said in _marked(path) if said.get("temporary"))


def removed(folder: str, wait_s: float = 0.0) -> bool:
    """Remove a store, unless it is in use still after a while; whether it is gone."""
    files, until_s = Files(), time.monotonic() + wait_s
    while True:
        with _alone(files, folder) as is_alone:
            if is_alone:
                _remove(files, folder)
                return True
        if time.monotonic() >= until_s:
            return False
        time.sleep(0.01)


@contextlib.contextmanager
def _alone(files: Files, folder: str) -> Iterator[bool]:
    """Whether nobody has a store open, or can open it meanwhile: users change their lock under that of the index."""
    with contextlib.ExitStack() as held:
        try:
            with contextlib.suppress(FileNotFoundError):
                fd = files.open(f"{folder}/lock", os.O_RDWR)
                held.callback(files.close, fd)
                held.enter_context(locked(fd))
        except OSError:
            yield False
            return
        yield not held.enter_context(_users(files, folder))


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


def _files_of(files: Files, folder: str) -> Iterator[str]:
    """All files of ours in a store's folder."""
    for part in ["segments", *_large(files, folder)]:
        for name in files.names(f"{folder}/{part}"):
            if number_of(name.removesuffix(TEMPORARY)):
                yield f"{folder}/{part}/{name}"
    for name in files.names(folder):
        if name.endswith(TEMPORARY) and name.partition(".")[0] in OWN_FILES:
            yield f"{folder}/{name}"
    for name in OWN_FILES:
        if Path(f"{folder}/{name}").is_file():
            yield f"{folder}/{name}"


def _large(files: Files, folder: str) -> list[str]:
    return [f"large/{name}" for name in sorted(files.names(f"{folder}/large"))]


def _remove(files: Files, folder: str) -> None:
    for file in _files_of(files, folder):
        with contextlib.suppress(OSError):
            files.unlink(file)
    for part in [*_large(files, folder), "large", "segments", ""]:
        with contextlib.suppress(OSError):
            files.remove_folder(f"{folder}/{part}")
