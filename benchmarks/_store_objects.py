"""The files that a store serves, and how it lists them."""

from __future__ import annotations

import os
import resource
import stat
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

PAGE = 1000
"""Names in one answer to a listing."""
MOST_OPEN = 20_000


class Opened(NamedTuple):
    fd: int
    size: int
    facts: bytes
    """Headers that are the same in every answer."""
    tag: bytes


class Objects:
    """The files below a folder. Many stay open: to open one costs as much as the rest of an answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder.resolve())
        self._open: dict[str, Opened] = {}
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._most = min(MOST_OPEN, hard // 2)

    def opened(self, name: str) -> Opened | None:
        found = self._open.get(name)
        if found is None and ".." not in name.split("/"):
            try:
                fd = os.open(f"{self._folder}/{name}", os.O_RDONLY)
                told = os.fstat(fd)
            except OSError:
                return None
            if not stat.S_ISREG(told.st_mode):
                os.close(fd)
                return None
            tag = tag_of(told)
            facts = f"ETag: {tag}\r\nLast-Modified: {formatdate(told.st_mtime, usegmt=True)}\r\nAccept-Ranges: bytes\r\nContent-Type: application/octet-stream\r\n"
            if len(self._open) >= self._most:
                os.close(self._open.pop(next(iter(self._open))).fd)
            found = self._open[name] = Opened(fd, told.st_size, facts.encode(), tag.encode())
        return found

    def listed(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        root = Path(self._folder, bucket)
        prefix, after, start, delimiter = (
            query.get(name, [""])[0] for name in ("prefix", "continuation-token", "start-after", "delimiter")
        )
        most = min(PAGE, int(query.get("max-keys", [PAGE])[0]))
        walked = (f"{at}/{name}" for at, _, names in os.walk(root, followlinks=True) for name in names)
        keys = sorted(key for path in walked if (key := os.path.relpath(path, root)).startswith(prefix))
        folders, rows = dict[str, None](), list[str]()
        if delimiter:
            cut = {key: key.find(delimiter, len(prefix)) for key in keys}
            folders = {key[: at + len(delimiter)]: None for key, at in cut.items() if at >= 0}
            keys = [key for key in keys if cut[key] < 0]
        left = [key for key in keys if key > max(after, start)]
        page = left[:most]
        for key in page:
            told = (root / key).stat()
            rows.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{told.st_size}</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{escape(tag_of(told))}</ETag><StorageClass>STANDARD</StorageClass></Contents>"
            )
        rows += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in folders]
        more = len(left) > most
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return (
            f"<?xml version='1.0'?><ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{''.join(rows)}</ListBucketResult>"
        ).encode()


def tag_of(told: os.stat_result) -> str:
    return f'"{told.st_size:x}-{told.st_mtime_ns:x}"'
