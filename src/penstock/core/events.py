"""The vocabulary of the core: what happens (events) and what the driver must do (actions).

All are plain values, so a run can be recorded, compared and replayed. Times are seconds of a monotonic clock and
arrive in events; the core has no clock. A task id is an attempt id, never used twice in the life of an agent: a late
result of a lost or cancelled attempt matches nothing and is dropped.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.wire.kinds import Kind

__all__ = ["UNBOUNDED", "Action", "Error", "Event", "Kind", "Task", "Trouble"]

UNBOUNDED = 1 << 30
"""A number of workers that no pool has."""


class Task(NamedTuple):
    id: int
    seq: int
    kind: Kind
    start: int
    samples: int
    offset: int = -1
    """Slab of the batch, or -1: the worker keeps the result until it is placed."""
    layout: int = -1
    parts: tuple[int, ...] = ()
    """Offsets of the parts to collate, in order."""
    poisoned: bool = False
    """The sample killed its workers: do not prepare it, apply `on_error`."""

    @property
    def weight(self) -> int:
        """Samples of work; a collate counts as one, being cheap beside preparation."""
        return 1 if self.kind is Kind.COLLATE else self.samples or 1


class Trouble(NamedTuple):
    """An error that the engine itself found; the driver words it."""

    kind: str
    """`died`, `hung`, `start`, `stream`, `memory` or `empty`."""
    ordinal: int = -1
    tries: int = 0
    cause: str = ""
    need_bytes: int = 0
    limit_bytes: int = 0


Error = bytes | Trouble
"""Why a batch failed: a worker's packed exception, passed on unopened, or the engine's own `Trouble`."""


# ---- events


class Feed(NamedTuple):
    """The training process asks for one more batch, due after all earlier ones."""

    seq: int
    size: int
    at_s: float = 0.0
    """Set with several pools only, to time tasks given to idle workers."""
    fetches: bool = False
    """Whether its samples' bytes are fetched first: `BytesHere` tells when. Not for streams."""


class BytesHere(NamedTuple):
    """The bytes of some samples have arrived, or nobody fetches them any more: workers may prepare them."""

    seq: int
    start: int
    samples: int


class Abort(NamedTuple):
    """The consumer ended the epoch: everything undelivered is void."""


class Released(NamedTuple):
    """The training process no longer refers to the memory of a delivered batch."""

    seq: int


class WorkerStarted(NamedTuple):
    """The worker's process exists; `WorkerUp` follows when it is ready."""

    worker: int
    at_s: float


class WorkerUp(NamedTuple):
    worker: int
    at_s: float


class WorkerLost(NamedTuple):
    worker: int
    task: int
    """Task it reported working on, or -1."""
    ordinal: int
    """Sample of the batch it was working on, or -1."""
    cause: str
    hung: bool = False


class Done(NamedTuple):
    worker: int
    task: int
    took_s: float
    at_s: float
    holds: bool = False
    """The worker still refers to the parts it was given (the user's collate kept them)."""
    dropped: tuple[int, ...] = ()
    """Samples of the batch that `on_error="skip"` left out."""
    refers: bool = False
    """The collated result refers to its parts instead of copying them."""


class LayoutKnown(NamedTuple):
    """A layout has got its number; `items` are its bytes per sample, by lane."""

    layout: int
    items: tuple[int, ...]


class Prepared(NamedTuple):
    """A result is ready in the worker and asks for memory: a slab of `layout`, or `nbytes` of its own."""

    worker: int
    task: int
    nbytes: int
    layout: int = -1


class Misfit(NamedTuple):
    """A sample does not fit the layout of its batch; `layout` is the one it needs."""

    worker: int
    task: int
    layout: int


class Refused(NamedTuple):
    """The samples cannot travel between workers: their batch must be prepared by one."""

    worker: int
    task: int


class Unreached(NamedTuple):
    """The worker could not read the task's data where it runs: local workers do it."""

    worker: int
    task: int


class Failed(NamedTuple):
    worker: int
    task: int
    ordinal: int
    error: Error


class Exhausted(NamedTuple):
    """This worker's iterator has ended."""

    worker: int
    task: int


