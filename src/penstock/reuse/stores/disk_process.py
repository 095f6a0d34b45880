"""The disk store as one process has it open: its write buffer, its reader and its background thread.

Rule 1: an entry is readable here once `put` returns True, and by others once written out: when `BUFFER_BYTES` or `BUFFER_ENTRIES` wait, or one
        has waited for `upkeep_s`.
Rule 2: a full or failing disk makes the store read-only for this process: buffered entries are dropped, reads go on. The first of all processes
        that share the `Tally` logs one warning. A lock that another process does not release is different: buffered entries stay, puts are
        refused for `LOCKED_OUT_S`, then writing is retried.
Rule 3: lock order: writing, upkeep, index.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk_files import (
    FULL,
    Files,
    LockHeldError,
    close_locked,
    try_lock,
    unlock,
    wait_lock,
)
from penstock.reuse.stores.disk_index import LARGE, NO_ROW, DiskIndex, IndexRow
from penstock.reuse.stores.disk_large import let_go, new_file, remove_files, replaced_file
from penstock.reuse.stores.disk_records import decode, digest_of, encode
from penstock.reuse.stores.disk_scan import rebuild
from penstock.reuse.stores.disk_segments import SegmentReader, SegmentWriter, StoreParts, new_number
from penstock.reuse.stores.disk_upkeep import TEMPORARY, Upkeep, alone, recount
from penstock.reuse.stores.tally import Tally

log = logging.getLogger(__name__)

BUFFER_BYTES = 1 << 20
BUFFER_ENTRIES = 256
COUNTED = ("found", "missed", "refused", "damaged", "read_only", "locked_out")
"""Counters shared by all processes. The last two count how often one stopped writing for good, or for a while; the first to do so warns."""
LOCKED_OUT_S = 30.0
"""No writes for this long after a lock timeout: each wait costs seconds of a batch."""
LEAST_LARGE = 64
"""Search for orphaned large files after this many replaced large entries, or a sixteenth of all samples if that is more."""
RETRY_S = 1.0
"""Least time between two searches of a full store for dead space, unless much was replaced."""


class Waiting(NamedTuple):
    """An entry whose row is not written yet."""

    row: IndexRow
    record: bytes


class OpenStore:
    """One process's open store. Thread-safe; no method raises for disk failures."""

    def __init__(
        self,
        files: Files,
        folder: str,
        namespace: str,
        samples: int,
        max_bytes: int,
        sizes: tuple[int, int],
        upkeep_s: float,
        users_fd: int,
        tally: Tally,
    ) -> None:
        """`sizes`: limits of a small entry and of a segment. `users_fd`: locked by `entered`. OSError if the index has no space."""
        self.files = files
        segment_bytes = max(4096, min(sizes[1], max_bytes // 16))
        self.small_bytes = min(sizes[0], segment_bytes // 2)
        index = DiskIndex(files, folder, samples)
        self.shelf = StoreParts(files, folder, digest_of(namespace), index, max_bytes, segment_bytes)
        self.reader = SegmentReader(self.shelf)
        self.upkeep = Upkeep(self.shelf)
        self.read_only = self.closed = False
        self._tally, self._users_fd = tally, users_fd
        self._write = threading.Lock()
        self._writer: SegmentWriter | None = None
        self._full: list[SegmentWriter] = []
        """Full segments, to be synced and closed."""
        self._waiting: dict[int, Waiting] = {}
        self._replaced_bytes = self._tended_bytes = self._reclaimed_bytes = 0
        """Bytes replaced in segments: in total, at the thread's last upkeep, and at the last reclaim for a full store."""
        self._replaced_large = self._tended_large = 0
        """Replaced large files are removed at once. After enough replacements, upkeep searches for files that killed processes left."""
        self._folders: set[str] = set()  # existing folders of large files: asking each time is slow
        self._retry_at_s = self._locked_out_until_s = 0.0
        self._upkeeping = threading.Lock()
        self._upkeep_s, self._stop = upkeep_s, threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._begin()
        except OSError:
            index.close()
            raise

    def _begin(self) -> None:
        index = self.shelf.index
        if self.files.make_folder(self.shelf.segments) | self.files.make_folder(f"{self.shelf.folder}/large"):
            self.files.sync_folder(self.shelf.folder)  # or a power cut could lose both
        with index.locked():
            is_alone = try_lock(self._users_fd)
            index.begin(alone=is_alone)
            if is_alone:
                recount(self.shelf)
            wait_lock(self._users_fd, shared=True)  # a failed lock conversion loses the lock
        if index.is_stale:
            with alone(self.shelf) as may:
                if may:
                    rebuild(self.shelf)

    # ---- reading

    def get_many(self, wanted: Sequence[Wanted]) -> list[Entry | None]:
        found: list[Entry | None] = [None] * len(wanted)
        left: list[int] = []
        for at, want in enumerate(wanted):
            waiting = self._waiting.get(want.sample)  # before its row: it leaves after that is written
            if waiting is None and 0 <= want.sample < self.shelf.index.samples:
                left.append(at)
            elif waiting is not None and waiting.row.renewed == want.renewed:
                found[at] = decode(waiting.record, self.shelf.digest, want)
        damaged = self.reader.look_up(wanted, left, found)
        missed = found.count(None)
        self._tally.add(len(wanted) - missed, missed, 0, damaged)
        return found

    def renewals(self, samples: Sequence[int]) -> list[int | None]:
        """Return the renewal epoch of each sample's entry, unread; None without one."""
        waiting = [
            self._waiting.get(sample) for sample in samples
        ]  # before the rows: they leave after those are written
        rows = [
            row if entry is None else entry.row
            for row, entry in zip(self.shelf.index.rows(samples), waiting, strict=True)
        ]
        return [row.renewed if row.segment else None for row in rows]

    # ---- writing

    def put(self, wanted: Wanted, entry: Entry) -> bool:
        kept = False
        pieces = None
        if 0 <= wanted.sample < self.shelf.index.samples:
            pieces = encode(self.shelf.digest, wanted, entry)
        if pieces is not None:
            with self._write:
                if not self.read_only and not self.closed and not self._is_locked_out:
                    try:
                        kept = self._put(wanted, pieces)
                    except OSError as exc:
                        self._failed(exc)
        if not kept:
            self._tally.add(0, 0, 1)
        return kept

    def _put(self, wanted: Wanted, pieces: list[bytes | memoryview]) -> bool:
        length = sum(map(len, pieces))
        if length >= self.small_bytes:
            return self._put_large(wanted, pieces, length)
        record = b"".join(pieces)
        writer = self._writer_with_room(length)
        if writer is None:
            return False
        self._waiting[wanted.sample] = Waiting(writer.append(record, wanted.renewed), record)
        if writer.waiting_bytes >= BUFFER_BYTES or len(self._waiting) >= BUFFER_ENTRIES:
            self._write_out()
        self._start_thread()
        return True

    def _writer_with_room(self, length: int) -> SegmentWriter | None:
        if self._writer is not None and not self._writer.fits(length):
            self._write_out()
            self._full.append(self._writer)
            self._writer = None
            if not self._upkeep_s:
                self._settle()
        if self._writer is None:
            self._writer = SegmentWriter(self.shelf, self.shelf.put_bytes)
        if not self._writer.take_room(length):
            self._reclaim()
            if not self._writer.take_room(length):
                return None
        return self._writer

    def _put_large(self, wanted: Wanted, pieces: list[bytes | memoryview], length: int) -> bool:
        index, number = self.shelf.index, new_number() | LARGE
        path = self.shelf.path_of(number)
        temporary = path + TEMPORARY
        if (folder := path.rpartition("/")[0]) not in self._folders:
            self.files.make_folder(folder)
            self._folders.add(folder)
        fd = replaced_file(self.shelf, wanted.sample, length, temporary)
        if fd is not None:
            self._replaced_large += 1
        elif self._has_room(length):
            fd = new_file(self.shelf, length, temporary)
        if fd is None:
            return False
        kept = False
        try:
            self.files.write(fd, pieces, 0)
            with index.locked():
                if index.held_bytes + length <= self.shelf.put_bytes:
                    self.files.rename(temporary, path)
                    # guard: large-unlocked
                    unlock(fd)  # before anybody can find it
                    self._note({wanted.sample: IndexRow(number, wanted.renewed, length)}, length)
                    kept = True
        finally:
            let_go(self.shelf, fd, "" if kept else temporary)
        if kept:
            self._waiting.pop(wanted.sample, None)
            self._start_thread()
        return kept

    def _has_room(self, length: int) -> bool:
        if self.shelf.index.held_bytes + length > self.shelf.put_bytes:
            self._reclaim()
        return self.shelf.index.held_bytes + length <= self.shelf.put_bytes

    def _note(self, rows: Mapping[int, IndexRow], more_bytes: int = 0) -> None:
        """Write rows, remove the large files they replace, and count `more_bytes`. Under the index's lock."""
        old = self.shelf.index.rows([*rows])
        self.shelf.index.write(rows)
        large = [row for row in old if row.segment >= LARGE]
        large_bytes = sum(row.length for row in large)
        self._replaced_bytes += sum(row.length for row in old) - large_bytes
        self._replaced_large += len(large)
        remove_files(self.shelf, [row.segment for row in large], large_bytes, more_bytes)

    def _write_out(self) -> None:
        """Write out buffered entries and their rows, so that all processes see them."""
        if self._writer is None or not self._waiting:
            return
        self._writer.write_out()
        with self.shelf.index.locked():
            self._note({sample: waiting.row for sample, waiting in self._waiting.items()})
        self._waiting.clear()

    def remove(self, sample: int) -> None:
        if not 0 <= sample < self.shelf.index.samples:
            return
        with self._write:
            self._waiting.pop(sample, None)
            try:
                if not self.closed:
                    with self.shelf.index.locked():
                        self._note({sample: NO_ROW})
            except OSError as exc:
                self._failed(exc)

    def flush(self) -> None:
        with self._write:
            try:
                if not self._is_locked_out:
                    self._write_out()
            except OSError as exc:
                self._failed(exc)

    def _settle(self, *, sync: bool = True) -> None:
        """Sync and close full segments."""
        while self._full:
            self._full.pop().close(sync=sync)

    @property
    def _is_locked_out(self) -> bool:
        return time.monotonic() < self._locked_out_until_s

    def _failed(self, exc: OSError) -> None:
        """Stop writing after a failure, for now or for good (Rule 2)."""
        if not isinstance(exc, LockHeldError):
            self._give_up(exc)
            return
        self._locked_out_until_s = time.monotonic() + LOCKED_OUT_S
        if self._tally.is_first("locked_out"):
            log.warning(
                "the sample store %s: %s. Nothing is kept until it does; look for a job that is stopped, and end it or let it go on",
                self.shelf.folder,
                exc.strerror,
            )

    def _give_up(self, exc: OSError) -> None:
        """Stop writing for good (Rule 2)."""
        if not self.read_only and self._tally.is_first("read_only"):
            why = "is full" if exc.errno in FULL else "fails"
            log.warning(
                "the disk of the sample store %s %s (%s): samples are no longer kept, those that are there are still read. Make room on it, "
                "or give another path",
                self.shelf.folder,
                why,
                exc,
            )
        self.read_only = True  # guard: full-disk
        self._drop()

    def _drop(self) -> None:
        """Drop buffered entries and close segments as they are."""
        self._waiting.clear()
        writers, self._full, self._writer = [*self._full, self._writer], [], None
        for writer in writers:
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.close(sync=False)  # a retried sync does not report the earlier failure

    # ---- upkeep

    def _reclaim(self) -> None:
        """Search a full store for dead space; not again and again if there was none."""
        much = self._replaced_bytes - self._reclaimed_bytes >= self.shelf.segment_bytes // 4
        if not much and time.monotonic() < self._retry_at_s:
            return
        self._write_out()
        self._settle()
        self._reclaimed_bytes = self._replaced_bytes
        with self._upkeeping:  # if our own thread is at it, its result is worth the wait
            freed = self.upkeep.run(full=True)
        self._retry_at_s = 0.0 if freed else time.monotonic() + RETRY_S

    def compact(self) -> bool:
        """Free dead space; return whether any was freed."""
        self._tended_bytes, self._tended_large = self._replaced_bytes, self._replaced_large
        try:
            with self._upkeeping:
                return not self.read_only and self.upkeep.run()
        except OSError as exc:
            with self._write:
                self._failed(exc)
            return False

    def _start_thread(self) -> None:
        if self._thread is None and self._upkeep_s:
            self._thread = threading.Thread(target=self._tend, name="penstock-disk-store", daemon=True)
            self._thread.start()

    def _tend(self) -> None:
        while not self._stop.wait(self._upkeep_s):  # guard: background-flush
            self.flush()
            self._settle_aside()
            much = self._replaced_bytes - self._tended_bytes >= self.shelf.segment_bytes // 4
            least = max(LEAST_LARGE, self.shelf.index.samples // 16)
            many = self._replaced_large - self._tended_large >= least
            if (much or many) and not self._is_locked_out:
                self.compact()

    def _settle_aside(self) -> None:
        """Settle while others put. Whoever needs room waits: these segments can only be freed afterwards (`_reclaim`)."""
        with self._write:
            self._upkeeping.acquire()
            full, self._full = self._full, []
        failed: OSError | None = None
        try:
            for writer in full:
                try:
                    writer.close(sync=True)
                except OSError as exc:
                    failed = exc
        finally:
            self._upkeeping.release()
        if failed is not None:
            with self._write:
                self._give_up(failed)

    # ---- the end

    def stats(self) -> dict[str, int]:
        rows = self.shelf.index.all()
        waiting = {sample: len(kept.record) for sample, kept in self._waiting.copy().items()}
        for sample in waiting:
            rows[sample] = 0
        held_bytes, counts = self.shelf.index.held_bytes + self.shelf.index.nbytes, self._tally.sums()
        return {
            "entries": int(np.count_nonzero(rows["segment"])) + len(waiting),
            "bytes": int(rows["length"].sum()) + sum(waiting.values()),
            "held_bytes": held_bytes,
            "max_bytes": self.shelf.max_bytes,
            **counts,
            "read_only": int(counts["read_only"] > 0),
        }

    def close(self, *, sync: bool = True) -> None:
        """`sync`: make entries survive a power cut; may take a while."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._write:
            if self.closed:
                return
            self.closed = True
            try:
                self._write_out()
                if self._writer is not None:
                    self._full.append(self._writer)
                    self._writer = None
                self._settle(sync=sync)
            except OSError as exc:
                self._failed(exc)
                self._drop()
            self.reader.close()
            with contextlib.suppress(OSError), self.shelf.index.locked():
                if sync and try_lock(self._users_fd):
                    self.shelf.index.end()
            close_locked(self.files, self._users_fd)
            self.shelf.index.close()

    def forget(self) -> None:
        """In a forked child: close the parent's descriptors without affecting its locks."""
        descriptors = [writer.fd for writer in [*self._full, self._writer] if writer is not None]
        descriptors += [*self.reader.descriptors(), *self.shelf.index.descriptors(), self._users_fd]
        for fd in descriptors if not self.closed else ():
            with contextlib.suppress(OSError):
                os.close(fd)
