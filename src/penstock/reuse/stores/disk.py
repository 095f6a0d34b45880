"""The store on disk: partly prepared samples that stay, across epochs, runs and jobs.

    <path>/<namespace>/FORMAT                 what it is, and of how many samples
                       index                  where each sample's record lies (`disk_index`)
                       segments/<number>      small entries, one after another (`disk_segments`)
                       large/<xx>/<number>    large entries, each in a file of its own
                       lock, compact, users   of the kernel's locks only

Rule 1: a namespace stands for a data set, what is done to its samples, the seed and the libraries: its name is a digest of them. Entries of
        one are never read for another.
Rule 2: what is read was checked (`disk_records`). What does not match is a miss, and counted.
Rule 3: a disk that is full, slow or broken costs time. Only a store that was made for something else is an error, when it is opened.
Rule 4: every process has a store of its own: one that was forked begins anew, and one that was sent to another process goes as its
        arguments. What they find and miss they count together.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path

from penstock.errors import ConfigError
from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk_files import Files, close_locked
from penstock.reuse.stores.disk_format import FolderMark, check_format, entered, is_marked
from penstock.reuse.stores.disk_process import COUNTED, OpenStore
from penstock.reuse.stores.disk_scan import Verified, rebuild, verify
from penstock.reuse.stores.disk_upkeep import alone
from penstock.reuse.stores.tally import Tally

log = logging.getLogger(__name__)

NAMESPACE = re.compile(r"[0-9a-f]{8,128}")
TRIES = 5
LEAST_BYTES = 1 << 16
SMALL_BYTES = 16 << 10
"""Entries below it lie in segments."""


@dataclass(slots=True)
class _Mine:
    """What one process has open."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    tried: bool = False
    store: OpenStore | None = None


