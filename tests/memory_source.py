"""A source of bytes that needs no disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from zlib import crc32

from penstock.sources.sources import Source, span


class Memory(Source):
    """Files that are held in memory, by their names."""

    chunk_bytes = 64 << 10

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        data = self._data(name)
        start, end = span(name, start, end, len(data))
        return bytes(data[start:end])

    def size(self, name: str) -> int:
        return len(self._data(name))

    def stamp(self, name: str) -> str:
        return f"{self.size(name)}-{crc32(self._data(name)):08x}"

    def close(self) -> None:
        pass

    def _data(self, name: str) -> bytes:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None
