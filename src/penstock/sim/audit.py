"""Check the core's books against each other after an event. Slow, so only tests that ask for it use it."""

from __future__ import annotations

from penstock.core.ledger import Batch, Slab
from penstock.core.state import State
from penstock.sim.memory import Violation
from penstock.wire.extents import aligned


def audit(state: State) -> None:
    """Raise Violation if a count is wrong, an extent has two owners, or a sample is in two places or none."""
    pins: dict[Slab, int] = {}
    holds: dict[Slab, int] = {}
    for worker in state.workers:
        if worker.load != sum(issued.task.weight for issued in worker.tasks.values()):
            raise Violation(f"worker {worker.id} is said to have {worker.load} samples before it")
        for issued in [*worker.tasks.values(), *worker.holding.values()]:
            for slab in issued.slabs:
                pins[slab] = pins.get(slab, 0) + 1
            for slab in issued.held:
                holds[slab] = holds.get(slab, 0) + 1
    for pool in state.pools:
        owed = sum(issued.nbytes for worker in pool.members for issued in worker.tasks.values())
        if pool.owed_bytes != owed:
            raise Violation(f"pool {pool.number} is said to owe {pool.owed_bytes} bytes, and owes {owed}")
    owned = [slab for batch in state.batches.values() for slab in batch.slabs()]
    slabs = {*owned, *pins, *holds}
    if len(owned) != len(set(owned)):
        raise Violation("a slab has two owners")
    for slab in slabs:
        if (slab.pins, slab.holds) != (pins.get(slab, 0), holds.get(slab, 0)):
            raise Violation(f"{slab} has {pins.get(slab, 0)} pins and {holds.get(slab, 0)} holds")
        if slab.owned != (slab in set(owned)):
            raise Violation(f"{slab} is owned by nobody, or by someone without knowing it")
    _audit_memory(state, slabs)
    for seq in state.due:
        _audit_batch(state, state.batches[seq])


def _audit_memory(state: State, slabs: set[Slab]) -> None:
    used = sum(aligned(slab.nbytes) for slab in slabs)
    if state.memory.used != used:
        raise Violation(f"{state.memory.used} bytes are said to be in use, {used} are")
    holes = sum(end - start for start, end in state.memory.holes)
    if state.memory.used + state.memory.free + holes != state.memory.end - state.config.base:
        raise Violation("used and free bytes and holes do not add up to what there is")
    end = state.config.base
    for slab in sorted(slabs, key=lambda slab: slab.offset):
        if slab.offset < end:
            raise Violation(f"{slab} overlaps another")
        end = slab.offset + aligned(slab.nbytes)
    if end > state.memory.end:
        raise Violation(f"the last slab ends at {end}, behind the arena's end at {state.memory.end}")


def _audit_batch(state: State, batch: Batch) -> None:
    """Check that a sample is in one place (away, to do, in a live task, or done) and a live task is at a worker."""
    seen: set[int] = set()
    ranges = [*batch.todo, *((ordinal, 1) for ordinal in batch.away)]
    found = 0
    for worker in state.workers:
        for issued in worker.tasks.values():
            if issued.task.id in batch.live:
                found += 1
                if issued.cancelled:
                    raise Violation(f"{issued.task} is cancelled and live")
                if issued.task.kind.name != "COLLATE":
                    ranges.append((issued.task.start, issued.task.samples))
            elif issued.task.seq == batch.seq and not issued.cancelled:
                raise Violation(f"{issued.task} is at a worker, but its batch does not know")
    if found != len(batch.live):
        raise Violation(f"batch {batch.seq} waits for tasks {batch.live}, of which {found} are at workers")
    for start, count in ranges:
        samples = set(range(start, start + count))
        if samples & seen:
            raise Violation(f"samples {samples & seen} of batch {batch.seq} are in two places")
        seen |= samples
    if batch.todo != sorted(batch.todo):
        raise Violation(f"batch {batch.seq} has its work out of order: {batch.todo}")
