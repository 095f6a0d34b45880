"""Any name of a file: a path, or a URL, read by whoever knows its kind."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import url2pathname

from penstock.policy.retry import RetryLimits
from penstock.sources.http import HttpFiles
from penstock.sources.object_stores import FsspecFiles
from penstock.sources.sources import LocalFiles, Source


class AnyFiles(Source):
    """Local files by path or file:// URL, http(s) by ranges, and other URLs by fsspec."""

    chunk_bytes = 64 << 10

    def __init__(self, *, limits: RetryLimits = RetryLimits()) -> None:  # noqa: B008 - frozen
        self.local, self.limits = LocalFiles(), limits
        self._others: dict[str, Source] = {}

    def of(self, name: str) -> tuple[Source, str]:
        """The source of a name, and what it calls it."""
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
        """Like a stamp, but of a file that is certainly the same where the text is; None where its source cannot be that sure."""
        source, name = self.of(name)
        if isinstance(source, LocalFiles):
            return source.identity(name)
        return source.identity(name) if isinstance(source, HttpFiles) else None

    def close(self) -> None:
        for source in (self.local, *self._others.values()):
            source.close()


def local_path(name: str) -> str | None:
    """The path that a name stands for; None where it is a URL of somewhere else."""
    if name.startswith("file://"):
        return url2pathname(urlsplit(name).path)
    return None if "://" in name else name
