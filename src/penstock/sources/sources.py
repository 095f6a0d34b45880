"""Read-only byte sources: the one interface between datasets and bytes.

A dataset says where a sample's bytes are (`ByteRange`) and reads them from its source. Datasets hold it as
`bytes_from`. A cache or another machine is one more `Source`.

Rule 1: return exactly the bytes requested, or raise an error that names the file.
Rule 2: once a file's stamp was requested, a later change of the file is an error, since facts derived from it (an index of offsets) are stale.
Rule 3: each process opens its own descriptors and connections, at first use, a bounded number. It neither uses nor closes inherited ones: they
        belong to the parent.
Rule 4: sources of this package neither write nor listen.
"""

from __future__ import annotations

import os
import stat
import threading
import weakref
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from penstock.errors import ConfigError

MOST_OPEN = 32
"""Open local files per process."""
NEAR_BYTES = 16 << 10
"""Largest gap between ranges that are read together: a request costs more than a few kilobytes."""


ByteRange = tuple[str, int, int | None]
"""Bytes [start, end) of a named file; `end` None means to the end of the file. A plain tuple, because one is made for each sample."""


class BadRead(OSError):
    """A source did not return the requested bytes."""


class Source(Protocol):
    """Named files of bytes. Any thread of any process may call it; it can be pickled."""

    chunk_bytes: int
    """Best read size for a pass over a whole file."""
    near_bytes: int = NEAR_BYTES
    """Largest gap between ranges that are best read together."""

    def is_local(self, name: str) -> bool:  # noqa: ARG002 - for some the same of all
        """Return whether the file is read without a network; makes no request."""
        return True

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes [start, end), or all from `start` on; raise BadRead if there are fewer."""
        ...

    def read_many(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Return the bytes of each range, in order. By default, one read covers each run of neighbouring ranges."""
        found: list[bytes] = []
        for run, members in joined(ranges, self.near_bytes):
            found += parted(self.read(*run), run, members)
        return found

    def size(self, name: str) -> int: ...

    def stamp(self, name: str) -> str:
        """Return a text that changes with the content. After this call a change of the file is an error."""
        ...

    def close(self) -> None:
        """Close what this process has open; a later read opens it again."""
        ...


def joined(ranges: Sequence[ByteRange], near_bytes: int) -> list[tuple[ByteRange, Sequence[ByteRange]]]:
    """Join runs of neighbouring ranges; return each with its members."""
    runs: list[tuple[ByteRange, Sequence[ByteRange]]] = []
    at = 0
    while at < len(ranges):
        name, first, last = ranges[at]
        stop = at + 1
        while stop < len(ranges) and last is not None:
            other, start, end = ranges[stop]
            if other != name or end is None or max(start - last, first - end) > near_bytes:
                break
            first, last, stop = min(first, start), max(last, end), stop + 1
        runs.append(((name, first, last), ranges[at:stop]))
        at = stop
    return runs


def parted(data: bytes, run: ByteRange, members: Sequence[ByteRange]) -> list[bytes]:
    """Return the bytes of each member of a run."""
    if len(members) == 1:
        return [data]
    return [data[start - run[1] : end - run[1]] for _, start, end in members if end is not None]


T = TypeVar("T", bound="Closes")
_inherited: list[object] = []
"""Inherited objects in a forked child: referenced so that no finalizer closes descriptor numbers that have been reused."""


class Closes(Protocol):
    def close(self) -> None: ...


