"""Fill a persistent disk tier with a dataset's bytes, before any training (`penstock cache warm`).

Rule 1: keys and bytes are those that the loader's cache looks for: `keys.content_key`, and a sample's ranges, one behind the other.
Rule 2: a sample that is there is not read. So whatever ended a run, the same call goes on where it ended.
Rule 3: a sample that cannot be read is noted, and the others go on. Too many in a row end the run: the source is gone.
Rule 4: nothing is evicted: the run ends when the byte budget or the disk is full.
Rule 5: memory is bounded: a reader holds one task, of `TASK_BYTES` or a few whole files.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cache.disk import DiskTier, check_folder
from penstock.cache.keys import ContentKeys
from penstock.dataset.offers import Offer, ReadSeam, offered, path_of
from penstock.errors import ConfigError
from penstock.sources.sources import ByteRange, shown

READERS, MOST_READERS = 64, 1024
"""Reads in flight."""
MOST_STREAMS = 8
"""Threads that read whole remote files. Each asks for several at once, and a source keeps about as many connections."""
TASK_BYTES, TASK_SAMPLES = 4 << 20, 256
"""Limits of neighbours in one file that are read together."""
IN_A_ROW = 32
"""Failed reads without one that worked in between, which end a run."""
MOST_NOTED = 1000
SHOW_S = 0.2
LEAVING_S = 3.0
"""How long a run that is stopped waits for reads in flight. Later ones store nothing."""


class WarmEnd(StrEnum):
    """Why a run ended."""

    WHOLE = "whole"
    """Every sample was looked at."""
    FULL = "full"
    """The byte budget is used up."""
    UNWRITABLE = "unwritable"
    """The disk is full or fails; the store has logged which."""
    GONE = "gone"
    """The source fails again and again."""
    STOPPED = "stopped"


class Unread(NamedTuple):
    """A sample that could not be read."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmState:
    """How far a run is."""

    samples: int
    """Samples of the dataset."""
    found: int = 0
    """Samples that were there."""
    stored: int = 0
    stored_bytes: int = 0
    failed: int = 0
    unplaced: int = 0
    """Samples that were read and not stored: without a free slot, or while another process held the store's lock."""
    end: WarmEnd | None = None
    """None while it runs."""

    @property
    def there(self) -> int:
        return self.found + self.stored

    @property
    def done(self) -> int:
        return self.there + self.failed + self.unplaced


class Located(NamedTuple):
    """A dataset whose bytes can be warmed."""

    offer: Offer
    seam: ReadSeam
    contents: str
    """Changes with the bytes."""
    samples: int

    @property
    def about(self) -> str:
        """Name the dataset for people."""
        kind, files = type(self.seam.holder).__name__, self.seam.files
        if self.seam.folder is not None or not files:
            return f"{kind} {shown(self.seam.folder or '.')}"
        return f"{kind} {shown(files[0])}" + (f" and {len(files) - 1:,} more" if len(files) > 1 else "")


class WarmSample(NamedTuple):
    number: int
    key: bytes
    ranges: list[ByteRange]


