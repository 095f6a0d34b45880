"""What an agent reports to the manager that moves cores between ranks. Pure: derived from the core's state, which it only reads.

Cheap, since it is called often: it looks at undelivered batches and at workers, never at samples.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from penstock.core.events import Kind
from penstock.core.ledger import Batch
from penstock.core.outlook import left_of
from penstock.core.state import State
from penstock.policy.lending import RankView
from penstock.policy.reporting import Glance


class Next(NamedTuple):
    """The batch that training takes next."""

    epoch: int
    batch: int
    """Its number in the epoch."""
    seq: int
    """Its number in the core; one more than the newest batch asked for if training waits for none."""
    at_lane: float = 0.0
    """What a GPU lane has still to make of what workers left to it, in batches."""


def standing(state: State, taken: Next, *, home: int, crew: str = "") -> RankView:
    """Return what the manager must know of a rank with `home` workers of its own."""
    local, due = state.local, state.due
    view = RankView(home, min(local.allowed, local.size), crew, taken.epoch, taken.batch)
    if state.fatal is not None or state.kind is Kind.STREAM:
        return view
    ahead, waiting, waiting_due = state.asked + 1 - taken.seq - len(due) - taken.at_lane, 0, 0
    first = counted = -1
    for seq in due:
        batch = state.batches[seq]
        left = left_of(batch)
        if first < 0 and (left or batch.live or batch.away):
            first, waiting_due = seq, tasks_of(batch, left, state.task_size)
        if not waiting:  # what is behind samples that nobody has yet is of no use to training
            counted = seq
            ahead += 1.0 - (left + len(batch.away) + batch.awaits_collate) / (batch.size or 1)
        if not lacks_memory(state, batch):
            waiting += left if divides(batch) and left else bool(batch.todo) or batch.awaits_collate
    busy = soon = 0
    each_s = local.pace_s or 0.0
    for worker in local.members:
        busy += bool(worker.tasks)
        part = 0.5  # of a running task half is done, of a queued one nothing
        for issued in worker.tasks.values():
            if issued.cancelled:
                continue
            task = issued.task
            if task.seq <= counted:
                ahead -= part * task.weight / (state.batches[task.seq].size or 1)
            if part < 1.0 and task.seq == first:
                soon += 2.0 * (state.now_s - worker.head_s) > task.samples * each_s
            part = 1.0
    waiting = min(waiting, max(0, max(home, local.most) - busy))  # guard: cores-of-use
    sample_s, size = local.sample_s or 0.0, state.batches[due[-1]].size if due else 0
    return view._replace(
        ahead=max(0.0, ahead),
        batch_s=sample_s * size,
        waiting=waiting,
        waiting_due=waiting_due,
        soon=soon,
        busy=busy,
        window=max(0, state.asked + 1 - taken.seq),
    )


def glance(state: State, taken: Next, own: int) -> Glance:
    """Return what tells, at next to no cost, whether to look how a rank stands that has so many cores of its own."""
    workers = state.local.members[: min(own, state.local.size)]
    idles = any(not worker.tasks for worker in workers)
    return Glance(state.asked, taken.seq, state.asked - len(state.due), idles, own)


def divides(batch: Batch) -> bool:
    """Whether several workers can work on it."""
    return batch.kind in (Kind.SLOTS, Kind.PARTS)


def tasks_of(batch: Batch, left: int, task_size: int) -> int:
    return ceil(left / max(1, task_size)) if divides(batch) else int(bool(batch.todo))


def lacks_memory(state: State, batch: Batch) -> bool:
    """Whether no worker can begin it before memory is released."""
    placed_at_once = batch.kind is Kind.SLOTS and max(batch.layout, state.layout) >= 0
    return placed_at_once and batch.slab is None and 0 <= state.short <= batch.seq
