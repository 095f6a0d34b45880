"""A loader's side of the cache: joins the cache service of its machine, and says which bytes batches will need.

Rule 1: without the service, or where a dataset says not where its bytes are, everything goes on as without a cache, with one warning. Only ranks that
        want different caches are an error.
Rule 2: a loader stays a member from its first epoch to its end, so that bytes are kept between epochs.
Rule 3: who has died is replaced in a thread of its own: training does not wait for it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from penstock.cache.frames import SERVICE, BadFrame, CacheMsg, pack_ask
from penstock.cache.join_facts import GroupPlan, JoinAnswer, JoinFacts
from penstock.daemon_threads import leaves
from penstock.dataset.offers import ReadSeam
from penstock.epochs.feed import Ask
from penstock.errors import ConfigError, NodeUnavailable, PenstockError
from penstock.node.job import job_name
from penstock.node.link import NodeLink
from penstock.node.messages import NodeMsg, send
from penstock.wire.frames import Channel

log = logging.getLogger("penstock")

JOIN_S = 120.0
"""Time to look at some samples, and to open a disk."""
ANSWER_S = 10.0
RETRY_S = (0.1, 1.0, 5.0)
"""Pauses before a service that has died is looked for again; the last one repeats."""


class CacheRefused(ConfigError):
    """Ranks of one job want different caches."""


@dataclass(slots=True)
class CacheWay:
    """A stream to the service, joined."""

    sock: socket.socket
    joined: JoinAnswer


class CacheTies:
    """What a loader has open for its cache. It is closed with the loader."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a garbage collection may close it anywhere
        self.link: NodeLink | None = None
        self.supply: socket.socket | None = None
        """By which the agent gets streams."""
        self.member: socket.socket | None = None
        """A stream by which the service knows that the loader is there, also between epochs."""
        self.joining: socket.socket | None = None
        """A stream that a thread waits at for the service's answer."""
        self.leave = threading.Event()
        self._owner = os.getpid()

    def is_member(self) -> bool:
        """Whether the service that we have joined is there. Nothing is sent by this stream: it is readable when it has ended."""
        if self.member is None:
            return False
        poll = select.poll()
        poll.register(self.member, select.POLLIN)
        return not poll.poll(0)

    def has_attached(self, link: NodeLink, before: NodeLink | None) -> NodeLink:
        """Keep a new link instead of another, unless some thread was faster; return the link to use."""
        with self.lock:
            if self.link is before:
                self.link, link = link, before  # type: ignore[assignment]
            now = self.link
        if link is not None:
            link.close()
        if self.leave.is_set() or now is None:
            self.close()
            raise NodeUnavailable("its loader has ended")
        return now

    def waits_at(self, sock: socket.socket | None) -> None:
        """Note a stream that a thread waits at: `close` ends it."""
        with self.lock:
            self.joining = sock
        if sock is not None and self.leave.is_set():
            raise NodeUnavailable("its loader has ended")

    def close(self) -> None:
        self.leave.set()
        if os.getpid() != self._owner:
            return
        with self.lock:
            link, self.link = self.link, None
            socks = [sock for sock in (self.supply, self.member) if sock is not None]
            self.supply = self.member = None
            if self.joining is not None:  # its thread closes it
                with contextlib.suppress(OSError):
                    self.joining.shutdown(socket.SHUT_RDWR)
        for sock in socks:
            ended(sock)
        if link is not None:
            link.close()