class Warming:
    """One run over a dataset. The tier belongs to the caller; flush or close it afterwards."""

    def __init__(self, located: Located, tier: DiskTier, *, readers: int = READERS) -> None:
        if not 1 <= readers <= MOST_READERS:
            raise ConfigError(f"readers must lie between 1 and {MOST_READERS:,}, got {readers}")
        self.unread: list[Unread] = []
        """The first `MOST_NOTED` samples that could not be read."""
        self._located, self._tier, self._keys = located, tier, ContentKeys(located.contents, str(Path.cwd()))
        self._source = located.seam.holder.bytes_from
        first = located.seam.ranges(0) if located.samples else []
        self._threads, self._whole_files = readers, 1
        if any(end is None and not self._source.is_local(name) for name, _, end in first):
            self._threads, self._whole_files = min(readers, MOST_STREAMS), -(-readers // MOST_STREAMS)
        self._state = WarmState(samples=located.samples)
        self._in_a_row = 0
        self._counting, self._taking = threading.Lock(), threading.Lock()
        self._stop, self._idle = threading.Event(), threading.Event()
        self._tasks, self._working = self._tasks_left(), 0
        self._broken: BaseException | None = None

    def run(self) -> Iterator[WarmState]:
        """Yield the state several times a second, and at the end. Closing the iterator, or an exception in its place, stops the run."""
        self._working = self._threads
        threads = [
            threading.Thread(target=self._work, name="penstock warm", daemon=True)
            for _ in range(self._working)
        ]
        try:
            for thread in threads:
                thread.start()
            while not self._idle.wait(SHOW_S):
                yield self.state
        finally:
            self._end(WarmEnd.WHOLE if self._idle.is_set() else WarmEnd.STOPPED)
            until_s = time.monotonic() + LEAVING_S
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, until_s - time.monotonic()))
            self._tier.flush()
        if self._broken is not None:
            raise self._broken
        yield self.state

    @property
    def state(self) -> WarmState:
        with self._counting:
            return self._state

    def recount(self) -> int:
        """Count the dataset's samples in the tier: a failing disk may have lost what was counted as stored."""
        return sum(key in self._tier for _, key, _ in self._samples())

    def _end(self, why: WarmEnd) -> None:
        """End the run; the first reason counts."""
        with self._counting:
            if self._state.end is None:
                self._state = replace(self._state, end=why)
        self._stop.set()

    # ---- readers

    def _work(self) -> None:
        try:
            while (task := self._taken()) is not None:
                self._read(task)
        except BaseException as exc:  # noqa: BLE001 - raised by `run`
            self._broken = exc
            self._stop.set()
        finally:
            with self._counting:
                self._working -= 1
                if not self._working:
                    self._idle.set()

    def _taken(self) -> list[WarmSample] | None:
        with self._taking:
            return None if self._stop.is_set() else next(self._tasks, None)

    def _tasks_left(self) -> Iterator[list[WarmSample]]:
        """Yield what is not there, in the dataset's order: neighbours of one file together."""
        task: list[WarmSample] = []
        nbytes = 0
        for sample in self._samples():
            if self._stop.is_set():
                return
            ranges = sample.ranges
            if sample.key in self._tier:  # guard: warm-resumes
                self._count(found=1)
                continue
            length = sum(
                TASK_BYTES // self._whole_files if end is None else end - start for _, start, end in ranges
            )
            has_room = nbytes + length <= TASK_BYTES and len(task) < TASK_SAMPLES
            if task and not (has_room and self._go_together(task[-1], ranges)):
                yield task
                task, nbytes = [], 0
            task.append(sample)
            nbytes += length
        if task:
            yield task

    def _samples(self) -> Iterator[WarmSample]:
        for index in range(self._located.samples):
            ranges = list(self._located.seam.ranges(index))
            yield WarmSample(index, self._keys(ranges), ranges)

    def _go_together(self, last: WarmSample, ranges: list[ByteRange]) -> bool:
        """Return whether one read should cover both: neighbours in a file, or whole files that are asked for side by side."""
        (name, _, end), (other, _, other_end) = last.ranges[0], ranges[0]
        return self._whole_files > 1 if end is None and other_end is None else name == other

    def _read(self, task: list[WarmSample]) -> None:
        try:
            found = self._source.read_many([one for sample in task for one in sample.ranges])
        except Exception as exc:  # noqa: BLE001 - a user's source may raise anything
            if len(task) == 1:
                self._failed(task[0], exc)
            for sample in task if len(task) > 1 else ():
                if not self._stop.is_set():
                    self._read([sample])
            return
        at = 0
        for sample in task:
            some = found[at : at + len(sample.ranges)]
            at += len(some)
            self._store(sample, some[0] if len(some) == 1 else b"".join(some))

    def _store(self, sample: WarmSample, data: bytes) -> None:
        if self._tier.put(sample.key, data):
            self._count(stored=1, stored_bytes=len(data))
        elif self._stop.is_set():
            return  # the tier may be closed
        elif not self._tier.is_writable:
            self._end(WarmEnd.UNWRITABLE)
        elif not self._tier.has_room(len(data)):
            self._end(WarmEnd.FULL)
        else:
            self._count(unplaced=1)

    def _failed(self, sample: WarmSample, exc: Exception) -> None:
        name = path_of(self._located.offer, sample.number) or f"sample {sample.number}"
        with self._counting:
            if len(self.unread) < MOST_NOTED:
                self.unread.append(Unread(name, f"{type(exc).__name__}: {exc}"))
            self._in_a_row += 1
            gone = self._in_a_row >= IN_A_ROW
            self._state = replace(self._state, failed=self._state.failed + 1)
        if gone:
            self._end(WarmEnd.GONE)

    def _count(self, **more: int) -> None:
        with self._counting:
            if "stored" in more:
                self._in_a_row = 0
            now = {name: getattr(self._state, name) + by for name, by in more.items()}
            self._state = replace(self._state, **now)


def located(dataset: Any) -> Located:
    """Ask a dataset where its bytes are, and when they change; ConfigError, which says why, if that is unknown."""
    kind, offer = type(dataset).__name__, offered(dataset)
    seam = offer.seam
    if seam is None:
        raise ConfigError(
            f"{kind} does not say where its samples' bytes are: warm a penstock.ImageFolder, TarDataset or AudioFolder, or a StagedDataset with "
            "locate() and seam()"
        )
    contents = getattr(seam.holder, "contents", lambda: None)()
    if not contents:
        raise ConfigError(
            f"{kind} cannot say when its bytes change (contents() is None: a server without strong etags, or a class of your own), so no later run "
            "could trust what is kept"
        )
    return Located(offer, seam, contents, len(dataset))


def warm_tier(located: Located, path: str | os.PathLike[str], max_bytes: int) -> DiskTier:
    """Open the tier where a loader with `Cache(disk=…, path=path, persistent=True)` looks for these bytes; ConfigError if that fails."""
    check_folder(path, max_bytes)
    tier = DiskTier(
        path,
        entries=len(located.seam.holder),
        max_bytes=max_bytes,
        persistent=True,
        contents=located.contents,
        about=located.about,
    )
    if not tier.store.is_open:
        raise ConfigError(f"the cache in {os.fspath(path)} cannot be opened, see above")
    return tier
