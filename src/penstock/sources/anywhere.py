"""Route a path or URL to the source that can read it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from urllib.parse import urlsplit
from urllib.request import url2pathname

from penstock.policy.retry import RetryLimits
from penstock.sources.cloud import KINDS, CloudFiles
from penstock.sources.http import HttpFiles
from penstock.sources.others import FsspecFiles
from penstock.sources.sources import ByteRange, LocalFiles, Source


class AnyFiles(Source):
    """Read local files by path or file:// URL, http(s) by ranges, object stores through the node's fetch service, other URLs through fsspec."""

    chunk_bytes = 64 << 10

    def __init__(self, *, limits: RetryLimits = RetryLimits()) -> None:  # noqa: B008 - frozen
        self.local, self.limits = LocalFiles(), limits
        self._others: dict[str, Source] = {}

    def of(self, name: str) -> tuple[Source, str]:
        """Return the source for a name, and the name as that source spells it."""
        if (path := local_path(name)) is not None:
            return self.local, path
        kind = name.partition("://")[0].lower()
        kind = "http" if kind in ("http", "https") else "cloud" if kind in KINDS else "other"
        if kind not in self._others:
            self._others[kind] = self._made(kind)
        return self._others[kind], name

    def _made(self, kind: str) -> Source:
        if kind == "http":
            return HttpFiles(limits=self.limits)
        return CloudFiles(limits=self.limits) if kind == "cloud" else FsspecFiles()

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        source, name = self.of(name)
        return source.read(name, start, end)

    def read_many(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        """Let each source read its ranges at once: object stores are asked for many side by side."""
        spelled = [(*self.of(name), start, end) for name, start, end in ranges]
        found: list[bytes] = []
        for _, some in groupby(spelled, key=lambda one: id(one[0])):
            group = list(some)
            found += group[0][0].read_many([(name, start, end) for _, name, start, end in group])
        return found

    def is_local(self, name: str) -> bool:
        source, name = self.of(name)
        return source.is_local(name)

    def size(self, name: str) -> int:
        source, name = self.of(name)
        return source.size(name)

    def stamp(self, name: str) -> str:
        source, name = self.of(name)
        return source.stamp(name)

    def identity(self, name: str) -> str | None:
        """Return a stamp that guarantees equal content; None if the source cannot guarantee it."""
        source, name = self.of(name)
        return source.identity(name) if isinstance(source, (LocalFiles, HttpFiles, CloudFiles)) else None

    def close(self) -> None:
        for source in (self.local, *self._others.values()):
            source.close()


def local_path(name: str) -> str | None:
    """Return the local path of a name; None for a remote URL."""
    if name.startswith("file://"):
        return url2pathname(urlsplit(name).path)
    return None if "://" in name else name