def ended(sock: socket.socket) -> None:
    """End a stream, also if a forked process has a copy of it."""
    with sock, contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class CacheSide:
    """One loader's membership."""

    def __init__(self, facts: JoinFacts, seam: ReadSeam) -> None:
        self.facts, self._seam = facts, seam
        self.plan: GroupPlan | None = None
        self._job = job_name()
        self._ties = CacheTies()
        weakref.finalize(self, self._ties.close)
        self._thread: threading.Thread | None = None
        self.lost = 0
        """How often the service has died."""
        self._told_of: socket.socket | None = None
        """The membership whose end was told of."""
        self._heard = 0, 0
        """The service whose warnings were passed on, by its process, and how many of them."""

    # ---- the service

    def join(self) -> CacheWay:
        """Open a stream and join. CacheRefused; PenstockError or OSError if there is no service to be had."""
        return self._took(self.attempt()())

    def attempt(self) -> Callable[[], list[CacheWay]]:
        """Return a call that joins. It has no reference to this object: a loader may end while it waits."""
        count = 2 if self.plan is not None and not self._ties.is_member() else 1
        return partial(join_service, self._ties, self._job, self.facts, self.plan, count)

    def _took(self, ways: list[CacheWay]) -> CacheWay:
        """Take what joining gave: the last is for whoever asked, one before it says that we are there."""
        for way in ways:
            self._pass_on(way.joined)
        if len(ways) > 1:
            self._stay(ways[0].sock)
        if address := ways[-1].joined.address:  # others know it: a later service listens there again
            self.facts = replace(self.facts, port=int(address.partition("#")[0].rpartition(":")[2]))
        return ways[-1]

    def _stay(self, sock: socket.socket) -> None:
        """Have the service know by a stream that we are there."""
        with self._ties.lock:
            before, self._ties.member = self._ties.member, sock
        if before is not None:
            before.close()
        if self._ties.leave.is_set():  # closed meanwhile
            self._ties.close()

    def _pass_on(self, joined: JoinAnswer) -> None:
        """Log the service's warnings: nobody sees its standard error."""
        pid, heard = self._heard
        for said in joined.warnings[heard if pid == joined.pid else 0 :]:
            log.warning("%s", said)
        self._heard = joined.pid, len(joined.warnings)

    def begin(self, way: CacheWay, plan: GroupPlan) -> None:
        """Tell the service the plan, once all machines of the job are known."""
        self.plan = plan
        self._stay(way.sock)
        asked(Channel(way.sock), CacheMsg.PLAN, plan.pack(), CacheMsg.PLANNED)

    # ---- an agent

    def supply_now(self) -> socket.socket:
        """Join for an agent that starts, and return its end of a socket by which it gets streams; the first one is in it, or comes when there is one."""
        if self.plan is not None and not self._ties.is_member() and self._told_of is not self._ties.member:
            self._tell_of_end()  # it ended between two epochs
        try:
            return self._supplied(self.join())
        except (OSError, PenstockError) as exc:
            log.warning(
                "cache: its service cannot be reached (%s): workers read by themselves meanwhile", exc
            )
            return self._supplied(None)

    def _supplied(self, way: CacheWay | None) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with self._ties.lock:
            before, self._ties.supply = self._ties.supply, ours
        if before is not None:
            before.close()
        if way is None:
            self.renew()
        else:
            self._give(ours, way)
        return theirs

    def _give(self, supply: socket.socket, way: CacheWay) -> None:
        with way.sock, contextlib.suppress(OSError):  # the agent may have ended
            way.sock.setblocking(False)
            send(supply, NodeMsg.OPENED, json.dumps(asdict(way.joined)).encode(), [way.sock.fileno()])

    def renew(self) -> None:
        """Look for a service, in a thread, and give the agent a stream to it."""
        leave = self._ties.leave
        if leave.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        self._thread = threading.Thread(
            target=renewed, args=(weakref.ref(self), leave), name="penstock cache", daemon=True
        )
        leaves(self._thread, leave.set)
        self._thread.start()

    def supplies(self) -> socket.socket | None:
        """Return by what the present agent gets streams; None: there is none any more."""
        return self._ties.supply

    def renewed(self, supply: socket.socket, ways: list[CacheWay]) -> bool:
        """Give the agent a stream; return whether it is still the one that needed it."""
        way = self._took(ways)
        if supply is not self._ties.supply:
            way.sock.close()
            return False
        self._give(supply, way)
        return True

    def on_lost(self) -> None:
        """The agent says that the service is gone."""
        self._tell_of_end()
        self.renew()

    def _tell_of_end(self) -> None:
        self.lost += 1
        self._told_of = self._ties.member
        log.warning(
            "cache: its service has ended, or does not answer: workers read by themselves until there is one again"
        )

    # ---- batches

    def asks(self, seq: int, ask: Ask) -> bytes:
        """Return what the cache is to be told of a batch; b"": its workers read by themselves."""
        try:
            samples = [key % self.facts.samples if type(key) is int else -1 for key in ask.keys]
            if not samples or min(samples) < 0:
                return b""
            ranges = [self._seam.ranges(key) for key in ask.keys]
        except Exception:  # noqa: BLE001 - the user's code, or a key that is none: a worker raises it with its sample
            return b""
        return pack_ask(seq, ask.epoch, ask.batch, samples, ranges)

    # ---- the rest

    def stats(self) -> dict[str, Any]:
        """Ask the service; empty if it does not answer."""
        try:
            link = self._ties.link
            if link is None or not link.alive():
                return {}
            with link.open(SERVICE, within_s=ANSWER_S) as sock:
                sock.settimeout(ANSWER_S)
                said = asked(Channel(sock), CacheMsg.STATS, self.facts.scope.encode(), CacheMsg.STATED)
            return dict(json.loads(said))
        except (OSError, ValueError, PenstockError):
            return {}

    def close(self) -> None:
        self._ties.close()

    def __reduce__(self) -> tuple[type[CacheSide], tuple[JoinFacts, ReadSeam]]:
        """A loader's copy in another process joins for itself."""
        return CacheSide, (self.facts, self._seam)


