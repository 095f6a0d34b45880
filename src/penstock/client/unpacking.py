"""Turn the agent's BATCH frame into a batch: views of the arena, leased to the caller."""

from __future__ import annotations

from typing import Any

from penstock.client.leases import Leases, without
from penstock.wire import frames as wire
from penstock.wire.arena import Arena
from penstock.wire.layout import Layout, read_batch
from penstock.wire.pickles import Ref, rebuild, unpack


def unpacked(arena: Arena, leases: Leases, layouts: dict[int, Layout], payload: bytes, size: int) -> Any:
    """Return the batch of `size` samples that a BATCH frame names."""
    seq, offset, in_use, layout, count = wire.BATCH.unpack_from(payload)
    tenancy = leases.open(seq, in_use)

    def lease(at: int, nbytes: int) -> memoryview:
        return leases.lease(tenancy, at, nbytes)

    def load(ref: Ref) -> Any:
        return rebuild(ref, lease(ref.offset, ref.nbytes))

    try:
        if layout < 0:
            return unpack(arena.view, offset, load)
        batch = read_batch(layouts[layout], size, offset, lease)
        if count:
            tail = payload[wire.BATCH.size :]
            gone = {int.from_bytes(tail[4 * i : 4 * i + 4], "little") for i in range(count)}
            batch = without(batch, [i for i in range(size) if i not in gone])
        return batch
    finally:
        leases.seal(tenancy)
