"""One dataset's dealings with the disk tier, in threads of its own. Whatever a disk does, the source has the bytes: nothing here is an error."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from penstock.cache.disk import DiskTier
from penstock.cache.join_facts import JoinFacts
from penstock.cache.keeper_actions import Ranges
from penstock.cache.keys import ContentKeys, sample_key
from penstock.cache.memory import MemoryTier
from penstock.cache.read_jobs import NoRoom
from penstock.cache.readers import Outcome

log = logging.getLogger("penstock")

THREADS = 4


class DiskUser(Protocol):
    """The dataset, as its disk threads know it."""

    def place(self, sample: Any, nbytes: int) -> memoryview | None: ...

    def was_read(self, sample: Any, outcome: Outcome) -> None: ...

    def was_spilled(self, sample: int, *, ok: bool) -> None: ...


class DiskSide:
    """Opens the tier, if the cache has one. Methods return at once; the user is told by a thread."""

    def __init__(self, facts: JoinFacts, tier: DiskTier | None, memory: MemoryTier, user: DiskUser) -> None:
        """`tier`: as `opened` has it; it is closed with this."""
        self._facts, self._memory, self._user = facts, memory, user
        self._scope = bytes.fromhex(facts.scope)
        self._threads = ThreadPoolExecutor(THREADS, "penstock cache disk")
        self._tier = tier
        self._key = ContentKeys(facts.contents or f"job {facts.scope}", facts.cwd)
        self.lasts = lasts(facts) and tier is not None
        """Whether it has what earlier runs have stored."""

    @property
    def is_there(self) -> bool:
        return self._tier is not None

    @property
    def room_bytes(self) -> int:
        return 0 if self._tier is None else self._facts.cache.disk_bytes

    def fetch(self, sample: int, ranges: Ranges) -> None:
        """Bring a sample to memory."""
        self._threads.submit(self._fetch, sample, ranges)

    def spill(self, sample: int, ranges: Ranges) -> None:
        """Copy a sample from memory."""
        self._threads.submit(self._spill, sample, ranges)

    def remove(self, ranges: Ranges) -> None:
        self._threads.submit(self._remove, ranges)

    # ---- in threads

    def _fetch(self, sample: int, ranges: Ranges) -> None:
        outcome: Outcome = LookupError("it is not on disk")
        try:
            data = self._there().get(self._key(ranges))
            if data is not None and (lengths := lengths_of(ranges, len(data))) is not None:
                view = self._user.place(sample, len(data))
                outcome = NoRoom() if view is None else lengths
                if view is not None:
                    view[:] = data
        except Exception as exc:
            log.debug("cache: sample %d could not be read from disk", sample, exc_info=True)
            outcome = exc.with_traceback(None)
        self._user.was_read(sample, outcome)

    def _spill(self, sample: int, ranges: Ranges) -> None:
        ok = False
        try:
            with self._memory.reading(sample_key(self._scope, sample)) as data:
                ok = data is not None and self._there().put(self._key(ranges), data)
        except Exception:
            log.debug("cache: sample %d could not be put on disk", sample, exc_info=True)
        self._user.was_spilled(sample, ok=ok)

    def _remove(self, ranges: Ranges) -> None:
        try:
            self._there().remove(self._key(ranges))
        except Exception:
            log.debug("cache: a sample could not be removed from disk", exc_info=True)

    def _there(self) -> DiskTier:
        assert self._tier is not None
        return self._tier

    # ---- the rest

    def stats(self) -> dict[str, int] | None:
        return None if self._tier is None else self._tier.stats()

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._tier is not None:
            self._tier.close()


def lasts(facts: JoinFacts) -> bool:
    """Whether bytes stay for later runs."""
    return facts.cache.persistent and facts.contents is not None


def opened(facts: JoinFacts) -> DiskTier | None:
    """Open the tier that a cache asks for; None, with a warning, if there is none to be had. After a power cut this reads all of it."""
    cache = facts.cache
    if cache.disk is None or cache.path is None:
        return None
    try:
        tier = DiskTier(
            cache.path,
            entries=facts.entries or facts.samples,
            max_bytes=cache.disk_bytes,
            persistent=lasts(facts),
            contents=facts.contents or "",
        )
        if not tier.is_writable and not lasts(facts):  # why was logged
            tier.close()
            return None
        return tier
    except Exception as exc:  # noqa: BLE001 - a folder may fail in any way
        log.warning(
            "cache: its folder %s cannot be used (%s: %s): bytes are kept in memory alone",
            cache.path,
            type(exc).__name__,
            exc,
        )
        return None


def lengths_of(ranges: Ranges, total: int) -> tuple[int, ...] | None:
    """Return how many bytes of a stored sample belong to each of its ranges; None if they do not add up."""
    known = [None if end is None else end - start for _, start, end in ranges]
    rest = total - sum(length for length in known if length is not None)
    if known.count(None) > 1 or rest < 0 or (rest and None not in known):
        return None
    return tuple(rest if length is None else length for length in known)
