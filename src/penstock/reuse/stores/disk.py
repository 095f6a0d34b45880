"""The disk store: partly prepared samples that persist across epochs, runs and jobs.

    <path>/<namespace>/FORMAT                 what it holds, and for how many samples
                       index                  where each sample's record lies (`disk_index`)
                       segments/<number>      small entries, one after another (`disk_segments`)
                       large/<xx>/<number>    large entries, one file each
                       lock, compact, users   for kernel locks only

Rule 1: a namespace is a digest of the data set, the ops, the seed and the libraries. Entries are never read across namespaces.
Rule 2: every read is checked (`disk_records`). A mismatch is a miss, and counted.
Rule 3: a full, slow or broken disk costs time only. A store made for something else is an error, on opening.
Rule 4: every process opens its own store: a forked one reopens, and pickling sends the arguments. They share their counters.
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
"""Smaller entries go to segments."""


@dataclass(slots=True)
class _Mine:
    """What one process has open."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    tried: bool = False
    store: OpenStore | None = None


class DiskStore:
    """The entries on disk; `DiskAhead` makes a `PartialStore` of it. Threads, forked processes and processes it is pickled to may share it."""

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
        """`upkeep_s`: longest delay until others see an entry; 0: no background thread, call `flush` and `compact`. `mark`: written into a new
        store. `tally`: the shared counters."""
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
        path = Path(path).absolute()  # a process it is pickled to may have another working directory
        sizes = (samples, max_bytes, small_bytes, segment_bytes)
        shared = (files, mark or FolderMark(samples=samples), tally or Tally(COUNTED))
        self._arguments = (str(path), namespace, *sizes, upkeep_s, *shared)
        self.folder = str(path / namespace)
        self._by_process: dict[int, _Mine] = {}
        weakref.finalize(self, _close, self._by_process)
        self._here()

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), self._arguments

    def _here(self) -> OpenStore | None:
        """Return this process's open store (Rule 4); None if it cannot be opened."""
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
        if parent_process() is not None:  # a worker exits without the interpreter's finalizers
            Finalize(self, opened.close, kwargs={"sync": False}, exitpriority=10)
        return opened

    def _opened(self, files: Files) -> OpenStore:
        """Open the store; retry if it is removed meanwhile. OSError if that fails."""
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
        """False if it could not be opened, and so stores nothing."""
        return self._here() is not None

    @property
    def is_writable(self) -> bool:
        """False if this process stores nothing any more: the disk is full or fails, or the store was never opened."""
        store = self._here()
        return store is not None and not store.read_only

    def has_room(self, nbytes: int) -> bool:
        """Return whether the byte budget leaves room for an entry of about this size."""
        store = self._here()
        return store is not None and store.shelf.index.held_bytes + nbytes <= store.shelf.put_bytes

    def get(self, wanted: Wanted) -> Entry | None:
        return self.get_many([wanted])[0]

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        store = self._here()
        return [None] * len(wanted) if store is None else store.get_many(wanted)

    def renewals(self, samples: Sequence[int]) -> list[int | None]:
        """Return the renewal epoch of each sample's entry, unread; None without one."""
        store = self._here()
        return [None] * len(samples) if store is None else store.renewals(samples)

    def put(self, wanted: Wanted, entry: Entry) -> bool:
        store = self._here()
        return store is not None and store.put(wanted, entry)

    def remove(self, sample: int) -> None:
        store = self._here()
        if store is not None:
            store.remove(sample)

    def stats(self) -> dict[str, int]:
        """Return counters, including those of all processes: `found`, `missed`, `refused`, `damaged`; `locked_out`: how often another process did
        not release a lock; `read_only`: whether any process stopped writing."""
        store = self._here()
        if store is None:
            kept = {"entries": 0, "bytes": 0, "held_bytes": 0, "max_bytes": self._arguments[3]}
            return kept | self._arguments[-1].sums() | {"read_only": 1}
        return store.stats()

    def flush(self) -> None:
        """Make this process's puts visible to other processes."""
        store = self._here()
        if store is not None:
            store.flush()

    def compact(self) -> bool:
        """Free the space of replaced entries, unless another process is doing so; return whether any was freed."""
        store = self._here()
        return store is not None and store.compact()

    def rebuild(self) -> int:
        """Rebuild the index by reading everything; return the number of entries."""
        store = self._here()
        if store is None:
            return 0
        store.flush()
        with alone(store.shelf) as may:
            return rebuild(store.shelf) if may else 0

    def verify(
        self, on_progress: Callable[[int, int], None] = lambda _done, _of: None, *, forget: bool = False
    ) -> Verified:
        """Read and check everything. `on_progress` gets the bytes read and the total after each file. `forget`: lost entries lose their rows."""
        store = self._here()
        if store is None:
            return Verified()
        store.flush()
        return verify(store.shelf, on_progress, forget=forget)

    def close(self) -> None:
        mine = self._by_process.get(os.getpid())
        if mine is not None:
            mine.tried = True
            store, mine.store = mine.store, None
            if store is not None:
                store.close()


def _close(by_process: dict[int, _Mine]) -> None:
    """Close a store that was garbage collected."""
    mine = by_process.get(os.getpid())
    if mine is not None and mine.store is not None:
        mine.store.close()
