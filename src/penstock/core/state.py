"""The core's state. Values only: no clock, file, thread or torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.core.events import Error, Kind
from penstock.core.ledger import Batch, Unplaced
from penstock.core.pools import PoolConfig, WorkerPool, WorkerState
from penstock.wire.extents import Extents


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Settings fixed for the life of an agent."""

    workers: int
    """Local workers at first; see `ResizePool`."""
    kind: Kind
    """How batches are prepared at first; samples that do not fit turn PARTS and SLOTS into WHOLE."""
    task_size: int = 0
    """Samples per task; 0 chooses by measured cost."""
    in_order: bool = True
    limit_bytes: int = 1 << 30
    """Arena bytes that batches may occupy."""
    enough: int = 0
    """Stop growing the arena after this many batches (pinning is slow), except for the due batch. 0: no such bound."""
    base: int = 0
    """First arena offset that batches may use."""
    first_worker: int = 0
    """Worker that owes the first batch of an iterable dataset (a resumed epoch continues with the next in turn)."""
    trims: bool = True
    """Whether an idle loader returns its memory; off if it is pinned for a device."""
    hang_s: float = 0.0
    """Seconds of silence after which a worker is replaced; 0 only warns."""
    poison_raises: bool = True
    """Whether a sample that kills workers fails its batch; else a worker applies `on_error` to it."""
    repeatable: bool = True
    """Whether two workers write the same bytes for a sample. If not, no sample is reassigned while its first worker may write."""
    beside: tuple[PoolConfig, ...] = ()
    """Pools beside the local workers; unused for streams, which only local workers share."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> CoreConfig:
        """Rebuild a config from its `dataclasses.asdict`, after JSON."""
        beside = tuple(PoolConfig(*pool) for pool in facts["beside"])
        return cls(**{**facts, "kind": Kind(facts["kind"]), "beside": beside})


@dataclass(slots=True)
class State:
    config: CoreConfig
    kind: Kind
    memory: Extents
    limit: int
    pools: list[WorkerPool]
    """The first is the local one."""
    workers: list[WorkerState] = field(default_factory=list)
    """All workers so far, by number."""
    batches: dict[int, Batch] = field(default_factory=dict)
    due: list[int] = field(default_factory=list)
    """Undelivered batches, in order."""
    asked: int = -1
    """Newest batch asked for."""
    layouts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    layout: int = -1
    """Layout of the newest batch: the guess for the next one."""
    waiting: list[Unplaced] = field(default_factory=list)
    """Prepared results without memory."""
    deaths: dict[tuple[int, int], int] = field(default_factory=dict)
    fatal: Error | None = None
    growing: int = 0
    """Bytes asked of the system and not answered yet."""
    refused: int = 0
    """Fewest bytes the system refused; less may still be granted. 0: no refusal since memory was last returned."""
    next_task: int = 0
    next_worker: int = 0
    sample_bytes: float = 0.0
    """Average size of a prepared sample; used where bytes are bounded."""
    ended: bool = False
    reissued: int = 0
    task_size: int = 0
    """Samples in the newest task."""
    short: int = -1
    """Batch whose request for memory failed; until it is served, no later one gets any."""
    short_bytes: int = 0
    """Bytes it asked for."""
    starved: int = -1
    """Due batch for which the consumer was already asked to release memory."""
    largest: int = 0
    """Bytes of the largest stream batch so far."""
    now_s: float = 0.0
    """Time of the newest event that has one."""

    @property
    def local(self) -> WorkerPool:
        """The pool of local workers."""
        return self.pools[0]

    def enlist(self, pool: WorkerPool, size: int, *, away: bool = False) -> None:
        """Add workers until the pool has had `size` of them."""
        for place in range(len(pool.members), size):
            worker = WorkerState(len(self.workers), pool, place, away=away)
            self.workers.append(worker)
            pool.members.append(worker)

    def count_with(self, size: int) -> int:
        """Return how many workers of all pools there have been, once the local one has `size`."""
        return len(self.workers) + max(0, size - len(self.local.members))

    @property
    def ceiling(self) -> int:
        """Highest offset the arena may reach."""
        return self.memory.end if self.refused else self.limit


def new_state(config: CoreConfig) -> State:
    local = WorkerPool(0, config.workers)
    beside = config.beside if config.kind is not Kind.STREAM else ()
    pools = [local, *(WorkerPool(number, *one) for number, one in enumerate(beside, 1))]
    limit = config.base + config.limit_bytes
    memory = Extents(config.base)
    state = State(config, config.kind, memory, limit, pools, next_worker=config.first_worker)
    for pool in pools:
        state.enlist(pool, pool.size)
    return state
