"""Random access to images in tar shards in WebDataset's layout: a sample's files share their name up to the first dot.

Each shard's headers are scanned once; the resulting index is stored (`penstock.sources.tar_index`).
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.dataset.costs import KnownCosts
from penstock.dataset.offers import ReadSeam
from penstock.errors import ConfigError
from penstock.pipeline.header import MAX_PIXELS, BadImage, read_header
from penstock.pipeline.staged import EXTENSIONS, StagedDataset
from penstock.policy.retry import RetryLimits
from penstock.sources.anywhere import AnyFiles, local_path
from penstock.sources.sources import ByteRange, shown
from penstock.sources.tar_index import TarIndex, index_of, places_of
from penstock.sources.tar_walk import BadTar

log = logging.getLogger(__name__)

IMAGES = tuple(extension.removeprefix(".") for extension in EXTENSIONS)
TARGETS = ("cls", "json", "txt")
HEADER_BYTES = 64 << 10
"""Enough for the header of most images."""
MOST_SHARDS = 1_000_000

SAMPLE = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")


class BadTarget(ValueError):
    """A sample's target is missing or invalid."""


class Samples(NamedTuple):
    keys: list[str]
    places: NDArray[np.int64]
    """One row per sample: offset and size of its image, then of its target; -1 if missing."""
    without_image: int


class TarDataset(StagedDataset):
    """(image, target) of every sample in one or more tar shards.

    `urls`: a path or URL, a list of them, a range such as "part-{000..127}.tar", or, for local files, a pattern such as "*.tar". `target`:
    the extension of the file that holds a sample's target, "cls" (an int), "json" or "txt" (a str); None for no target. `index_dir`: where
    to store shard indexes; by default beside the shard (`NAME.tar.penstock-index`) if writable, else in the user's cache folder; False
    stores none. `retry_s`: how long to retry a read over http while the server is busy or unreachable.
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Any = None,
        *,
        target: str | None = "cls",
        index_dir: str | os.PathLike[str] | Literal[False] | None = None,
        retry_s: float = 120.0,
        max_pixels: int = MAX_PIXELS,
        fast_decode: bool = False,
    ) -> None:
        if target is not None and target not in TARGETS:
            raise ConfigError(
                f"target must be one of {', '.join(map(repr, TARGETS))} or None, got {target!r}"
            )
        self.urls, self.target = [absolute(url) for url in expanded(urls)], target
        self.bytes_from = self.files = AnyFiles(limits=RetryLimits(total_s=retry_s))
        shards = [self._samples(number, index_dir) for number in range(len(self.urls))]
        self._ends = list(accumulate(len(shard.keys) for shard in shards))
        self._keys = [shard.keys for shard in shards]
        self._places = np.concatenate([shard.places for shard in shards])
        super().__init__(None, transform, len(self._places), max_pixels=max_pixels, fast_decode=fast_decode)
        if skipped := sum(shard.without_image for shard in shards):
            warnings.warn(
                f"{skipped} samples in {len(self.urls)} tar shards have no image ({', '.join(IMAGES)}) and are left out",
                stacklevel=2,
            )

    def name(self, index: int) -> str:
        shard, within = self._where(index)
        return f"sample {self._keys[shard][within]!r} of {shown(self.urls[shard])}"

    def _path(self, index: int) -> str:
        shard, within = self._where(index)
        return f"{shown(self.urls[shard])}: {self._keys[shard][within]}"

    def close(self) -> None:
        """Close files and connections; a later read reopens them."""
        self.files.close()

    def read_header_bytes(self, index: int) -> bytes:
        url, start, end = self.locate(index)
        head = self.bytes_from.read(url, start, min(end or 0, start + HEADER_BYTES))
        try:
            read_header(head, max_pixels=1 << 62)
        except BadImage:  # large metadata before the size may have truncated it
            return self.bytes_from.read(url, start, end)
        return head

    def contents(self) -> str | None:
        if type(self) is not TarDataset or not self.is_located:
            return None
        found = [self.files.identity(url) for url in self.urls]
        return None if None in found else repr((self.urls, found, self.target))

    def _samples(self, number: int, index_dir: str | os.PathLike[str] | Literal[False] | None) -> Samples:
        url = self.urls[number]
        source, name = self.files.of(url)
        places = [] if index_dir is False else places_of(name, local_path(url), index_dir)
        index, new = index_of(source, name, places)
        found = samples_of(index, url, self.target)
        if new:
            log.info(
                "indexed shard %d of %d, %s: %d samples",
                number + 1,
                len(self.urls),
                shown(url),
                len(found.keys),
            )
        return found

    def _where(self, index: int) -> tuple[int, int]:
        """Return a sample's shard, and its number there."""
        shard = bisect_right(self._ends, index)
        return shard, index - (self._ends[shard - 1] if shard else 0)

    def locate(self, index: int) -> ByteRange:
        return self._ranges(index)[0]

    def _costs(self) -> KnownCosts:
        return KnownCosts(says="the bytes of its image", of=lambda keys: self._places[keys, 1])

    def seam(self) -> ReadSeam | None:
        return ReadSeam(holder=self, ranges=self.ranges, files=tuple(self.urls))

    def ranges(self, index: int) -> list[ByteRange]:
        return [one for one in self._ranges(index % len(self)) if one[1] >= 0]

    def target_of(self, index: int) -> Any:
        return (
            None if self.target is None else self._parsed(index, *self._bytes(index, self._ranges(index)[1:]))
        )

    def read_located(self, index: int) -> tuple[bytes, Any]:
        image, *said = self._bytes(index, self._ranges(index))
        return image, self._parsed(index, *said) if said else None

    def _ranges(self, index: int) -> list[ByteRange]:
        """Return where a sample's image is, and its target unless `target` is None; a missing target begins at -1."""
        url = self.urls[bisect_right(self._ends, index)]
        offset, size, target, target_size = self._places[index].tolist()
        image = url, offset, offset + size
        return [image] if self.target is None else [image, (url, target, target + target_size)]

    def _bytes(self, index: int, ranges: list[ByteRange]) -> list[bytes]:
        if ranges[-1][1] < 0:
            raise BadTarget(f"{self.name(index)} has no .{self.target} file")
        try:
            return self.bytes_from.read_many(ranges)
        except OSError as exc:
            exc.add_note(f"penstock: {self.name(index)}")
            raise

    def _parsed(self, index: int, said: bytes) -> Any:
        try:
            text = said.decode("utf-8")
            return int(text) if self.target == "cls" else json.loads(text) if self.target == "json" else text
        except (ValueError, RecursionError) as exc:
            raise BadTarget(
                f"{self.name(index)} has a .{self.target} file that cannot be read: {exc}: {said[:40]!r}"
            ) from exc


