"""How many workers an agent has, and how many of them may begin tasks.

Rule 1: a rank's own workers are as many as the user has said, or as its cores allow; both may change at any time.
Rule 2: with a manager of cores, more or fewer may begin tasks. A worker for a borrowed core is started when it is first needed. Afterwards it rests,
        and costs only memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.agent.capacity import Capacity
from penstock.agent.config import AgentConfig
from penstock.agent.core_time import CoreTime
from penstock.agent.handles import WorkerHandle
from penstock.agent.lending import Lending
from penstock.core import events as ev
from penstock.core.events import Kind
from penstock.core.state import State
from penstock.policy.lending import MOST
from penstock.wire import frames as wire
from penstock.wire.arena import AS_CORES, Arena, Board
from penstock.wire.frames import Msg


class Staffed(Protocol):
    """The agent, as far as this module knows it."""

    selector: Any

    def happen(self, event: ev.Event) -> None: ...

    def tell(self, kind: Msg, *chunks: bytes) -> None: ...


class Staffing:
    def __init__(
        self, config: AgentConfig, state: State, arena: Arena, agent: Staffed, lending: Lending | None
    ) -> None:
        self._config, self._state, self._arena, self._agent = config, state, arena, agent
        self._lending = lending if state.kind is not Kind.STREAM else None
        self._capacity = Capacity(config.parent, config.ranks, lane=config.has_gpu_lane)
        self._follows = config.follows
        self._told: tuple[bool, frozenset[int]] | None = None
        """What the manager was told: whether this rank follows its cores, and which these are. The training process may know it as it was before."""
        self._home = config.core.workers
        self._spare = 0
        """Workers with those for borrowed cores."""
        self._allowed: int | None = None
        """Workers that may begin tasks, by the manager."""
        self._own: int | None = None
        """Cores that are the rank's own, by the manager: fewer than its workers if others follow the same cores."""
        self._time = CoreTime(arena.board.agent, self._tell_cores)

    def bind(self) -> None:
        if self._lending is not None:
            lost = Msg.LENDING_LOST
            self._lending.bind(self._agent.selector, self._allow, lambda: self._agent.tell(lost))
            self._time.hold(*self._cores())

    def look(self) -> None:
        """Report how this rank stands; called after every few events."""
        if self._lending is not None:
            self._lending.look(self._state, self._arena.board, self._home)

    def patience_s(self) -> float:
        """Return for how long the agent may wait for events before it must `look`."""
        return math.inf if self._lending is None else self._lending.patience_s()

    def look_after(self, now_s: float, alive: Sequence[WorkerHandle]) -> None:
        """Have as many workers as the training process asks for, or as the cores allow."""
        if self._lending is not None:
            self._lending.look_after(now_s)
            self._time.hold(*self._cores())
        row = self._arena.board.agent
        if row[Board.WANTED]:
            self._follows = row[Board.WANTED] == AS_CORES
        number = 0 if self._follows else max(0, row[Board.WANTED]) or self._config.core.workers
        wanted = self._capacity.wanted(number, now_s, alive, lane=bool(row[Board.LANE]))
        self._tell_what_it_has()
        if wanted != self._home and self._arena.has_room_for(self._state.count_with(wanted)):
            self._allowed, self._own = self._kept_grant(wanted), None
            self._home, self._spare = wanted, 0
            self._staff()
            if self._follows:
                self._agent.tell(Msg.WORKERS, wire.WORKER.pack(-1, wanted))

    def _kept_grant(self, wanted: int) -> int | None:
        """Return the grant to use until the manager has heard of the new number of workers: still lend, but borrow nothing."""
        if self._allowed is None:
            return None
        return wanted if self._allowed == self._home else min(self._allowed, wanted)

    def _tell_what_it_has(self) -> None:
        has = self._follows, self._capacity.cores
        if self._lending is not None and has != self._told:
            self._told = has
            self._lending.now_has(auto=self._follows, cores=self._capacity.cores)

    def _allow(self, workers: int | None, own: int | None) -> None:
        if (workers, own) != (self._allowed, self._own):
            self._allowed, self._own = workers, own
            self._staff()

    def _staff(self) -> None:
        """Have the workers that we may use, and let them work."""
        local = self._state.local
        if self._lending is not None:  # before any is started: the core must know which are spare
            allowed = self._home if self._allowed is None else self._allowed
            self._agent.happen(ev.Allow(allowed, own=self._home))
        wanted = min(self._allowed or 0, MOST * self._home)
        spare = min(max(self._spare, wanted), local.most)
        size = max(self._home, spare)
        if self._arena.has_room_for(self._state.count_with(size)):
            self._spare = spare
            if size != local.size:
                self._agent.happen(ev.ResizePool(size))
        if self._lending is not None:
            self._time.hold(*self._cores())

    def _cores(self) -> tuple[int, int]:
        """Return how many cores are ours, and how many workers may begin tasks."""
        allowed = self._home if self._allowed is None else self._allowed
        own = self._home if self._own is None else min(self._own, self._home)
        return own, min(allowed, self._state.local.size)

    def _tell_cores(self, cores: bytes) -> None:
        if self._config.spans:
            self._agent.tell(Msg.CORES, cores)

    def close(self) -> None:
        if self._lending is not None:
            self._lending.close()