class Dropped(NamedTuple):
    """The worker no longer has this task: it was cancelled before it began, or its held parts are released."""

    worker: int
    task: int


class InitFailed(NamedTuple):
    """The user's code failed while the worker started: its process is there, of no use. Or nobody (-1) can do anything."""

    worker: int
    error: Error


class NotStarted(NamedTuple):
    """The worker's process could not be started."""

    worker: int
    cause: str


class Retire(NamedTuple):
    """The worker uses too much memory: replace it once it finishes its tasks."""

    worker: int


class ResizePool(NamedTuple):
    """Change the worker count. Not for iterable datasets, whose workers each own a share of the data."""

    workers: int
    pool: int = 0
    """Pool number; 0 is the local workers."""


class Offload(NamedTuple):
    """Change a pool's worker count and its share of the samples. The share counts from now on."""

    workers: int
    share: float | None
    """See `WorkerPool.share`."""
    pool: int = 1


class TakeWhole(NamedTuple):
    """From now on a pool's workers take whole batches, or parts of them again."""

    pool: int
    whole: bool


class Allow(NamedTuple):
    """From now on so many local workers may begin tasks, because other ranks of the machine use the cores of the rest, or lend theirs.
    Not for streams."""

    workers: int
    own: int = UNBOUNDED
    """Workers that the rank has by itself; those behind them are spare."""


class Grown(NamedTuple):
    start: int
    end: int


class GrowDenied(NamedTuple):
    cause: str


class Stuck(NamedTuple):
    """Answer to `Starved`: the consumer has given back all it can."""

    seq: int
    need: int


class Tick(NamedTuple):
    """Time passes. `beats[w]` counts the samples worker w has begun; `waits[w]` the seconds it waited for a core,
    where known."""

    at_s: float
    beats: tuple[int, ...]
    waits: tuple[float, ...] = ()


Event = (
    Feed | BytesHere | Abort | Released | WorkerStarted | WorkerUp | WorkerLost | Done | LayoutKnown | Prepared | Misfit | Refused
    | Unreached | Failed | Exhausted | Dropped | InitFailed | NotStarted | Retire | ResizePool | Offload | TakeWhole | Allow | Grown | GrowDenied | Stuck | Tick
)  # fmt: skip


# ---- actions


class Start(NamedTuple):
    worker: int


class Assign(NamedTuple):
    worker: int
    task: Task


class PlaceResult(NamedTuple):
    """Memory for a result that waits in the worker."""

    worker: int
    task: int
    offset: int
    layout: int


class Cancel(NamedTuple):
    worker: int
    task: int


class Deliver(NamedTuple):
    seq: int
    offset: int
    layout: int
    """Layout of the slab, or -1: an encoded result."""
    dropped: tuple[int, ...] = ()
    nbytes: int = 0
    """Memory that stays in use while anything refers to the batch; 0 asks for a copy instead."""


class DeliverError(NamedTuple):
    seq: int
    error: Error


class DeliverEnd(NamedTuple):
    """All workers' iterators have ended."""

    asked: int
    """Newest batch asked for: tells an end that crosses an abort from the end of the new epoch."""


class Kill(NamedTuple):
    worker: int
    why: str


class Stop(NamedTuple):
    """Ask an idle worker to end."""

    worker: int


class GiveUp(NamedTuple):
    """Log that a spare worker could not start, and that no more are wanted."""

    worker: int
    error: Error


class Dump(NamedTuple):
    """Log what a long-silent worker is doing."""

    worker: int
    silent_s: float


class Grow(NamedTuple):
    """Back [start, end) of the arena with memory."""

    start: int
    end: int


class Shrink(NamedTuple):
    """Nothing is due: return the memory of [start, end) to the system."""

    start: int
    end: int


class Starved(NamedTuple):
    """The due batch does not fit beside the consumer's memory; the driver answers with `Stuck`."""

    seq: int
    need: int


Action = (
    Start
    | Assign
    | PlaceResult
    | Cancel
    | Deliver
    | DeliverError
    | DeliverEnd
    | Kill
    | Stop
    | GiveUp
    | Dump
    | Grow
    | Shrink
    | Starved
)
