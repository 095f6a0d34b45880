"""Copies between the tiers, when a caller decides so."""

from __future__ import annotations

from penstock.cache.disk import DiskTier
from penstock.cache.memory import MemoryTier


def spill(memory: MemoryTier, disk: DiskTier, key: bytes) -> bool:
    """Copy bytes from memory to disk; return whether they are there. They stay in memory until evicted."""
    with memory.reading(key) as data:
        return data is not None and disk.put(key, data)


def recall(disk: DiskTier, memory: MemoryTier, key: bytes) -> bool:
    """Copy bytes from disk to memory; return whether they were copied. They stay on disk until removed."""
    data = disk.get(key)
    view = None if data is None else memory.reserve(key, len(data))
    if data is None or view is None:
        return False
    view[:] = data
    return memory.commit(key)
