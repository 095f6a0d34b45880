"""One try at reading samples from their source into memory.

Rule 1: memory gets exactly the bytes of a sample's ranges, one behind the other, or an error is raised; then it may hold anything.
Rule 2: memory is asked for as soon as a sample's size is known: before anything is read, or once the source has said how much there is. What has no
        memory is not read.
Rule 3: no slice of a sample's memory outlives a try.
Rule 4: a file that was said to have a stamp has it at each read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack

from penstock.cache.open_runs import FileRun, HttpRun, ObjectRun, OpenRun, sizes_of
from penstock.cache.read_jobs import Token, WantedSample
from penstock.policy.retry import RetryLimits
from penstock.sources.anywhere import local_path
from penstock.sources.cloud import KINDS
from penstock.sources.http import HttpFiles
from penstock.sources.sources import NEAR_BYTES, BadRead, ByteRange, changed, joined, shown
from penstock.sources.stores import ObjectStores

TRY_S = 10.0
"""Time limit of a try, and more for many bytes."""

TYPICAL_BYTES = 128 << 10
"""What a file of unknown size is taken for at first."""
RECENT = 16

Place = Callable[[Token, int], memoryview | None]


class SampleRead:
    """Samples that are read together, and the memory they got. It outlives a try."""

    __slots__ = ("lengths", "memory", "no_room", "ranges")

    def __init__(self, samples: Sequence[WantedSample]) -> None:
        self.ranges = dict(samples)
        self.memory: dict[Token, memoryview] = {}
        self.lengths: dict[Token, tuple[int, ...]] = {}
        self.no_room: list[Token] = []

    def kind(self) -> str:
        """Return the kind of source of its first file."""
        return kind_of(self.first_name())

    def first_name(self) -> str:
        return next((name for ranges in self.ranges.values() for name, _, _ in ranges), "")

    def known_bytes(self, unknown: int) -> int:
        """Return its bytes; `unknown`: those of a range whose end is not known."""
        total = 0
        for ranges in self.ranges.values():
            for _, start, end in ranges:
                total += unknown if end is None else end - start
        return total

    def have_memory(self, token: Token, lengths: tuple[int, ...], place: Place) -> bool:
        """Ask for a sample's memory, unless it has some; return whether it has."""
        was = self.lengths.get(token)
        if was is None:
            memory = place(token, sum(lengths))
            if memory is None:
                self.no_room.append(token)
                self.drop(token)
                return False
            if len(memory) != sum(lengths):
                raise ValueError(f"{sum(lengths):,} bytes were asked for, and {len(memory):,} given")
            self.memory[token], self.lengths[token] = memory, lengths
        elif was != lengths:  # guard: size-at-retry
            raise changed(self.ranges[token][0][0], f"{sum(was)} bytes", f"{sum(lengths)} bytes")
        return True

    def alone(self, token: Token) -> SampleRead:
        """Return a read of one of the samples, with the memory that it has."""
        one = SampleRead([(token, self.ranges[token])])
        if token in self.memory:
            one.memory[token], one.lengths[token] = self.memory[token], self.lengths[token]
        return one

    def drop(self, token: Token) -> None:
        del self.ranges[token]
        self.memory.pop(token, None)
        self.lengths.pop(token, None)

    def parts(self, token: Token) -> Iterator[memoryview]:
        """Yield the memory of each range."""
        at = 0
        for length in self.lengths[token]:
            yield self.memory[token][at : at + length]
            at += length


class SampleReader:
    """Reads samples. Any thread may ask."""

    def __init__(
        self, *, settings: Mapping[str, str], cwd: str, most_idle: int = 128, try_s: float = TRY_S
    ) -> None:
        """`settings`: what the environment of whoever asks says about object stores; `cwd`: where relative names begin."""
        self._cwd, self._try_s = cwd, try_s
        self._stores = ObjectStores(settings)
        self._http = HttpFiles(timeout_s=try_s, limits=RetryLimits(total_s=0), most_idle=most_idle)
        self._stamps: dict[str, str] = {}
        self.typical_bytes = TYPICAL_BYTES
        """Mean size of what had no known one, of late."""

    def expect(self, name: str, stamp: str) -> None:
        """From now on, a file having another stamp (`Source.stamp`) is an error."""
        if kind_of(name) == "http":
            self._http.expect(name, stamp)
        self._stamps[name] = stamp

    def read(self, read: SampleRead, place: Place) -> None:
        """Try once. Whatever is raised, another try may follow."""
        wanted = list(read.ranges.items())
        if len(wanted) == 1 and len(wanted[0][1]) == 1:  # the usual case, which costs a fraction of the other
            self._read_one(read, *wanted[0], place)
        else:
            self._read_some(read, place)

    def _read_one(self, read: SampleRead, token: Token, ranges: tuple[ByteRange, ...], place: Place) -> None:
        sizes = sizes_of(ranges)
        if sizes is not None and not read.have_memory(token, tuple(sizes), place):
            return
        opened = self._opened(ranges[0], ranges)
        try:
            if sizes is not None or read.have_memory(token, tuple(opened.sizes), place):
                opened.into((read.memory[token],))
        finally:
            opened.close()

    def _read_some(self, read: SampleRead, place: Place) -> None:
        for token, ranges in list(read.ranges.items()):
            sizes = sizes_of(ranges)
            if sizes is not None:
                read.have_memory(token, tuple(sizes), place)
        wanted = list(read.ranges.items())
        runs: list[OpenRun] = []
        with ExitStack() as ends:
            for run, members in joined([one for _, ranges in wanted for one in ranges], NEAR_BYTES):
                runs.append(self._opened(run, members))
                ends.callback(runs[-1].close)
            sizes_found = iter([size for run in runs for size in run.sizes])
            parts: list[memoryview | None] = []
            for token, ranges in wanted:
                has_memory = read.have_memory(token, tuple(next(sizes_found) for _ in ranges), place)
                mine = read.parts(token) if has_memory else (None for _ in ranges)
                parts += [None if part is None else ends.enter_context(part) for part in mine]
            at = 0
            for opened in runs:
                opened.into(parts[at : at + len(opened.sizes)])
                at += len(opened.sizes)

    def _opened(self, run: ByteRange, members: Sequence[ByteRange]) -> OpenRun:
        opened = self._made(run, members)
        if run[2] is None:
            self.typical_bytes += (opened.sizes[0] - self.typical_bytes) // RECENT
        return opened

    def _made(self, run: ByteRange, members: Sequence[ByteRange]) -> OpenRun:
        name = run[0]
        kind, stamp = kind_of(name), self._stamps.get(name)
        if kind == "file":
            return FileRun(os.path.join(self._cwd, local_path(name) or ""), members, stamp)  # noqa: PTH118 - as spelled
        if kind == "http":
            return HttpRun(run, members, self._http)
        if kind == "store":
            return ObjectRun(run, members, self._stores, stamp, self._try_s, 2 * self.typical_bytes)
        raise BadRead(f"{shown(name)} is not read for others: its worker reads it")

    def close(self) -> None:
        self._http.close()


def kind_of(name: str) -> str:
    """Return "file", "http", "store", or "other" for what only a worker reads."""
    kind, found, _ = name.partition("://")
    if not found or kind == "file":
        return "file"
    kind = kind.lower()
    return "store" if kind in KINDS else "http" if kind in ("http", "https") else "other"
