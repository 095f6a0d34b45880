"""Check a keeper's books against each other, and against the machine that obeys it, after an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, Protocol

import numpy as np

from penstock.cache.keeper import Keeper
from penstock.cache.keeper_state import PARKED, CachedSample
from penstock.sim.memory import Violation


class AuditedMachine(Protocol):
    """What is really there, whatever the keeper believes."""

    keeper: Keeper
    memory: dict[int, int]
    reserved: dict[int, int]
    in_use: dict[int, Counter[Hashable]]
    fetched: set[int]
    spilling: Counter[int]
    on_disk: set[int]

    @property
    def batches(self) -> Mapping[Any, Any]: ...
    @property
    def told(self) -> Mapping[Any, set[int]]: ...


def audit_keeper(machine: AuditedMachine) -> None:
    """Raise Violation if a count is wrong, a sample is forgotten that somebody waits for, or one is remembered that nobody needs."""
    keeper = machine.keeper
    samples = keeper._samples
    _audit_counts(keeper, machine)
    waiting = Counter(entry for cached in samples.values() for entry in cached.waiting)
    owed = {
        (batch, ordinal)
        for batch, asked in machine.batches.items()
        for ordinal in range(len(asked.samples))
        if ordinal not in machine.told[batch]
    }
    if waiting.total() != len(waiting) or set(waiting) != owed:
        raise Violation(f"{set(waiting) ^ owed} is waited for without being owed, or owed and not waited for")
    parked = Counter(keeper._parked)
    if set(parked) != {number for number, cached in samples.items() if cached.asked == PARKED}:
        raise Violation(f"{parked} are parked, and others are asked of nobody")
    for number, cached in samples.items():
        _audit_sample(machine, number, cached)


def _audit_counts(keeper: Keeper, machine: AuditedMachine) -> None:
    samples = keeper._samples
    here = {number: cached.size for number, cached in samples.items() if cached.here}
    if here != machine.memory or keeper.here_bytes != sum(here.values()):
        raise Violation(f"{keeper.here_bytes} bytes are said to be in memory, {sum(here.values())} are")
    coming = {number for number, cached in samples.items() if cached.asked not in (None, PARKED)}
    if coming != machine.fetched or keeper.coming != len(coming):
        raise Violation(f"{keeper.coming} samples are said to be on their way, {len(machine.fetched)} are")
    stays = sum(cached.size for cached in samples.values() if cached.stays)
    if keeper.in_memory != stays or stays > keeper.memory_room:
        raise Violation(f"{keeper.in_memory} kept bytes are said to be in memory, {stays} are")
    kept = {number for number, cached in samples.items() if cached.kept}
    cache = keeper.cache
    everything = np.arange(len(cache.directory.copies), dtype=np.int64)
    if kept != set(np.flatnonzero(cache.directory.has(cache.node, everything)).tolist()):
        raise Violation("what is kept is not what the policy holds")
    held = sum(samples[number].size for number in kept)
    if cache.held_bytes != held or held > cache.room_bytes:
        raise Violation(
            f"{cache.held_bytes} bytes are said to be kept in a room of {cache.room_bytes}, {held} are"
        )


def _audit_sample(machine: AuditedMachine, number: int, cached: CachedSample) -> None:
    keeper = machine.keeper
    if cached.users != machine.in_use[number].total():
        raise Violation(
            f"sample {number} is said to have {cached.users} users, and has {machine.in_use[number]}"
        )
    if cached.users and not cached.here:
        raise Violation(f"sample {number} is in use, and is not there")
    if (cached.waiting or cached.peers) and (cached.here or cached.asked is None):
        raise Violation(f"sample {number} is waited for, and nobody is asked for it")
    if cached.spilling != bool(machine.spilling[number]):
        raise Violation(f"sample {number} is being spilled, or is not, and the keeper thinks otherwise")
    if cached.stays and not (cached.kept and cached.here):
        raise Violation(f"sample {number} stays, and is not there or not kept")
    if cached.kept and not (cached.stays or cached.on_disk or cached.spilling):
        raise Violation(f"sample {number} is kept nowhere")
    if cached.on_disk and not (cached.kept or keeper.lasting):
        raise Violation(f"sample {number} is on disk, and is not kept")
    if cached.is_idle and not (cached.stays if cached.here else cached.kept):
        raise Violation(f"sample {number} is remembered, and nobody needs it")
    if cached.asked == PARKED:
        if cached.peers or not cached.waiting:
            raise Violation(f"sample {number} is parked, and a peer waits for it or nobody does")
        for batch, _ in cached.waiting:
            if keeper._is_oldest(batch):
                raise Violation(f"sample {number} is parked, and the rank of {batch} waits for it")


def audit_at_rest(machine: AuditedMachine) -> None:
    """Raise Violation if something is left when all is over."""
    keeper = machine.keeper
    audit_keeper(machine)
    kept = {number for number, cached in keeper._samples.items() if cached.kept}
    left = {
        "batches": len(keeper._batches),
        "batches of ranks": len(keeper._by_rank),
        "parked samples": len(keeper._parked),
        "samples on their way": keeper.coming,
        "reserved samples": len(machine.reserved),
        "dropped samples on disk": 0 if keeper.lasting else len(machine.on_disk - kept),
        "users": sum(cached.users for cached in keeper._samples.values()),
    }
    if any(left.values()):
        raise Violation(f"at the end there are {left}")