class DiskStore:
    """A `PartialStore`. May be used by several threads, by processes forked from this one, and by those it is sent to."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        namespace: str,
        samples: int,
        max_bytes: int,
        small_bytes: int = SMALL_BYTES,
        segment_bytes: int = 64 << 20,
        upkeep_s: float = 1.0,
        files: Files | None = None,
        mark: FolderMark | None = None,
        tally: Tally | None = None,
    ) -> None:
        """`upkeep_s`: how long an entry may wait before others see it; 0: there is no background thread, see `flush`, `compact`.
        `mark`: what a new store says of itself. `tally`: of those who count together."""
        if not NAMESPACE.fullmatch(namespace):
            raise ConfigError(
                f"the namespace of a store must be 8 to 128 hexadecimal digits, got {namespace!r}"
            )
        if samples < 1 or max_bytes < LEAST_BYTES:
            raise ConfigError(
                f"a store needs samples >= 1 and max_bytes >= {LEAST_BYTES}, got {samples} and {max_bytes}"
            )
        if small_bytes < 0 or not 4096 <= segment_bytes <= 1 << 31:
            raise ConfigError(f"segment_bytes must lie between 4096 and {1 << 31}, small_bytes must be >= 0")
        path = Path(path).absolute()  # one that it is sent to may be elsewhere
        self._arguments = (
            str(path),
            namespace,
            samples,
            max_bytes,
            small_bytes,
            segment_bytes,
            upkeep_s,
            files,
            mark or FolderMark(samples=samples),
            tally or Tally(COUNTED),
        )
        self.folder = str(path / namespace)
        self._by_process: dict[int, _Mine] = {}
        weakref.finalize(self, _close, self._by_process)
        self._here()

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self._arguments

    def _here(self) -> OpenStore | None:
        """This process's own (Rule 4); None where it has none, and can have none."""
        mine = self._by_process.get(os.getpid())  # guard: own-store
        if mine is None:
            for process, theirs in list(self._by_process.items()):
                self._by_process.pop(process, None)
                if theirs.store is not None:
                    theirs.store.forget()
            mine = self._by_process.setdefault(os.getpid(), _Mine())
        if not mine.tried:
            with mine.lock:
                if not mine.tried:
                    mine.store = self._open()
                    mine.tried = True
        return mine.store

    def _open(self) -> OpenStore | None:
        *_, files, _, tally = self._arguments
        try:
            opened = self._opened(files or Files())
        except OSError as exc:
            if tally.is_first("read_only"):
                log.warning(
                    "the sample store %s cannot be opened (%s): samples are prepared each time. See that its disk has room, and "
                    "that no job that uses it is stopped",
                    self.folder,
                    exc,
                )
            return None
        if parent_process() is not None:  # a worker ends without the interpreter's own finalizers
            Finalize(self, opened.close, kwargs={"sync": False}, exitpriority=10)
        return opened

    def _opened(self, files: Files) -> OpenStore:
        """Again, where someone removes the store while it is opened. OSError where it cannot be."""
        _, namespace, samples, max_bytes, *sizes, upkeep_s, _, mark, tally = self._arguments
        own = (files, self.folder, namespace, samples, max_bytes, (sizes[0], sizes[1]), upkeep_s)
        Path(self.folder).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(TRIES):
            users_fd = entered(files, self.folder)
            try:
                check_format(files, self.folder, mark)
                opened = OpenStore(*own, users_fd, tally)
            except BaseException:
                close_locked(files, users_fd)
                raise
            if self._is_there(opened):  # guard: opened-while-cleared
                return opened
            opened.close(sync=False)
        raise OSError(errno.EAGAIN, "it is removed again and again")

    def _is_there(self, opened: OpenStore) -> bool:
        with contextlib.suppress(OSError):
            return is_marked(opened.files, self.folder, opened.shelf.index.lock_fd)
        return False

    @property
    def is_open(self) -> bool:
        """False: it could not be opened, and keeps nothing."""
        return self._here() is not None

    def get(self, wanted: Wanted) -> Entry | None:
        return self.get_many([wanted])[0]

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        store = self._here()
        return [None] * len(wanted) if store is None else store.get_many(wanted)

    def put(self, wanted: Wanted, entry: Entry) -> bool:
        store = self._here()
        return store is not None and store.put(wanted, entry)

    def remove(self, sample: int) -> None:
        store = self._here()
        if store is not None:
            store.remove(sample)

    def stats(self) -> dict[str, int]:
        """Also what all processes of this store `found`, `missed`, `refused`, and found `damaged`; how often one was
        `locked_out` by a process that did not let go; and whether any of them had to become `read_only`."""
        store = self._here()
        if store is None:
            kept = {"entries": 0, "bytes": 0, "held_bytes": 0, "max_bytes": self._arguments[3]}
            return kept | self._arguments[-1].sums() | {"read_only": 1}
        return store.stats()

    def flush(self) -> None:
        """Let other processes see what this one has put."""
        store = self._here()
        if store is not None:
            store.flush()

    def compact(self) -> bool:
        """Make the space free of entries that were replaced, unless another process does; whether any was."""
        store = self._here()
        return store is not None and store.compact()

    def rebuild(self) -> int:
        """Find all entries again by reading everything; how many there are."""
        store = self._here()
        if store is None:
            return 0
        store.flush()
        with alone(store.shelf) as may:
            return rebuild(store.shelf) if may else 0

    def verify(self, on_progress: Callable[[int, int], None] = lambda _done, _of: None) -> Verified:
        """Read everything, and count what is right; bytes read so far, and of how many, are told after each file."""
        store = self._here()
        if store is None:
            return Verified()
        store.flush()
        return verify(store.shelf, on_progress)

    def close(self) -> None:
        mine = self._by_process.get(os.getpid())
        if mine is not None:
            mine.tried = True
            store, mine.store = mine.store, None
            if store is not None:
                store.close()


def _close(by_process: dict[int, _Mine]) -> None:
    """For a store that nobody has any more."""
    mine = by_process.get(os.getpid())
    if mine is not None and mine.store is not None:
        mine.store.close()