def samples_of(index: TarIndex, url: str, target: str | None) -> Samples:
    """Group a shard's members into samples, in the order of their first files."""
    found: dict[str, dict[str, int]] = {}
    for number, name in enumerate(index.names):
        match = SAMPLE.fullmatch(name)
        if match is None:
            continue
        files = found.setdefault(match[1], {})
        if files.setdefault(match[2].lower(), number) != number:
            raise BadTar(f"{shown(url)} has two files named {name!r}: which of them belongs to the sample?")
    keys, images, targets = [], [], []
    for key, files in found.items():
        image = next((files[extension] for extension in IMAGES if extension in files), None)
        if image is not None:
            keys.append(key)
            images.append(image)
            targets.append(files.get(target or "", -1))
    rows = np.stack([index.offsets, index.sizes], axis=1)
    rows = np.concatenate([rows, np.full((1, 2), -1)])  # the last row, -1: missing
    picked = rows[np.array(images, np.int64)], rows[np.array(targets, np.int64)]
    return Samples(keys, np.concatenate(picked, axis=1), len(found) - len(keys))


def expanded(urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Expand {000..127}, {train,val} and patterns such as "*.tar" to every shard's path or URL."""
    given = [urls] if isinstance(urls, (str, os.PathLike)) else list(urls)
    found: list[str] = []
    for one in given:
        url = os.fspath(one)
        pieces = BRACES.split(url)
        choices = [alternatives(url, *pieces[at : at + 3]) for at in range(1, len(pieces), 4)]
        total = int(np.prod([len(choice) for choice in choices], dtype=np.float64))
        if total + len(found) > MOST_SHARDS:
            raise ConfigError(f"{url!r} names {total:,} shards; the most is {MOST_SHARDS:,}")
        for chosen in product(*choices):
            found += matching("".join(chain(*zip(pieces[::4], (*chosen, ""), strict=True))))
    if not found:
        raise ConfigError("no tar shard was given")
    return found


def matching(url: str) -> list[str]:
    """Return the sorted files that match a pattern ("**" matches any folders). A file with that literal name takes precedence."""
    if "://" in url or not glob.has_magic(url) or Path(url).exists():
        return [url]
    found = sorted(glob.glob(url, recursive=True))  # noqa: PTH207 - Path's sorts otherwise, and knows no absolute patterns
    if not found:
        raise ConfigError(f"no file matches {url!r} in {Path.cwd()}")
    return found


def absolute(url: str) -> str:
    """Make a path independent of the working directory; a URL stays as it is."""
    path = local_path(url)
    return url if path is None else os.path.abspath(path)  # noqa: PTH100 - resolve() would follow links


def alternatives(url: str, first: str | None, last: str | None, listed: str | None) -> Sequence[str]:
    if listed is not None:
        return listed.split(",")
    assert first is not None
    assert last is not None
    low, high, width = int(first), int(last), max(len(first), len(last)) if "0" in (first[0], last[0]) else 0
    if high < low or high - low >= MOST_SHARDS:
        raise ConfigError(f"{url!r}: {{{first}..{last}}} names no shards, or too many")
    return [str(number).zfill(width) for number in range(low, high + 1)]
