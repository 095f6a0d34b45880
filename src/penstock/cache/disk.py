"""The disk tier: cached bytes in a disk store, as reused samples have it (`reuse.stores.disk`), which is crash-safe, checksummed and bounded.

Rule 1: a key has one of a few slots of the store, which its first half names. The slot is the store's sample, the other half its renewal epoch; the
        record also holds the whole key. So the store's index is the index of this tier, and needs no memory here.
Rule 2: bytes are returned only if the record's checksum and whole key are right. Others are removed, and a warning is given once.
Rule 3: the tier decides nothing: a key without a free slot or without room is refused, and its caller removes others.
Rule 4: a persistent tier stays for later runs with the same contents. Keys of other contents would never be asked for again, so a changed data set
        gets a tier of its own, and the old one can be seen and removed as a whole (`penstock cache`). Another tier belongs to one run, and is removed
        with it; the next run removes what a killed one left.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.errors import ConfigError
from penstock.reuse.stores.contract import Entry, Wanted
from penstock.reuse.stores.disk import LEAST_BYTES, DiskStore
from penstock.reuse.stores.disk_files import Files
from penstock.reuse.stores.disk_format import FolderMark
from penstock.reuse.stores.disk_index import ROW
from penstock.reuse.stores.disk_listing import clear_temporary, removed

log = logging.getLogger("penstock")

FORMAT = 1
"""Raise it when the meaning of slots changes."""
SLOTS_PER_ENTRY = 2
PROBES = 16
"""Slots that a key may have. Half full, which is the most that is expected, one key in a million finds none of them free."""
LIKELY = 2
"""Slots that are looked at first: most keys have one of these."""
SMALL_BYTES = 1 << 20
"""Smaller entries share segments: files of photos are as many as the photos."""
SEGMENT_BYTES = 256 << 20
RECORD_BYTES = 160
"""What a record has beside its entry, at most."""
LEAVING_S = 0.5
"""How long the last user waits for others that are about to end."""


class DiskTier:
    """Cached bytes by key. Threads and processes may share it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        entries: int,
        max_bytes: int,
        persistent: bool = False,
        contents: str = "",
        about: str = "bytes of files",
        upkeep_s: float = 1.0,
        files: Files | None = None,
    ) -> None:
        """`entries`: how many are expected. A persistent tier is found again by about the same number and the same `contents`, which is what its keys
        are made of (`keys.content_key`). `about`: for people. `upkeep_s`, `files`: as in `DiskStore`."""
        if persistent and not contents:
            raise ValueError("a persistent tier needs contents, which say when its bytes are others")
        self._slots = 1 << max(4, (SLOTS_PER_ENTRY * max(1, entries) - 1).bit_length())
        said = repr((FORMAT, "bytes", self._slots, os.geteuid(), contents)).encode("utf-8", "surrogateescape")
        name = hashlib.blake2b(said, digest_size=16).hexdigest() if persistent else secrets.token_hex(16)
        clear_temporary(path)  # guard: killed-caches
        self._temporary = not persistent
        self.store = DiskStore(
            path,
            name,
            self._slots,
            max_bytes,
            SMALL_BYTES,
            SEGMENT_BYTES,
            upkeep_s,
            files,
            FolderMark(samples=self._slots, temporary=self._temporary, about=about, kind="bytes"),
        )
        self._warned = False
        self._putting = threading.Lock()

    def get(self, key: bytes) -> memoryview | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """Return the bytes of each key, read in disk order; None for those that are not there. The caller owns them."""
        slots = [self._slot_of(key) for key in keys]
        there = [(at, slot) for at, slot in enumerate(slots) if slot is not None]
        entries = self.store.get_many([Wanted(slot, tag_of(keys[at])) for at, slot in there])
        found: list[memoryview | None] = [None] * len(keys)
        for (at, slot), entry in zip(there, entries, strict=True):
            if entry is not None and entry.extra == keys[at]:  # guard: whole-key
                found[at] = entry.values.data
            elif self._slot_of(keys[at]) == slot:  # it was not replaced meanwhile
                self._drop(slot)
        return found

    def put(self, key: bytes, data: bytes | memoryview) -> bool:
        """Store bytes; return whether they are there. They can be changed afterwards."""
        slots, tag = slots_of(key, self._slots), tag_of(key)
        with self._putting:  # guard: one-slot-one-key
            held = self.store.renewals(slots)
            if tag in held:
                return True
            free = [slot for slot, other in zip(slots, held, strict=True) if other is None]
            return bool(free) and self.store.put(
                Wanted(free[0], tag), Entry(np.frombuffer(data, np.uint8), key)
            )

    @property
    def is_writable(self) -> bool:
        """False if nothing more is stored: the disk is full or fails, which was logged."""
        return self.store.is_writable

    def has_room(self, nbytes: int) -> bool:
        """Return whether the budget leaves room for so many bytes more. A refused key that has room has no free slot."""
        return self.store.has_room(nbytes)

    def remove(self, key: bytes) -> bool:
        """Forget a key; return whether it was there."""
        slot = self._slot_of(key)
        if slot is not None:
            self.store.remove(slot)
        return slot is not None

    def __contains__(self, key: bytes) -> bool:
        return self._slot_of(key) is not None

    def _slot_of(self, key: bytes) -> int | None:
        slots, tag = slots_of(key, self._slots), tag_of(key)
        for some in (slots[:LIKELY], slots[LIKELY:]):
            held = self.store.renewals(some)
            if tag in held:
                return some[held.index(tag)]
        return None

    def _drop(self, slot: int) -> None:
        """Remove a damaged entry (Rule 2)."""
        self.store.remove(slot)  # guard: damaged-dropped
        if not self._warned:
            self._warned = True
            log.warning(
                "cache: bytes in %s are damaged or cannot be read: they are dropped and read from their source again. If that goes on, check the disk; "
                "`penstock cache verify` reads all of it",
                self.store.folder,
            )

    def stats(self) -> dict[str, int]:
        """As `DiskStore.stats`."""
        return self.store.stats()

    def flush(self) -> None:
        """Make puts visible to other processes."""
        self.store.flush()

    def close(self) -> None:
        """Close the tier, and remove it unless it is persistent."""
        self.store.close()
        if self._temporary:  # guard: run-cache-removed
            removed(self.store.folder, LEAVING_S)


