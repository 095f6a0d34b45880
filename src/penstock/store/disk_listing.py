"""What stores lie on a disk, and how to be rid of them: for a command line.

Rule 1: only what carries our mark is listed, and only files with our names are removed; a folder with anything else in it stays.
Rule 2: a store that a process has open is not removed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.store.disk import NAMESPACE, read_format
from penstock.store.disk_files import Files, close_locked, try_lock
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


def listing(path: str | os.PathLike[str]) -> list[Listed]:
    """The stores below a path, by name."""
    files, found = Files(), []
    for name in sorted(files.names(os.fspath(path))):
        folder = f"{os.fspath(path)}/{name}"
        said = read_format(files, folder) if NAMESPACE.fullmatch(name) else None
        if said is None:
            continue
        sizes = {file: files.size(file) for file in _files_of(files, folder)}
        with _users(files, folder) as in_use:
            found.append(
                Listed(
                    namespace=name,
                    samples=int(str(said.get("samples", 0))),
                    held_bytes=sum(sizes.values()),
                    segments=sum("/segments/" in file for file in sizes),
                    large_files=sum("/large/" in file for file in sizes),
                    in_use=in_use,
                )
            )
    return found


def clear(path: str | os.PathLike[str], namespace: str | None = None) -> tuple[list[Listed], list[Listed]]:
    """Remove one store below a path, or all: those that are gone, and those that stay because they are in use."""
    files = Files()
    gone: list[Listed] = []
    kept: list[Listed] = []
    for each in listing(path):
        if namespace not in (None, each.namespace):
            continue
        folder = f"{os.fspath(path)}/{each.namespace}"
        with _users(files, folder) as in_use:
            (kept if in_use else gone).append(each)
            if not in_use:
                _remove(files, folder)
    return gone, kept


@contextlib.contextmanager
def _users(files: Files, folder: str) -> Iterator[bool]:
    """Whether a process has a store open; if none has, none is told that it is alone in it meanwhile."""
    try:
        fd = files.open(f"{folder}/users", os.O_RDWR)
    except OSError:
        yield False
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
