"""Neighbouring ranges of one file, read at once into memory: of a local file, an object, a file on an http server.

A run is opened, which says how many bytes each range has, and then read. Where the ranges say it themselves, nothing happens at its opening.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.errors import ConfigError
from penstock.sources.cloud import error_of
from penstock.sources.fetch_frames import AskedBytes
from penstock.sources.http import BUSY, HttpFiles
from penstock.sources.objects import ObjectAnswer, range_bytes
from penstock.sources.retries import Fleeting
from penstock.sources.sources import BadRead, ByteRange, changed, shown, span, stamp_of
from penstock.sources.stores import ObjectStores, Unreadable

LEAST_BYTES_PER_S = 64 << 10
"""Slower answers fail, some time after the limit of a try."""
STREAMED_BYTES, PIECE_BYTES = 8 << 20, 1 << 20
"""Objects of more bytes arrive in pieces: to collect them first would take their memory twice."""
MOST_PARTS = 512
"""Pieces of memory in one call; the kernel takes 1024."""

Parts = Sequence[memoryview | None]
"""Memory for each range of a run; None: it is not needed."""


class OpenRun(Protocol):
    """Neighbouring ranges of a file that can be read."""

    sizes: list[int]
    """Bytes of each range."""

    def into(self, parts: Parts) -> None:
        """Write the bytes of each range."""
        ...

    def close(self) -> None: ...


def sizes_of(members: Sequence[ByteRange]) -> list[int] | None:
    """Return the bytes of each range; None if an end is unknown. A run has at most one of those, alone."""
    sizes, known = [], True
    for name, start, end in members:
        if start < 0 or (end is not None and end < start):
            raise ConfigError(f"bytes [{start}, {end}) of {shown(name)} were asked for")
        if end is None:
            known = False
        else:
            sizes.append(end - start)
    return sizes if known else None


# ---- local files


class FileRun:
    """Ranges of a local file. Its descriptor is not kept for later reads: a file of another content may take the name."""

    def __init__(self, path: str, members: Sequence[ByteRange], stamp: str | None) -> None:
        self._path = path
        # O_NONBLOCK: do not wait on a pipe
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise BadRead(f"{path} is not a regular file")
            if stamp is not None and stamp_of(status) != stamp:  # guard: expected-stamp
                raise changed(path, stamp, stamp_of(status))
            self._spans = [span(path, start, end, status.st_size) for _, start, end in members]
        except BaseException:
            os.close(self._fd)
            raise
        self._to_its_end = members[-1][2] is None
        self.sizes = [end - start for start, end in self._spans]

    def into(self, parts: Parts) -> None:
        together: list[memoryview] = []
        first = last = 0
        for (start, end), part in zip(self._spans, parts, strict=True):
            if part is None:
                continue
            if together and (start != last or len(together) == MOST_PARTS):
                self._read(together, first)
                together = []
            if not together:
                first = start
            together.append(part)
            last = end
        if together:
            self._read(together, first)

    def _read(self, parts: list[memoryview], start: int) -> None:
        """Read what lies one behind the other. One more byte at the file's end would show that it has grown, or has no size (as some virtual files)."""
        due, spare = sum(map(len, parts)), bytearray(1)
        got = os.preadv(self._fd, [*parts, spare] if self._to_its_end else parts, start)
        while got < due:  # a signal, or more than the 2 GiB limit of one call
            with _rest(parts, got) as rest:
                more = os.preadv(self._fd, [rest], start + got)
            if not more:
                raise BadRead(f"{self._path} ended at byte {start + got:,} while it was read")
            got += more
        if got > due:
            raise BadRead(f"{self._path} grew while it was read")

    def close(self) -> None:
        os.close(self._fd)


def _rest(parts: Sequence[memoryview], got: int) -> memoryview:
    """Return what is left to write of the part that byte `got` belongs to."""
    for part in parts:
        if got < len(part):
            return part[got:]
        got -= len(part)
    raise AssertionError("nothing is left")


# ---- object stores


class ObjectRun:
    """Ranges of an object."""

    def __init__(
        self,
        run: ByteRange,
        members: Sequence[ByteRange],
        stores: ObjectStores,
        stamp: str | None,
        try_s: float,
        whole_bytes: int,
    ) -> None:
        """`whole_bytes`: what it is taken for if its end is unknown, when its time is measured out."""
        self._run, self._members, self._stores, self._stamp = run, members, stores, stamp
        self._try_s, self._whole_bytes = try_s, whole_bytes
        known = sizes_of(members)
        self._answer = None if known is not None else self._ask()
        self.sizes: list[int] = [self._answer.due] if self._answer is not None else known or []

    def _asked(self) -> AskedBytes:
        name, start, end = self._run
        within_s = self._try_s + (self._whole_bytes if end is None else end - start) / LEAST_BYTES_PER_S
        etag = "" if self._stamp is None else etag_of(self._stamp)
        return AskedBytes(name, start, end, time.monotonic() + within_s, etag)

    def _ask(self) -> ObjectAnswer:
        try:
            answer = ObjectAnswer(self._asked(), self._stores)
        except Unreadable as exc:
            raise self._error(exc) from exc
        if self._stamp is not None:
            found = f"{answer.size}-{answer.etag or answer.time}"
            if found != self._stamp:  # guard: expected-object
                raise changed(self._run[0], self._stamp, found)
        return answer

    def into(self, parts: Parts) -> None:
        due = self.sizes[0] if len(self.sizes) == 1 else sum(self.sizes)
        if not due:
            return
        try:
            answer, self._answer = self._answer, None
            if answer is None:
                if self._stamp is None and due <= STREAMED_BYTES:
                    put(range_bytes(self._asked(), self._stores), self._run, self._members, parts)
                    return
                answer = self._ask()
            if answer.due > STREAMED_BYTES and len(parts) == 1 and parts[0] is not None:
                answer.into(parts[0], PIECE_BYTES)
            else:
                put(answer.bytes(), self._run, self._members, parts)
        except Unreadable as exc:
            raise self._error(exc) from exc

    def _error(self, exc: Unreadable) -> Exception:
        found = error_of(self._run[0], exc.trouble, str(exc), self._stamp or "")
        if isinstance(found, Fleeting):
            found.busy = exc.status in BUSY
        return found

    def close(self) -> None:
        self._answer = None


def etag_of(stamp: str) -> str:
    """Return the etag in a stamp; "" if it is a time."""
    said = stamp.partition("-")[2]
    return said if said.startswith(('"', 'W/"')) else ""


def put(data: Any, run: ByteRange, members: Sequence[ByteRange], parts: Parts) -> None:
    """Copy the bytes of a run to the memory of its ranges."""
    if len(parts) == 1:
        if parts[0] is not None:
            parts[0][:] = data
        return
    with memoryview(data) as whole:
        for (_, start, end), part in zip(members, parts, strict=True):
            if part is not None and end is not None:
                with whole[start - run[1] : end - run[1]] as piece:
                    part[:] = piece


# ---- http


class HttpRun:
    """Ranges of a file on an http server."""

    def __init__(self, run: ByteRange, members: Sequence[ByteRange], files: HttpFiles) -> None:
        self._run, self._members, self._files = run, members, files
        known = sizes_of(members)
        self._whole = (
            None if known is not None else files.read(run[0], run[1]) if run[1] else files.whole(run[0])
        )
        self.sizes: list[int] = [len(self._whole)] if self._whole is not None else known or []

    def into(self, parts: Parts) -> None:
        data, self._whole = self._whole, None
        put(self._files.read(*self._run) if data is None else data, self._run, self._members, parts)

    def close(self) -> None:
        self._whole = None
