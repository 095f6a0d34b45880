"""What a dataset in the cache needs before its first sample: its mean size, memory, reading processes, a disk. Opened in a thread, since it takes a while."""

from __future__ import annotations

import logging
import math
import os
from typing import NamedTuple

from penstock.cache.disk import DiskTier
from penstock.cache.disk_side import opened
from penstock.cache.join_facts import JoinFacts
from penstock.cache.memory import MemoryTier
from penstock.cache.probing import mean_bytes
from penstock.cache.reading_pool import ReadingPool, processes_for
from penstock.measure.environment import usable_cores
from penstock.measure.host import cpu_quota

log = logging.getLogger("penstock")


class DatasetParts(NamedTuple):
    sample_bytes: int
    """0: not known."""
    memory: MemoryTier
    pool: ReadingPool | None
    """None: threads of this process read."""
    disk: DiskTier | None

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        if self.disk is not None:
            self.disk.close()
        self.memory.close()


def opened_parts(facts: JoinFacts) -> DatasetParts:
    """Measure some samples, start what reads, and open the disk: after a power cut that reads all of it. OSError or PenstockError if there is no memory."""
    pools: list[ReadingPool] = []
    checks = bool(facts.listen)  # peers ask for them
    count = processes_for(min(usable_cores(), cpu_quota() or math.inf), os.environ)

    def start(fd: int, nbytes: int) -> None:
        said = {"settings": facts.settings, "cwd": facts.cwd, "stamps": facts.stamps, "checks": checks}
        pools.append(ReadingPool(count, fd, nbytes, said))

    memory = MemoryTier(facts.cache.memory_bytes, checks=checks, writers=start if count else None)
    try:
        sample_bytes = mean_bytes(facts)
    except Exception:
        log.debug("cache: samples could not be measured", exc_info=True)
        sample_bytes = 0
    return DatasetParts(sample_bytes, memory, pools[0] if pools else None, opened(facts))