def check_folder(path: str | os.PathLike[str], max_bytes: int) -> None:
    """Raise ConfigError if no tier can be made there: now, not once training has begun."""
    folder = Path(path)
    if max_bytes < LEAST_BYTES:
        raise ConfigError(f"a cache on disk needs at least {LEAST_BYTES:,} bytes, got {max_bytes:,}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder: give one for the cached bytes, or a name that is free")
    trial = folder / f".penstock-{secrets.token_hex(8)}.tmp"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        trial.mkdir()
        trial.rmdir()
    except OSError as exc:
        raise ConfigError(
            f"no bytes can be cached in {folder} ({exc.strerror or exc}): give a folder that this user may write to"
        ) from exc


def needed_bytes(nbytes: int, entries: int) -> int:
    """Return about how large a budget holds so many entries of so many bytes together."""
    rows = ROW.itemsize << max(4, (SLOTS_PER_ENTRY * max(1, entries) - 1).bit_length())
    held = (nbytes + entries * RECORD_BYTES) * 101 // 100 + rows
    return max(
        LEAST_BYTES, min(held * 16 // 15, held + SEGMENT_BYTES) + SMALL_BYTES
    )  # the last segment's room is for compaction


def slots_of(key: bytes, slots: int) -> list[int]:
    """Return the slots that a key may have: of neighbours, full stretches would grow. `slots` is a power of two."""
    first, step = int.from_bytes(key[:4], "little"), int.from_bytes(key[4:8], "little") | 1
    return [(first + probe * step) % slots for probe in range(PROBES)]


def tag_of(key: bytes) -> int:
    """Return what tells the keys of one slot apart."""
    return int.from_bytes(key[8:], "little") >> 1  # renewal epochs are signed
