"""The persistent index of a tar file: names, offsets and sizes of its members.

Rule 1: an index is valid for one stamp (size and time, or etag) of its tar file. A stale, corrupt, foreign or unreadable index is silently
        rebuilt.
Rule 2: an index file appears whole or not at all. If several processes build it, the last one wins; all write the same.
Rule 3: an index is untrusted: plain text with a checksum, no larger than its tar file, and every member lies within that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from penstock.sources.sources import Source, shown
from penstock.sources.tar_walk import Member, walk

log = logging.getLogger(__name__)

VERSION = 1
MAGIC = b"penstock tar index"
SUFFIX = ".penstock-index"
SLACK = 4096
"""Bytes an index may exceed its tar file by: a small tar file is shorter than our header."""


@dataclass(frozen=True, slots=True, eq=False)
class TarIndex:
    """The members of one tar file, in its order."""

    names: list[str]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, members: Iterable[Member]) -> TarIndex:
        found = list(members)
        offsets, sizes = ([member[at] for member in found] for at in (1, 2))
        return cls([member.name for member in found], np.array(offsets, np.int64), np.array(sizes, np.int64))

    def __len__(self) -> int:
        return len(self.names)


def index_of(source: Source, name: str, places: Sequence[Path]) -> tuple[TarIndex, bool]:
    """Load the index of a tar file from one of `places`, or build and save it; also return whether it is new."""
    stamp, size = source.stamp(name), source.size(name)
    for place in places:
        kept = load(place, stamp, size)
        if kept is not None:
            return kept, False
    built = TarIndex.of(walk(source, name))
    for place in places:
        try:
            save(place, built, stamp)
            break
        except OSError as exc:
            log.debug("the index of %s cannot be kept at %s: %s", shown(name), place, exc)
    return built, True


def places_of(name: str, path: str | None, index_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Return the candidate paths of an index, best first. `path`: of a local tar file."""
    hashed = f"{hashlib.blake2b(name.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}{SUFFIX}"
    if index_dir is not None:
        return [Path(index_dir) / hashed]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - Path.home() can raise
    cached = Path(home) / "penstock" / hashed
    return [cached] if path is None else [Path(path + SUFFIX), cached]


# ---- files


def encode(index: TarIndex, stamp: str) -> bytes:
    offsets, sizes = index.offsets.tolist(), index.sizes.tolist()
    said = {"stamp": stamp, "names": index.names, "offsets": offsets, "sizes": sizes}
    body = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return b"%s %d %08x\n%s" % (MAGIC, VERSION, crc32(body), body)


def decode(data: bytes, stamp: str, size: int) -> TarIndex | None:
    """Decode an index; None unless it is ours, intact, and matches this stamp and size."""
    head, _, body = data.partition(b"\n")
    if head != b"%s %d %08x" % (MAGIC, VERSION, crc32(body)):  # guard: index-checksum
        return None
    try:
        said: Any = json.loads(body.decode("utf-8", "surrogatepass"))
        if said["stamp"] != stamp:  # guard: index-stamp
            return None
        names = said["names"]
        offsets, sizes = np.array(said["offsets"], np.int64), np.array(said["sizes"], np.int64)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    alike = isinstance(names, list) and offsets.shape == sizes.shape == (len(names),)
    if not alike or not all(isinstance(name, str) for name in names):
        return None
    within = (offsets >= 0) & (sizes >= 0) & (offsets <= size) & (sizes <= size - offsets)
    return TarIndex(names, offsets, sizes) if within.all() else None  # guard: index-bounds


def load(place: Path, stamp: str, size: int) -> TarIndex | None:
    """Load the index at a path; None if there is no usable one."""
    try:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # guard: index-link
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > size + SLACK or not ours(status, place):
            return None
        with os.fdopen(fd, "rb", closefd=False) as file:
            return decode(file.read(size + SLACK), stamp, size)
    except OSError:
        return None
    finally:
        os.close(fd)


def ours(status: os.stat_result, place: Path) -> bool:
    """Return whether the file's owner is this user, root, or the owner of the tar file beside it."""
    trusted = {0, os.geteuid()}
    if place.name.endswith(SUFFIX):
        with contextlib.suppress(OSError):
            trusted.add(Path(str(place).removesuffix(SUFFIX)).stat().st_uid)
    return status.st_uid in trusted


def save(place: Path, index: TarIndex, stamp: str) -> None:
    """Write an index atomically; raise OSError if that fails."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = place.with_name(f".{place.name[-100:]}.{os.getpid()}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(encode(index, stamp))
        draft.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