class PerProcess(Generic[T]):
    """An object with descriptors that each process makes for itself, at first use."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: tuple[int, T] | None = None

    def get(self) -> T:
        made, pid = self._made, os.getpid()
        if made is not None and made[0] == pid:  # guard: own-files
            return made[1]
        if made is not None:
            _inherited.append(made[1])
        mine = self._make()
        self._made = pid, mine  # if two threads race here, both objects get closed in the end
        weakref.finalize(self, _close_own, pid, mine)
        return mine

    def close(self) -> None:
        if self._made is not None:
            _close_own(*self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)


def _close_own(pid: int, made: Closes) -> None:
    if pid == os.getpid():
        made.close()
    else:
        _inherited.append(made)


def span(name: str, start: int, end: int | None, size: int) -> tuple[int, int]:
    """Return [start, end) within a file of `size` bytes; raise BadRead if it is too short."""
    stop = size if end is None else end
    if not 0 <= start <= stop:
        raise ConfigError(f"bytes [{start}, {end}) of {shown(name)} were asked for")
    if stop > size:
        raise BadRead(
            f"{shown(name)} has {size:,} bytes, and bytes [{start:,}, {stop:,}) were asked for: is it cut off?"
        )
    return start, stop


def changed(name: str, was: str, found: str) -> BadRead:
    return BadRead(
        f"{shown(name)} was changed while it was in use (size and time or etag: {was}, now {found}): make the dataset anew"
    )


def shown(name: str) -> str:
    """Return a name for messages, without the secrets of a URL."""
    if "://" not in name:
        return name
    parts = urlsplit(name)
    netloc = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=netloc, query="…" if parts.query else "", fragment="").geturl()


class RemoteFiles(Source):
    """Files read over a network."""

    chunk_bytes = 4 << 20

    def is_local(self, name: str) -> bool:  # noqa: ARG002 - none is
        return False

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        if end is None:
            end = self.size(name)
        if not 0 <= start <= end:
            raise ConfigError(f"bytes [{start}, {end}) of {shown(name)} were asked for")
        return self._fetch(name, start, end) if start < end else b""

    @abstractmethod
    def _fetch(self, name: str, start: int, end: int) -> bytes:
        """Return exactly these bytes, at least one; or raise BadRead."""


# ---- local files


@dataclass(slots=True)
class _File:
    fd: int
    users: int = 0
    """Reads in progress. The last one closes a dropped file."""
    dropped: bool = False


@dataclass(slots=True)
class _Opened:
    """The open files of one process, least recently used first."""

    files: OrderedDict[str, _File] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def drop(self, name: str) -> None:
        file = self.files.pop(name)
        file.dropped = True
        if not file.users:  # guard: file-in-use
            os.close(file.fd)

    def close(self) -> None:
        with self.lock:
            for name in list(self.files):
                self.drop(name)


class LocalFiles(Source):
    """Read files by path with `pread`."""

    chunk_bytes = 4 << 10

    def __init__(self, *, most_open: int = MOST_OPEN) -> None:
        if most_open < 1:
            raise ConfigError(f"most_open must be at least 1, got {most_open}")
        self.most_open = most_open
        self._stamps: dict[str, str] = {}
        self._opened = PerProcess(_Opened)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        with self._file(name) as fd:
            return read_span(fd, name, start, end)

    def size(self, name: str) -> int:
        with self._file(name) as fd:
            return os.fstat(fd).st_size

    def stamp(self, name: str) -> str:
        with self._file(name) as fd:
            return self._stamps.setdefault(name, stamp_of(os.fstat(fd)))

    def identity(self, name: str) -> str:
        """Return the stamp with the inode's change time, which only the kernel sets: nobody can set it back."""
        with self._file(name) as fd:
            status = os.fstat(fd)
            return f"{stamp_of(status)}-{status.st_ctime_ns}"

    def close(self) -> None:
        self._opened.close()

    @contextmanager
    def _file(self, name: str) -> Iterator[int]:
        opened = self._opened.get()
        with opened.lock:
            file = opened.files.get(name)
            if file is None:
                while len(opened.files) >= self.most_open:
                    opened.drop(next(iter(opened.files)))
                file = opened.files[name] = _File(self._open(name))
            opened.files.move_to_end(name)
            file.users += 1
        try:
            yield file.fd
        finally:
            with opened.lock:
                file.users -= 1
                if file.dropped and not file.users:
                    os.close(file.fd)

    def _open(self, name: str) -> int:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # O_NONBLOCK: do not wait on a pipe
        status = os.fstat(fd)
        was, found = self._stamps.get(name), stamp_of(status)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise BadRead(f"{name} is not a regular file")
        if was is not None and was != found:  # guard: changed-file
            os.close(fd)
            raise changed(name, was, found)
        return fd


class WholeFiles(Source):
    """Read whole files by path without caching descriptors: folders with one sample per file."""

    chunk_bytes = 1 << 20

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read with less overhead than `open`."""
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if start or end is not None:
                return read_span(handle, name, start, end)
            size = os.fstat(handle).st_size
            data = os.read(handle, size + 1)
            if len(data) == size:
                return data
            parts = [data]  # it grows, exceeds one read, or has no size, like a pipe
            while parts[-1]:
                parts.append(os.read(handle, self.chunk_bytes))
            return b"".join(parts)
        except IsADirectoryError as exc:
            exc.filename = name  # as `open` sets it
            raise
        finally:
            os.close(handle)

    def size(self, name: str) -> int:
        return os.stat(name).st_size  # noqa: PTH116 - a path as the caller has it

    def stamp(self, name: str) -> str:
        """Return the stamp. A later change is no error: nothing is derived from the file but its bytes."""
        return stamp_of(os.stat(name))  # noqa: PTH116 - as above

    def close(self) -> None:
        """Nothing is open."""


def read_span(fd: int, name: str, start: int, end: int | None) -> bytes:
    start, end = span(name, start, end, os.fstat(fd).st_size)
    data = os.pread(fd, end - start, start)
    while len(data) < end - start:  # a signal, or more than the 2 GiB limit of one call
        more = os.pread(fd, end - start - len(data), start + len(data))
        if not more:
            raise BadRead(f"{name} ended at byte {start + len(data):,} while it was read")
        data += more
    return data


def stamp_of(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}"
