"""How large a dataset's samples are, in the mean, from some of them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from penstock.cache.join_facts import JoinFacts
from penstock.cache.reading import kind_of
from penstock.sources.anywhere import local_path
from penstock.sources.http import HttpFiles
from penstock.sources.objects import head
from penstock.sources.sources import BadRead, ByteRange, shown
from penstock.sources.stores import ObjectStores

THREADS = 64
WITHIN_S = 30.0
"""A source that is slower is taken as it was found until then."""
LOW = 0.98
"""Samples are taken for a little smaller than measured: homes that are a bit too many fill their room, homes that are too few would leave some empty."""


def mean_bytes(facts: JoinFacts) -> int:
    """Measure the mean; 0 if no sample could be measured."""
    found = [size for probe in facts.probes if (size := size_if_known(probe)) is not None]
    if len(found) < len(facts.probes):
        found = []
        sizes = FileSizes(facts)
        pool = ThreadPoolExecutor(THREADS, "penstock cache probe")
        try:
            for each in as_completed([pool.submit(sizes.of, probe) for probe in facts.probes], WITHIN_S):
                if each.exception() is None:
                    found.append(each.result())
        except TimeoutError:
            pass
        pool.shutdown(wait=False, cancel_futures=True)
        sizes.close()
    return round(LOW * sum(found) / len(found)) if found else 0


class FileSizes:
    """Looks at files without reading them."""

    def __init__(self, facts: JoinFacts) -> None:
        self._cwd, self._stores, self._http = facts.cwd, ObjectStores(facts.settings), HttpFiles()

    def of(self, ranges: Sequence[ByteRange]) -> int:
        """Return the bytes of a sample."""
        return sum((self._size(name) if end is None else end) - start for name, start, end in ranges)

    def _size(self, name: str) -> int:
        kind = kind_of(name)
        if kind == "file":
            return os.stat(os.path.join(self._cwd, local_path(name) or "")).st_size  # noqa: PTH116, PTH118 - as spelled
        if kind == "http":
            return self._http.size(name)
        if kind == "store":
            return head(name, time.monotonic() + WITHIN_S, self._stores)[0]
        raise BadRead(f"{shown(name)} is not read for others")

    def close(self) -> None:
        self._http.close()


def size_if_known(ranges: Sequence[ByteRange]) -> int | None:
    """Return the bytes of a sample whose ranges have ends."""
    total = 0
    for _, start, end in ranges:
        if end is None:
            return None
        total += end - start
    return total
