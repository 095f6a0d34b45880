"""What the training process asks for next: one batch at a time, never beyond the prefetch window.

The user's sampler is iterated here, in the training process, exactly as torch does. Our own order needs no sampler: it is a function of
(seed, epoch), so it can start anywhere and continue into the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from penstock.plan.epoch import EpochPlan

CHUNK = 4096
"""Keys computed at once."""


PLACE_LOST = (
    "the iterator was interrupted while it drew from its sampler or began an epoch, so its place is lost: start a new one with iter(loader); "
    "loader.load_state_dict(loader.state_dict()) before it goes on behind the last batch"
)


class Ask(NamedTuple):
    """One batch: its place in the epoch and its samples."""

    epoch: int
    batch: int
    first: int
    stride: int
    keys: list[Any]
    size: int
    state: Any = None
    """A stateful sampler's state after this batch; for an iterable dataset (worker, state)."""
    dealt: list[int] | None = None
    """Positions of the samples, if they are dealt; `first` and `stride` are those without dealing."""

    def position(self, ordinal: int) -> int:
        if self.dealt is not None and ordinal < len(self.dealt):
            return self.dealt[ordinal]
        return self.first + ordinal * self.stride


def planned(plan: EpochPlan, *, base: int = 0, skip: frozenset[int] = frozenset()) -> Iterator[Ask]:
    """Yield the batches of our own order except `skip`, numbered from `base`."""
    if plan.deal is not None:
        for batch in (batch for batch in range(plan.batches) if batch not in skip):
            dealt = plan.positions(batch)
            keys, first = plan.keys(dealt).tolist(), plan.first_of(batch)
            yield Ask(plan.epoch, base + batch, first, plan.world, keys, len(keys), dealt=dealt.tolist())
        return
    per_chunk = max(1, CHUNK // plan.batch_size)
    for start in range(0, plan.batches, per_chunk):
        group = range(start, min(start + per_chunk, plan.batches))
        positions = np.concatenate([plan.positions(batch) for batch in group])
        keys = plan.keys(positions).tolist()
        at = 0
        for batch in group:
            size = plan.size_of(batch)
            if batch not in skip:
                yield Ask(
                    plan.epoch, base + batch, int(positions[at]), plan.world, keys[at : at + size], size
                )
            at += size


def sampled(
    batches: Iterator[Any],
    *,
    epoch: int,
    auto_collation: bool,
    skip: int = 0,
    beyond: frozenset[int] = frozenset(),
    snapshot: Callable[[], Any] | None = None,
) -> Iterator[Ask]:
    """Yield a sampler's batches; the first `skip`, and those in `beyond`, are drawn and discarded."""
    position = 0
    for index, batch in enumerate(batches):
        keys = list(batch) if auto_collation else [batch]
        if index >= skip and index - skip not in beyond:
            state = None if snapshot is None else snapshot()
            yield Ask(epoch, index, position, 1, keys, len(keys), state)
        position += len(keys)


def streamed(size: int, *, epoch: int, start: int = 0) -> Iterator[Ask]:
    """Yield endless batches of an iterable dataset, numbered from `start`: its workers report the end."""
    for index in count(start):
        yield Ask(epoch, index, index * size, 1, [], size)
