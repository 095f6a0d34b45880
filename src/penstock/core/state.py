"""What the core knows. Values only: no clock, file, thread or torch."""

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
    """What stays fixed for the life of an agent."""

    workers: int
    """Local ones, at first; see `ResizePool`."""
    kind: Kind
    """How batches are made at first; unfit samples turn PARTS and SLOTS into WHOLE."""
    task_size: int = 0
    """Samples per task; 0 chooses by measured cost."""
    in_order: bool = True
    limit_bytes: int = 1 << 30
    """Arena bytes that batches may occupy."""
    enough: int = 0
    """Batches whose memory is enough, where more is dear: only the one that is due gets more than that. 0: there is no such bound."""
    base: int = 0
    """First arena offset that batches may use."""
    first_worker: int = 0
    """Worker that owes the first batch of an iterable dataset (a resumed epoch goes on with the next in turn)."""
    trims: bool = True
    """An idle loader gives its memory back; not where it has been pinned for a device."""
    hang_s: float = 0.0
    """Seconds of silence after which a worker is replaced; 0 only warns."""
    poison_raises: bool = True
    """A sample that takes workers down fails its batch; else it is left to `on_error` in a worker."""
    repeatable: bool = True
    """Whether two workers write the same bytes for a sample: otherwise none is given to a second while the first may still write it."""
    beside: tuple[PoolConfig, ...] = ()
    """Pools beside that of the local workers; none for streams, which are divided among the local workers."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> CoreConfig:
        """What `dataclasses.asdict` and JSON made of one."""
        beside = tuple(PoolConfig(*pool) for pool in facts["beside"])
        return cls(**{**facts, "kind": Kind(facts["kind"]), "beside": beside})


@dataclass(slots=True)
class State:
    config: CoreConfig
    kind: Kind
    memory: Extents
    limit: int
    pools: list[WorkerPool]
    """The first is that of the local workers."""
    workers: list[WorkerState] = field(default_factory=list)
    """All that there have been, by their numbers."""
    batches: dict[int, Batch] = field(default_factory=dict)
    due: list[int] = field(default_factory=list)
    """Undelivered batches, in order."""
    asked: int = -1
    """The newest batch that was asked for."""
    layouts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    layout: int = -1
    """Layout of the newest batch: the guess for the next."""
    waiting: list[Unplaced] = field(default_factory=list)
    """Prepared results without memory."""
    deaths: dict[tuple[int, int], int] = field(default_factory=dict)
    fatal: Error | None = None
    growing: int = 0
    """Bytes that the system has been asked for and has not answered."""
    refused: int = 0
    """The fewest bytes that the system refused; less may still be had. 0: none yet, or all has been given back since."""
    next_task: int = 0
    next_worker: int = 0
    sample_bytes: float = 0.0
    """Bytes of a prepared sample that is not written into a slot; counted where they are bounded."""
    ended: bool = False
    reissued: int = 0
    task_size: int = 0
    """Samples in the newest task."""
    short: int = -1
    """Batch that asked for memory and got none; until it does, no later one gets any."""
    short_bytes: int = 0
    """What it asked for."""
    starved: int = -1
    """Batch that is due and does not fit beside what the consumer holds, once that has been said."""
    largest: int = 0
    """Bytes of the largest batch of a stream so far."""
    now_s: float = 0.0
    """Time of the newest event that carried one."""

    @property
    def local(self) -> WorkerPool:
        """The pool of the local workers."""
        return self.pools[0]

    def enlist(self, pool: WorkerPool, size: int, *, away: bool = False) -> None:
        """Number the workers that a pool of this size has not had yet."""
        for place in range(len(pool.members), size):
            worker = WorkerState(len(self.workers), pool, place, away=away)
            self.workers.append(worker)
            pool.members.append(worker)

    @property
    def ceiling(self) -> int:
        """Where the arena ends at the latest."""
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
