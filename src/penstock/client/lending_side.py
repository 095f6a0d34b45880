"""An engine's way to the manager of cores, which all loaders of a machine's job share.

Rule 1: a loader joins if there is, or may be, another to share cores with: of another rank on this machine, of a named group, or of the same
        process.
Rule 2: it works without a manager as with one. A manager that has died is replaced in a thread of its own: training does not wait for it.
Rule 3: only the agent keeps a stream to the manager, so that its end is seen there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any

from penstock.agent.capacity import affinity_of
from penstock.daemon_threads import leaves
from penstock.epochs.epochs import OrderSource
from penstock.epochs.replay import length_of
from penstock.errors import ConfigError, NodeUnavailable, PenstockError
from penstock.lending.frames import SERVICE, LenderFacts, LendMsg
from penstock.measure.launch import local_world_said, rank_and_world
from penstock.node.job import is_shared, job_name
from penstock.node.link import ATTACH_S, NodeLink
from penstock.node.messages import NodeMsg, send
from penstock.wire.frames import Channel

log = logging.getLogger("penstock")

SWITCH = "PENSTOCK_LENDING"
"""With "watch" loaders are compared, and none lends or borrows; with "0" they know nothing of each other."""
OFF, WATCH, ON = ("0", "off"), ("watch",), ("", "1", "on")
RETRY_S = (0.1, 1.0, 5.0, 15.0, 60.0)
"""Pauses before a manager is looked for again; the last one repeats."""
TOGETHER_S = 1.0
"""Loaders of one process that run together for less need no manager."""
ANSWER_S = 1.0


class LendingSide:
    """One engine's membership; it ends with the engine's session."""

    def __init__(self, *, rank: int, crew: str, auto: bool, lends: bool = True) -> None:
        cores = tuple(sorted(affinity_of(os.getpid())))
        self.facts = LenderFacts(pid=os.getpid(), rank=rank, crew=crew, cores=cores, auto=auto, lends=lends)
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._ties = LendingTies(job_name(), ours)

    @property
    def left(self) -> bool:
        return self._ties.leave.is_set()

    def supply(self) -> socket.socket:
        """Return the agent's end of a socket by which it gets streams to the manager, as they come."""
        return self._theirs

    def begin(self) -> None:
        """Join if there are others to share cores with. Behind the agent's fork: it must have no copies of what a thread is opening."""
        _sides.add(self)
        others = self._others()
        if has_other_ranks(self._ties.job) or os.environ.get("PENSTOCK_GROUP"):
            self.join()
        elif others:
            for side in [*others, self]:
                side.join(after_s=TOGETHER_S)

    def join(self, *, after_s: float = 0.0) -> None:
        """Look for the manager, unless we have joined."""
        if not self._ties.is_busy():
            self.renew(after_s=after_s)

    def _others(self) -> list[LendingSide]:
        """Return the other loaders that run in this process."""
        # A copy, made at once: garbage collection or another thread may close a loader at any time.
        # A forked child sees its parent's loaders, too.
        # guard: sides-of-a-parent
        return [side for side in _sides.copy() if side is not self and side.facts.pid == self.facts.pid]

    def _is_alone(self) -> bool:
        return not self._others()

    def renew(self, *, after_s: float = 0.0) -> None:
        """Look for a manager in a thread, and give the agent a stream to it."""
        if self.left or not self._ties.order():
            return
        ties, facts = self._ties, self.facts
        stays_alone = self._is_alone if after_s else None
        thread = threading.Thread(
            target=serve_orders,
            args=(ties, facts.pack(), after_s, stays_alone),
            name="penstock lending",
            daemon=True,
        )
        leaves(thread, ties.leave.set)
        try:  # guard: no-thread
            thread.start()
        except RuntimeError as exc:  # the process has as many as it may have, or ends
            ties.give_up()
            log.debug("lending: this loader uses its own cores: %s", exc)

    def on_lost(self) -> None:
        """The agent says that the manager is gone."""
        log.debug(
            "lending: the manager of cores has ended or does not answer: each loader uses its own cores"
        )
        self._ties.joined = False
        self.renew()

    def stats(self, *, starts: bool = True) -> dict[str, Any]:
        """Ask the manager how cores are lent, and how the ranks in step with ours compare; empty if it does not answer. `starts`: another one
        if there is none."""
        if os.getpid() != self.facts.pid:  # a forked child has no business on our connection
            return {}
        told = self._ties.stats(starts=starts)
        crews = told.pop("crews", {})
        return told and {**told, **crews.get(self.facts.crew, {"ranks": [], "slowest": None})}

    def close(self) -> None:
        _sides.discard(self)
        self._ties.close()
        self._theirs.close()


def side_of(source: OrderSource, *, auto: bool) -> LendingSide | None:
    """Return a loader's side; None if it neither lends nor borrows."""
    wanted = switched()
    if source.streams or wanted in OFF:
        return None
    rank, world = source.rank, source.world
    if world == 1:  # torch's DistributedSampler, perhaps
        rank, world = rank_and_world()
    size = getattr(source.batch_sampler, "batch_size", 1)
    crew = f"{world} ranks, {length_of(source.dataset)} samples in batches of {size}" if world > 1 else ""
    return LendingSide(rank=rank, crew=crew, auto=auto, lends=wanted not in WATCH)


