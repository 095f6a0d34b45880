"""Route a path or URL to the source that can read it."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import url2pathname

from penstock.policy.retry import RetryLimits
from penstock.sources.http import HttpFiles
from penstock.sources.object_stores import FsspecFiles
from penstock.sources.sources import LocalFiles, Source


class AnyFiles(Source):
    """Read local files by path or file:// URL, http(s) by ranges, other URLs through fsspec."""

    chunk_bytes = 64 << 10

    def __init__(self, *, limits: RetryLimits = RetryLimits()) -> None:  # noqa: B008 - frozen
        self.local, self.limits = LocalFiles(), limits
        self._others: dict[str, Source] = {}

    def of(self, name: str) -> tuple[Source, str]:
        """Return the source for a name, and the name as that source spells it."""
        if (path := local_path(name)) is not None:
            return self.local, path
        kind = "http" if name.lower().startswith(("http://", "https://")) else "other"
        if kind not in self._others:
            self._others[kind] = HttpFiles(limits=self.limits) if kind == "http" else FsspecFiles()
        return self._others[kind], name

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        source, name = self.of(name)
        return source.read(name, start, end)

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
        return source.identity(name) if isinstance(source, (LocalFiles, HttpFiles)) else None

    def close(self) -> None:
        for source in (self.local, *self._others.values()):
            source.close()


def local_path(name: str) -> str | None:
    """Return the local path of a name; None for a remote URL."""
    if name.startswith("file://"):
        return url2pathname(urlsplit(name).path)
    return None if "://" in name else name
