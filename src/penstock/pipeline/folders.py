"""Files in one folder per class, `root/class/name`, found and numbered as torchvision does: below a local folder, or a prefix of an object store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from posixpath import split as parted_path

import numpy as np
from numpy.typing import NDArray

from penstock.dataset.costs import KnownCosts
from penstock.errors import ConfigError
from penstock.sources.anywhere import AnyFiles, local_path
from penstock.sources.cloud import CloudFiles, ListedObject
from penstock.sources.sources import Source, WholeFiles, shown


class FileTree:
    """The files with such extensions below a root. An object store is listed once, on construction."""

    def __init__(self, root: str, extensions: tuple[str, ...]) -> None:
        self.root, self.extensions = local_path(root) or root.rstrip("/"), extensions
        self.source: Source = WholeFiles()
        self._listed: list[ListedObject] = []
        self.is_local = local_path(root) is not None
        if not self.is_local:
            self.source = files = AnyFiles()
            store, _ = files.of(root)
            if not isinstance(store, CloudFiles):
                raise ConfigError(
                    f"{shown(root)} cannot be listed: give a local folder, or one of an object store (s3://, gs://, az://)"
                )
            # As below a local folder: folder by folder, each with its files.
            self._listed = sorted(store.below(self.root), key=lambda one: parted_path(one.name))

    def classes(self) -> tuple[list[str], dict[str, int]]:
        """Return the sorted folders of the root, and their numbers."""
        if self.is_local:
            classes = sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir())
        else:
            classes = sorted({self._class_of(one.name) for one in self._listed} - {""})
        if not classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {shown(self.root)}.")
        return classes, {name: number for number, name in enumerate(classes)}

    def files(self, folder: str = "") -> Iterator[str]:
        """Yield every file with such an extension below the root, or below a folder of a local root, sorted."""
        if not self.is_local:
            yield from (one.name for one in self._listed if one.name.lower().endswith(self.extensions))
            return
        top = os.path.join(self.root, folder) if folder else self.root  # noqa: PTH118 - as torchvision names them
        for inner, _, files in sorted(os.walk(top, followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(self.extensions):
                    yield os.path.join(inner, file)  # noqa: PTH118 - as above

    def by_class(self, class_to_idx: dict[str, int]) -> list[tuple[str, int]]:
        """Return (path, class) of every file, class by class."""
        found: dict[str, list[str]] = {name: [] for name in sorted(class_to_idx)}
        if self.is_local:
            found = {name: list(self.files(name)) for name in found}
        else:
            for file in self.files():
                if name := self._class_of(file):
                    found[name].append(file)
        if empty := [name for name, paths in found.items() if not paths]:
            raise FileNotFoundError(
                f"Found no valid file for the classes {', '.join(empty)}. Supported extensions are: {', '.join(self.extensions)}"
            )
        return [(path, class_to_idx[name]) for name, paths in found.items() for path in paths]

    def sizes(self, paths: Iterable[str]) -> NDArray[np.int64] | None:
        """Return the sizes of files as the store listed them; None for a local folder."""
        if self.is_local:
            return None
        known = {one.name: one.size for one in self._listed}
        return np.array([known[path] for path in paths], np.int64)

    def digest(self) -> str | None:
        """Hash a store's names, sizes and etags; None for a local folder, or if an etag is missing or weak."""
        if self.is_local or not all(one.etag and not one.etag.startswith("W/") for one in self._listed):
            return None
        said = repr([tuple(one) for one in self._listed])
        return hashlib.blake2b(said.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()

    def _class_of(self, name: str) -> str:
        """Return the folder of the root in which an object is; "" if it is in none."""
        folder, slash, _ = name[len(self.root) + 1 :].partition("/")
        return folder if slash else ""


def listed_costs(sizes: NDArray[np.int64] | None, samples: int, otherwise: KnownCosts) -> KnownCosts:
    """Return the bytes of files as costs: as a store listed them, without a request, unless a subclass has changed the samples since."""
    if sizes is None or len(sizes) != samples:
        return otherwise
    return replace(otherwise, of=lambda keys: sizes[keys])


def files_digest(paths: Iterable[str]) -> str:
    """Hash names, sizes, and modification and change times of files: nobody can set the change time back. A missing file hashes as its error."""
    found = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - for each of a million
            said: object = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)  # guard: change-time
        except OSError as exc:
            said = exc.errno
        found.update(f"{os.path.abspath(path)}\0{said}\n".encode("utf-8", "surrogateescape"))  # noqa: PTH100
    return found.hexdigest()