def renewed(held: weakref.ref[CacheSide], leave: threading.Event) -> None:
    """Look for a service until there is one, or the loader is gone. No reference to it is kept meanwhile."""
    for tries in itertools.count():
        side = held()
        supply = None if side is None else side.supplies()
        if side is None or supply is None or leave.is_set():
            return
        attempt, ways = side.attempt(), list[CacheWay]()
        del side
        try:
            ways = attempt()
        except (OSError, PenstockError) as exc:
            log.debug("cache: no service yet: %s", exc)
        side = held()
        if side is None:
            for way in ways:
                way.sock.close()
            return
        if ways and side.renewed(supply, ways):
            return
        del side
        leave.wait(RETRY_S[min(tries, len(RETRY_S) - 1)])


def join_service(
    ties: CacheTies, job: str, facts: JoinFacts, plan: GroupPlan | None, count: int
) -> list[CacheWay]:
    """Join by so many streams."""
    ways: list[CacheWay] = []
    try:
        for _ in range(count):
            ways.append(joined_by(opened(ties, job), ties, facts, plan))  # noqa: PERF401 - closed below
    except BaseException:
        for way in ways:
            way.sock.close()
        raise
    return ways


def joined_by(sock: socket.socket, ties: CacheTies, facts: JoinFacts, plan: GroupPlan | None) -> CacheWay:
    """Join by a stream; it is closed if that fails."""
    try:
        ties.waits_at(sock)
        sock.settimeout(JOIN_S)
        channel = Channel(sock)
        answer = asked(channel, CacheMsg.JOIN, facts.pack(), CacheMsg.JOINED)
        try:
            joined = JoinAnswer.unpack(answer)
        except BadFrame as exc:
            raise ConnectionResetError(str(exc)) from None
        if plan is not None:
            asked(channel, CacheMsg.PLAN, plan.pack(), CacheMsg.PLANNED)
        ties.waits_at(None)
    except BaseException:
        ties.waits_at(None)
        sock.close()
        raise
    return CacheWay(sock, joined)


def opened(ties: CacheTies, job: str) -> socket.socket:
    """Open a stream to the service, by the node process; start that if there is none."""
    if ties.leave.is_set():  # nobody would close another link
        raise NodeUnavailable("its loader has ended")
    link = ties.link
    if link is None or not link.alive():
        link = ties.has_attached(NodeLink.attach(job), link)
    return link.open(SERVICE)


def asked(channel: Channel, kind: CacheMsg, payload: bytes, answer: CacheMsg) -> bytes:
    """Say something to the service, and return what it answers."""
    channel.send(kind, payload)
    try:
        frames = channel.receive()
    except ValueError as exc:
        raise ConnectionResetError(str(exc)) from None
    if frames is None or len(frames) != 1:
        raise ConnectionResetError("the cache service has ended")
    found, said = frames[0]
    if found == CacheMsg.REFUSED:
        raise CacheRefused(said.decode(errors="replace"))
    if found == CacheMsg.FAILED:
        raise NodeUnavailable(said.decode(errors="replace"))
    if found != answer:
        raise ConnectionResetError(f"the cache service answered with a message of kind {found}")
    return said
