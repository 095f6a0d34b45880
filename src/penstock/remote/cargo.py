"""Tasks that a remote worker has, as the ferry knows them: where their rows belong in the arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.wire import frames as wire
from penstock.wire.extents import lane_offsets


@dataclass(slots=True)
class Cargo:
    """One task."""

    task: int
    size: int
    """Samples of its batch."""
    start: int
    count: int
    """Samples of the task: from `start` on."""
    offset: int = -1
    """Of the batch's slab; -1: not known yet."""
    layout: int = -1
    void: bool = False
    """It was cancelled: whatever still comes is thrown away."""
    held: Any = None
    """A value that waits for its place in the arena, and the end of the task to report then."""


def cargo_of(payload: bytes) -> Cargo:
    """Read an ASSIGN."""
    task, _, _, _, _, offset, _, start, size, layout, _, key_kind, _ = wire.ASSIGN.unpack_from(payload)
    count = wire.count_keys(key_kind, payload[wire.ASSIGN.size :])
    return Cargo(task, size, start, count, offset, layout)


def lanes_of(cargo: Cargo, items: tuple[int, ...], arena: memoryview) -> list[memoryview]:
    """Return the task's rows of each lane, in the arena."""
    starts, _ = lane_offsets(items, cargo.size)
    found = []
    for at, item in zip(starts, items, strict=True):
        first = cargo.offset + at + cargo.start * item
        found.append(arena[first : first + cargo.count * item])
    return found
