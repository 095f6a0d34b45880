"""The agent's side of the manager of cores: says how this rank stands, and hears with how many workers it may begin tasks.

Rule 1: without a manager, or with one that is silent, a rank uses its own cores, all of them and no more.
Rule 2: workers for borrowed cores are started when they are first needed, and stay: one that rests costs memory alone.
Rule 3: when to look how the rank stands, and what of it to report, is said by `policy/reporting.py`.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from struct import error

from penstock.agent.posting import sums_of, training_of
from penstock.core.standing import Next, glance, standing
from penstock.core.state import State
from penstock.lending.frames import GRANT, MOST_BYTES, LenderFacts, LendMsg, Report
from penstock.node.messages import BadMessage, NodeMsg, receive
from penstock.policy.reporting import Reporting
from penstock.policy.stragglers import RankSums
from penstock.wire.arena import Board
from penstock.wire.frames import Channel
from penstock.wire.watching import watch

SILENT_S = 1.0
"""The manager says several times a second that it is there to those who have not their own number of cores."""
SUMS_S = 0.2
"""Time between two looks at each worker's numbers."""
AGAIN_S = 5.0
"""Time until another stream is asked for if one could not be received."""


class Lending:
    """`supply`: where streams to the manager come from, as they are opened by the training process."""

    def __init__(self, supply: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        supply.setblocking(False)
        self._supply, self._clock = supply, clock
        self._facts = self._joined_as = b""
        """What the training process says of this rank; what the manager has heard."""
        self._now: tuple[bool, frozenset[int]] | None = None
        """Whether it follows its cores, and which these are: the user may have changed that since."""
        self._channel: Channel | None = None
        self._selector: selectors.BaseSelector | None = None
        self._allow: Callable[[int | None, int | None], None] = lambda _, __: None
        self._tell_lost: Callable[[], None] = lambda: None
        self._granted: int | None = None
        """Workers that may begin tasks; None: nobody has said."""
        self._own: int | None = None
        """Cores that are our own, as the manager says; None: as many as our workers."""
        self._home = 0
        self._heard_s = self._checked_s = self._summed_s = 0.0
        self._sums = RankSums()
        self._reporting = Reporting()
        self._due_s = math.inf
        """When to look again."""
        self._again_s = math.inf
        """When to ask for another stream."""
        self._owner = os.getpid()

    def bind(
        self,
        selector: selectors.BaseSelector,
        allow: Callable[[int | None, int | None], None],
        tell_lost: Callable[[], None],
    ) -> None:
        """Serve an agent from now on; `allow` lets so many of its workers begin tasks, and says how many cores are its own (None: as many as it
        has workers by itself)."""
        self._selector, self._allow, self._tell_lost = selector, allow, tell_lost
        selector.register(self._supply, selectors.EVENT_READ, lambda _: self._on_supply())

    def _on_supply(self) -> None:
        assert self._selector is not None
        try:
            message = receive(self._supply, fds=1)
        except BlockingIOError:
            return
        except BadMessage:  # without its stream: this process may open no more files
            self._again_s = self._clock() + AGAIN_S  # guard: stream-not-received
            return
        if message is None or message.kind != NodeMsg.OPENED or len(message.fds) != 1:
            self._selector.unregister(self._supply)
            return
        self._leave()
        self._again_s = math.inf
        sock = socket.socket(fileno=message.fds[0])
        sock.setblocking(False)
        self._channel = Channel(sock, MOST_BYTES)
        self._reporting.begin()
        self._selector.register(sock, selectors.EVENT_READ, self._on_ready)
        self._facts, self._joined_as = message.payload, b""
        self._join()

    def now_has(self, *, auto: bool, cores: frozenset[int]) -> None:
        """Have the manager know whether this rank follows its cores, and which these are."""
        self._now = auto, cores
        if self._channel is not None:
            self._join()

    def _join(self) -> None:
        facts = self._facts
        if self._now is not None:
            auto, cores = self._now
            facts = replace(LenderFacts.unpack(facts), auto=auto, cores=tuple(sorted(cores))).pack()
        if facts != self._joined_as:
            self._joined_as = facts
            self._post(LendMsg.JOIN, facts)

    # ---- reports

    def look(self, state: State, board: Board, home: int) -> None:
        """Report how this rank stands, if it is time and there is something to say."""
        if self._channel is None:
            return
        now_s, taken = self._clock(), next_of(board.agent)
        own = home if self._own is None else min(home, self._own)
        seen = glance(state, taken, own)
        wait_s = self._reporting.wait_s(now_s, seen)
        self._due_s = now_s + wait_s if wait_s > 0 else math.inf
        if wait_s > 0 or self._channel.clogged:
            return
        self._home, view = home, standing(state, taken, home=home)
        if self._reporting.is_news(view, seen, now_s, own=own):
            self._post(LendMsg.REPORT, Report(view, self._sums_now(state, board, now_s)).pack())

    def patience_s(self) -> float:
        """Return how soon to look again: there may be news that came too soon after a report."""
        return math.inf if self._due_s == math.inf else max(0.0, self._due_s - self._clock())

    def _sums_now(self, state: State, board: Board, now_s: float) -> RankSums:
        """Return how training goes now, with the sums of workers as they were a moment ago: they are many."""
        if now_s >= self._summed_s + SUMS_S:
            self._summed_s, self._sums = now_s, sums_of(board, state)
        return self._sums._replace(**training_of(board.agent))

    def _post(self, kind: LendMsg, payload: bytes) -> None:
        assert self._channel is not None
        self._channel.post(kind, payload)
        self._watch()

    # ---- the manager

    def look_after(self, now_s: float) -> None:
        """Leave a manager that is silent although it lends our cores, or others to us. Time in which we did not look does not count. Ask for another
        stream, if it is time."""
        paused = now_s - self._checked_s > SILENT_S  # guard: pause-of-an-agent
        self._checked_s = now_s
        if self._channel is None or paused or self._granted in (None, self._home):
            self._heard_s = now_s
        elif now_s - self._heard_s > SILENT_S:  # guard: silent-manager
            self._leave()
            self._tell_lost()
        if now_s >= self._again_s:
            self._again_s = math.inf
            self._tell_lost()

    def _watch(self) -> None:
        assert self._selector is not None
        assert self._channel is not None
        watch(self._selector, self._channel)

    def _on_ready(self, mask: int) -> None:
        channel = self._channel
        if channel is None:
            return
        if mask & selectors.EVENT_WRITE:
            channel.flush()
            self._watch()
        grants: list[tuple[int, int]] | None = None
        with contextlib.suppress(OSError, ValueError, error):
            frames = channel.receive(wait=False) if mask & selectors.EVENT_READ else []
            if frames is not None:
                grants = [GRANT.unpack(payload) for kind, payload in frames if kind == LendMsg.GRANT]
        if grants is None:  # guard: manager-gone
            self._leave()
            self._tell_lost()
        elif grants:
            self._heard_s = self._clock()
            if grants[-1] != (self._granted, self._own):
                self._reporting.wake()
            self._granted, self._own = grants[-1]
            self._allow(max(0, self._granted), max(0, self._own))

    def _leave(self) -> None:
        """Use our own cores from now on."""
        if self._channel is not None:
            assert self._selector is not None
            self._selector.unregister(self._channel.sock)
            self._hang_up(self._channel)
            self._channel = None
        if self._granted is not None:
            self._granted = self._own = None
            self._allow(None, None)

    def _hang_up(self, channel: Channel) -> None:
        """End a stream. In a forked worker only its copy ends."""
        if os.getpid() == self._owner:  # guard: stream-of-the-agent
            with contextlib.suppress(OSError):
                # A copy that another loader's agent was forked with must not count.
                channel.sock.shutdown(socket.SHUT_RDWR)  # guard: stream-ended
        channel.close()

    def close(self) -> None:
        self._supply.close()
        if self._channel is not None:
            self._hang_up(self._channel)


def next_of(row: memoryview) -> Next:
    """Return the batch that training takes next, as the training process shows it in the agent's row."""
    return Next(row[Board.EPOCH], row[Board.BATCH], row[Board.NEXT], row[Board.AT_LANE] / 1000)