def has_other_ranks(job: str) -> bool:
    """Return whether this machine has other ranks of this job, or may have: not all launchers say how many are on a machine."""
    here = local_world_said()
    return here > 1 if here is not None else rank_and_world()[1] > 1 and is_shared(job)


def switched() -> str:
    """Return what the user's switch says."""
    said = os.environ.get(SWITCH, "").strip().lower()
    if said not in OFF + WATCH + ON:
        raise ConfigError(
            f"{SWITCH} must be 0 or off (no lending, no comparison), watch (comparison alone), 1, on or not set (both), got {said!r}"
        )
    return said


_sides: set[LendingSide] = set()
"""Of the engines that run in this process."""


class ManagerSearch(Enum):
    """Whether a thread looks for a manager."""

    IDLE = 0
    LOOKING = 1
    LOOKING_AGAIN = 2
    """Once more, when it has found one: that is lost already."""


class LendingTies:
    """What an engine has open for its membership."""

    def __init__(self, job: str, ours: socket.socket) -> None:
        self.job, self.ours = job, ours
        self.leave = threading.Event()
        self.joined = False
        self._lock = threading.RLock()  # garbage collection may close us while we hold it
        self._link: NodeLink | None = None
        self._search = ManagerSearch.IDLE

    def order(self) -> bool:
        """Have a stream looked for; return whether the caller must start the thread that does it."""
        with self._lock:
            idle = self._search is ManagerSearch.IDLE
            self._search = ManagerSearch.LOOKING if idle else ManagerSearch.LOOKING_AGAIN
        return idle

    def is_busy(self) -> bool:
        """Whether a manager is known, or looked for."""
        with self._lock:
            return self.joined or self._search is not ManagerSearch.IDLE

    def call_off(self, is_alone: Callable[[], bool]) -> bool:
        """Have nothing looked for if there is nobody to share cores with; say whether that is so."""
        with self._lock:
            alone = is_alone()
            if alone:
                self._search = ManagerSearch.IDLE
        return alone

    def looks_again(self) -> bool:
        """Say whether another stream was ordered while the thread looked for one. If not, it must end."""
        with self._lock:
            again = self._search is ManagerSearch.LOOKING_AGAIN  # guard: lost-while-looking
            self._search = ManagerSearch.LOOKING if again else ManagerSearch.IDLE
        return again

    def give_up(self) -> None:
        """The thread does not run: a later order starts another."""
        with self._lock:
            self.joined, self._search = False, ManagerSearch.IDLE  # guard: thread-failed

    def link(self, within_s: float = ATTACH_S) -> NodeLink:
        """Attach to the job's node process, if we are not."""
        with self._lock:
            link = self._link
        if link is not None and link.alive():
            return link
        new = NodeLink.attach(self.job, within_s)
        with self._lock:
            before, self._link = self._link, new
        if before is not None:
            before.close()
        if self.leave.is_set():  # closed meanwhile
            self.close()
            raise NodeUnavailable("its loader has ended")
        return new

    def stats(self, *, starts: bool = True) -> dict[str, Any]:
        link = self._link
        if not self.joined or self.leave.is_set() or not (starts or (link is not None and link.alive())):
            return {}
        try:
            # A link over which the last answer did not come in time is closed.
            # guard: silent-once
            with self.link(ANSWER_S).open(SERVICE, within_s=ANSWER_S) as sock:
                sock.settimeout(ANSWER_S)
                channel = Channel(sock)
                channel.send(LendMsg.STATS)
                frames = channel.receive()
            return dict(json.loads(frames[0][1])) if frames else {}
        except (OSError, ValueError, PenstockError):
            return {}

    def close(self) -> None:
        self.leave.set()
        with self._lock:
            link, self._link = self._link, None
        self.ours.close()
        if link is not None:
            link.close()


def serve_orders(
    ties: LendingTies, facts: bytes, after_s: float = 0.0, is_alone: Callable[[], bool] | None = None
) -> None:
    """Find a manager as often as one is ordered: the agent may lose a stream before we have ended. With `is_alone`: unless that is so after a while."""
    try:
        ties.leave.wait(after_s)
        if is_alone is not None and ties.call_off(is_alone):
            return
        find_manager(ties, facts)
        while ties.looks_again():
            find_manager(ties, facts)
    except BaseException:
        ties.give_up()
        raise


def find_manager(ties: LendingTies, facts: bytes) -> None:
    """Look for the manager until the agent has a stream to it, or the engine has ended."""
    if ties.leave.is_set():
        return
    for tries in itertools.count():
        try:
            pass_on_stream(ties, facts)
            return
        except (OSError, PenstockError) as exc:
            ties.joined = False
            log.debug("lending: no manager of cores yet: %s", exc)
        if ties.leave.wait(RETRY_S[min(tries, len(RETRY_S) - 1)]):
            return


def pass_on_stream(ties: LendingTies, facts: bytes) -> None:
    """Open a stream to the manager and give it to the agent. A process that is forked meanwhile would keep it open."""
    with contextlib.ExitStack() as passed_on:
        # guard: stream-in-passing
        sock = ties.link().open(SERVICE, no_forks_until=passed_on)
        passed_on.enter_context(sock)
        sock.setblocking(False)
        ties.joined = True  # first: the agent may say at once that it has lost it
        send(ties.ours, NodeMsg.OPENED, facts, [sock.fileno()])
